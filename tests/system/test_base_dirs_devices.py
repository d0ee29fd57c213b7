"""Base directories with the device toolchains, with wrapped commands, and with an older daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pytest

from ptocache import wire
from ptocache.client import connect
from ptocache.digest import Digest
from ptocache.model import Answer, Artifact
from ptocache.outcome import Outcome
from tests.faults.fake_daemon import FakeDaemon
from tests.harness import DEADLINE_S, DaemonProcess
from tests.simcann import KERNEL, PTO, SimCann, depends_of, make_frontend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ptocache.result import Result
    from tests.faults.fake_daemon import Side

MISS, HIT = Outcome.MISS, Outcome.MEMORY_HIT
USES = '#include "tile.h"\nstatic const char place[] = __FILE__;\n'


class Rig(NamedTuple):
    cann: SimCann
    site: Path
    daemon: DaemonProcess

    def header(self, name: str) -> Path:
        """A header of the tree."""
        return next(self.cann.root.rglob(name))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    place = tmp_path_factory.mktemp("devices")
    cann = SimCann.make(place / "cann", ptoas="bin")
    make_frontend(place / "site")
    daemon = DaemonProcess(place / "store").start()
    yield Rig(cann, place / "site", daemon)
    daemon.clean_up()


def ask(
    rig: Rig, toolchain: str, inputs: dict[str, str], base: Path, *options: str, **more: Any
) -> Result:
    """Compile with one base."""
    env = {**rig.cann.env(PYTHONPATH=str(rig.site)), **more.pop("env", {})}
    with rig.daemon.client(request_base_dirs=[str(base)]) as client:
        return client.compile(
            toolchain, inputs, options=[word.replace("{here}", str(base)) for word in options],
            env=env, **more,
        )  # fmt: skip


def checkouts(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "one", tmp_path / "the" / "other"]
    for place in found:
        (place / "include").mkdir(parents=True)
        (place / "include" / "tile.h").write_text("#define TILE 1\nstatic char t[] = __FILE__;\n")
    return found


@pytest.mark.parametrize(
    ("toolchain", "inputs", "output"),
    [
        ("ascendc", {"k.asc": KERNEL + USES}, "aibin"),
        ("ascendc", {"k.asc": KERNEL + USES}, "object"),
        ("pto", {"k.cpp": KERNEL + USES}, "fatobj"),
    ],
    ids=["ascendc aibin", "ascendc object", "pto fatobj"],
)
def test_checkouts_share_device_code_and_a_changed_header_is_a_miss(
    rig: Rig, tmp_path: Path, toolchain: str, inputs: dict[str, str], output: str
) -> None:
    inputs = {name: f"{text}// {tmp_path.name}\n" for name, text in inputs.items()}
    places = checkouts(tmp_path)
    words = ("-I", "{here}/include")
    found = [ask(rig, toolchain, inputs, place, *words, outputs=[output]) for place in places]
    assert [item.outcome for item in found] == [MISS, HIT]
    data = bytes(found[0].outputs[output].buffer)
    assert "base0/include/tile.h" in depends_of(data)
    assert str(tmp_path).encode() not in data
    (places[1] / "include" / "tile.h").write_text("#define TILE 2\n")
    again = [ask(rig, toolchain, inputs, place, *words, outputs=[output]) for place in places]
    assert [item.outcome for item in again] == [HIT, MISS]


def test_a_link_into_the_toolchain_is_no_promise_for_another_checkout(
    rig: Rig, tmp_path: Path
) -> None:
    inputs = {"k.asc": f'{KERNEL}#include "linked.h"\n// {tmp_path.name}\n'}
    one, other = checkouts(tmp_path)
    (one / "include" / "linked.h").symlink_to(rig.header("kernel_operator.h"))
    (other / "include" / "linked.h").write_text("#define OTHER 1\n")
    found = [ask(rig, "ascendc", inputs, base, "-I", "{here}/include") for base in (one, other)]
    assert [item.outcome for item in found] == [MISS, MISS]
    assert found[0].key == found[1].key


def test_ptoas_chain_shares_what_bisheng_reads_below_a_base(rig: Rig, tmp_path: Path) -> None:
    inputs = {"k.pto": f"{PTO}// {tmp_path.name}\n"}
    words = ("--pto-level=level2", "-I", "{here}/include")
    found = [ask(rig, "pto", inputs, place, *words).outcome for place in checkouts(tmp_path)]
    assert found == [MISS, HIT]


def test_a_python_source_is_keyed_without_bases(rig: Rig, tmp_path: Path) -> None:
    inputs = {"k.py": f"print('// {tmp_path.name}')\n"}
    found = [
        ask(rig, "pto", inputs, place, "-I", "{here}/include") for place in checkouts(tmp_path)
    ]
    assert [item.outcome for item in found] == [MISS, MISS]


def test_a_base_in_the_toolchain_or_around_it_is_told_from_any_other(
    rig: Rig, tmp_path: Path
) -> None:
    """What the tree holds is no dependency: where a base lies in it must not be taken for another place."""
    inputs = {"k.asc": f"{KERNEL}// {tmp_path.name}\n"}
    inside, around, apart = rig.cann.root / "include", rig.cann.root.parent, tmp_path / "apart"
    apart.mkdir()
    found = [ask(rig, "ascendc", inputs, base) for base in (apart, inside, around)]
    assert len({item.key for item in found}) == 3
    with rig.daemon.client() as plain:
        same = plain.compile("ascendc", inputs, env=rig.cann.env(PYTHONPATH=str(rig.site)))
    assert (same.key, same.outcome) == (found[1].key, HIT), "a base in the tree does not count"


def test_a_wrapped_command_takes_no_notice_of_bases(rig: Rig, tmp_path: Path) -> None:
    """Who wraps a compiler gets its own bytes."""
    source = tmp_path / "k.c"
    source.write_text(f"const char *f(void) {{ return __FILE__; }} /* {tmp_path.name} */\n")
    env = {**rig.daemon.env, "PTOCACHE_WRAP_EXPLAIN": "1"}
    made = []
    for bases in ("", str(tmp_path)):
        done = subprocess.run(
            [
                sys.executable, "-m", "ptocache_cli", "wrap", "--", "gcc", "-g", "-c", str(source),
                "-o", str(tmp_path / "k.o"),
            ],
            env={**env, "PTOCACHE_BASE_DIRS": bases}, cwd=tmp_path, capture_output=True, text=True,
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        made.append((done.stderr.split(": ")[2].strip(), (tmp_path / "k.o").read_bytes()))
    assert [outcome for outcome, _ in made] == ["miss", "memory_hit"]
    assert made[0][1] == made[1][1]
    assert os.fsencode(source) in made[1][1]


@pytest.mark.parametrize("knows", [True, False])
def test_a_daemon_that_knows_no_bases_is_not_told_of_them(tmp_path: Path, knows: bool) -> None:
    heard: list[dict[str, Any]] = []
    known = [item for item in wire.CAPABILITIES if knows or item != wire.BASE_DIRS]

    def script(side: Side) -> None:
        side.greet(capabilities=known)
        message = side.hear()
        heard.append(msgpack.unpackb(message["request"]))
        output = Artifact("object", Digest.of(b"made"), 0o644, b"made")
        answer = Answer(Outcome.MEMORY_HIT, "ab" * 32, artifacts=(output,))
        side.say(wire.answer_message(message["id"], answer)[0])

    with FakeDaemon(script) as fake:
        env = {"PTOCACHE_SOCKET": str(fake.path), "PTOCACHE_DIR": str(fake.place / "store")}
        env["PTOCACHE_BASE_DIRS"] = str(tmp_path)
        with connect(env=env, client_require=True, client_autostart=False) as client:
            found = client.compile("host", {"k.c": "int a;"}, env={}, outputs=["object"])
    assert bytes(found.outputs["object"].buffer) == b"made"
    assert [item.get("bases") for item in heard] == [[str(tmp_path)] if knows else None]
