"""What a device is called, and who decides which one is meant."""

from __future__ import annotations

import pytest

from ptocache.errors import BadRequestError
from ptocache_cann import arch


@pytest.mark.parametrize(
    ("name", "option", "device", "pto"),
    [
        ("dav-2201", "--npu-arch=dav-2201", "dav-2201", "a3"),
        ("dav-3510", "--npu-arch=dav-3510", "dav-3510", "a5"),
        ("dav-c220", "--cce-aicore-arch=dav-c220", "dav-c220", "a3"),
        ("dav-c220-vec", "--cce-aicore-arch=dav-c220-vec", "dav-c220", "a3"),
        ("dav-c310", "--cce-aicore-arch=dav-c310", "dav-c310", "a5"),
        ("dav-m200", "--cce-aicore-arch=dav-m200", "dav-m200", ""),
        ("a2", "--npu-arch=dav-2201", "dav-2201", "a3"),
        ("a3", "--npu-arch=dav-2201", "dav-2201", "a3"),
        ("a2a3", "--npu-arch=dav-2201", "dav-2201", "a3"),
        ("A5", "--npu-arch=dav-3510", "dav-3510", "a5"),
        ("Ascend910B1", "--npu-arch=dav-2201", "dav-2201", "a3"),
        ("Ascend910_9382", "--npu-arch=dav-2201", "dav-2201", "a3"),
        ("Ascend910_9589", "--npu-arch=dav-3510", "dav-3510", "a5"),
        ("Ascend950PR", "--npu-arch=dav-3510", "dav-3510", "a5"),
        ("Ascend310P3", "--npu-arch=dav-2002", "dav-2002", ""),
    ],
)
def test_name_is_kept_and_understood(name: str, option: str, device: str, pto: str) -> None:
    found = arch.understood(name)
    assert found == (name, option, device)
    assert found.pto == pto


@pytest.mark.parametrize(
    "name",
    ["", "dav", "dav-", "dav-2201;rm", "dav-22 01", "-O2", "Ascend", "a4", "sm_90", "DAV-2201"],
)
def test_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(BadRequestError, match="no device is called") as caught:
        arch.understood(name)
    assert "dav-2201" in caught.value.hint
    assert "Ascend910B" in caught.value.hint


ENV = {"ASCEND_NPU_ARCH": "dav-2201"}


@pytest.mark.parametrize(
    ("wanted", "options", "env", "name"),
    [
        ("a5", (), ENV, "a5"),
        ("", ("--npu-arch=dav-3510",), ENV, "dav-3510"),
        ("", ("--cce-aicore-arch=dav-c310",), ENV, "dav-c310"),
        ("", (), ENV, "dav-2201"),
        ("", (), {"ASCEND_NPU_ARCH": ""}, "dav-3510"),
        ("", (), {}, "dav-3510"),
        ("Ascend910B1", ("--npu-arch=dav-2201",), {}, "Ascend910B1"),
        ("", ("--npu-arch=dav-2201", "--npu-arch=dav-2201"), {}, "dav-2201"),
    ],
)
def test_request_goes_before_options_before_the_variable_before_the_default(
    wanted: str, options: tuple[str, ...], env: dict[str, str], name: str
) -> None:
    device, _ = arch.choose(wanted, options, env)
    assert device.name == name


def test_options_that_name_the_device_are_taken_out_and_the_others_keep_their_order() -> None:
    _, rest = arch.choose("", ("-O1", "--npu-arch=dav-2201", "-DX", "-O3"), {})
    assert rest == ("-O1", "-DX", "-O3")


@pytest.mark.parametrize(
    ("wanted", "options", "words"),
    [
        ("", ("--npu-arch=dav-2201", "--npu-arch=dav-3510"), "two devices: dav-2201, dav-3510"),
        ("a5", ("--npu-arch=dav-2201",), "for a5 and its options for dav-2201"),
        ("Ascend910B1", ("--npu-arch=dav-3510",), "for Ascend910B1 and its options for dav-3510"),
        # A part of a core that only the option names would be lost.
        ("dav-c220", ("--cce-aicore-arch=dav-c220-vec",), "and its options for dav-c220-vec"),
    ],
)
def test_contradiction_is_refused(wanted: str, options: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        arch.choose(wanted, options, {})


def test_unknown_device_of_the_variable_is_refused_only_where_it_decides() -> None:
    env = {"ASCEND_NPU_ARCH": "nonsense"}
    assert arch.choose("dav-2201", (), env)[0].name == "dav-2201"
    with pytest.raises(BadRequestError, match="nonsense"):
        arch.choose("", (), env)
