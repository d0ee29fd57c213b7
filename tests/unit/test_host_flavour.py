"""Which part of the host toolchain a kernel needs that its framework builds."""

from __future__ import annotations

import pytest

from ptocache.model import Job
from ptocache_host import HostToolchain


@pytest.mark.parametrize(
    ("env", "flavour"),
    [((), "c,link"), ((("CC", "gcc"),), "c,link"), ((("CXX", "g++"),), "c++,link")],
)
def test_job_without_inputs_needs_the_compiler_that_is_named(
    env: tuple[tuple[str, str], ...], flavour: str
) -> None:
    job = Job(toolchain="host", arch="", options=(), env=env, inputs=(), outputs=())
    assert HostToolchain().flavour(job) == flavour
