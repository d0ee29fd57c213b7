"""The options of a PTO job: who comes first, and who reads what."""

from __future__ import annotations

import pytest

from ptocache.errors import BadRequestError
from ptocache.model import Job
from ptocache_pto import options


def job(*words: str, flags: str | None = None, arch: str = "", **env: str) -> Job:
    if flags is not None:
        env["PTO_FLAGS"] = flags
    return Job("pto", arch, words, tuple(sorted(env.items())), (), ())


def test_the_environment_comes_first_and_the_request_last() -> None:
    found = options.words_of(job("--pto-level=level3", "-O3", flags="--pto-level=level1 -O1"))
    assert found == ("--pto-level=level1", "-O1", "--pto-level=level3", "-O3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ()),
        ("  \n\t ", ()),
        ("-DX=1  -DY", ("-DX=1", "-DY")),
        ("-DX='a b'", ("-DX=a b",)),
        ('-DX="a \\"b\\""', ('-DX=a "b"',)),
        ("-DX=a\\ b", ("-DX=a b",)),
        ("'' -DX", ("", "-DX")),
        ("-DX=#1", ("-DX=#1",)),
        ("-DX=$HOME", ("-DX=$HOME",)),
    ],
)
def test_variable_is_split_as_a_shell_does_without_running_one(
    text: str, words: tuple[str, ...]
) -> None:
    assert options.words_of(job(flags=text)) == words


@pytest.mark.parametrize("text", ["-DX='open", '-DX="open', "-DX=\\"])
def test_open_quotation_is_refused_with_the_variable(text: str) -> None:
    with pytest.raises(BadRequestError, match=r"PTO_FLAGS=.* cannot be understood"):
        options.words_of(job(flags=text))


def test_words_go_to_the_tool_that_reads_them_in_their_order() -> None:
    _, found = options.split(
        job(
            "--kernel=b", "-O3", "--pto-level=level3", "-DX", "--kernel=a", "--enable-insert-sync",
            "--disable-infer-layout", "--emit-addptr-trace", "--mlir-print-ir-after-all",
            "--plan-memory=x", "--cce-enable-print", "-mllvm", "-x", "-I", "/i",
        )
    )  # fmt: skip
    assert found.kernels == ("b", "a")
    assert found.ptoas == (
        "--pto-level=level3", "--enable-insert-sync", "--disable-infer-layout",
        "--emit-addptr-trace", "--mlir-print-ir-after-all", "--plan-memory=x",
    )  # fmt: skip
    assert found.bisheng == ("-O3", "-DX", "--cce-enable-print", "-mllvm", "-x", "-I", "/i")


def test_operand_stays_with_its_option_whatever_it_looks_like() -> None:
    _, found = options.split(job("-mllvm", "--enable-x", "--enable-insert-sync"))
    assert found.bisheng == ("-mllvm", "--enable-x")
    assert found.ptoas == ("--enable-insert-sync",)


@pytest.mark.parametrize(
    ("words", "vpto"),
    [
        ((), False),
        (("--pto-backend=vpto",), True),
        (("--pto-backend=vpto", "--pto-backend=emitc"), False),
        (("--pto-backend=emitc", "--pto-backend=vpto"), True),
    ],
)
def test_last_word_on_the_back_end_decides(words: tuple[str, ...], vpto: bool) -> None:
    assert options.split(job(*words))[1].vpto is vpto
    assert options.split(job(flags=" ".join(words)))[1].vpto is vpto


def test_request_overrules_the_back_end_of_the_variable() -> None:
    assert not options.uses_vpto(job("--pto-backend=emitc", flags="--pto-backend=vpto"))


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (job("--pto-arch=a5", ASCEND_NPU_ARCH="dav-2201"), "a5"),
        (job(flags="--pto-arch=a3"), "a3"),
        (job("--pto-arch=a3", arch="Ascend910B1"), "Ascend910B1"),
        (job("--pto-arch=a3", "--npu-arch=dav-2201"), "a3"),
        (job(ASCEND_NPU_ARCH="dav-2201"), "dav-2201"),
        (job(), "dav-3510"),
    ],
)
def test_device_may_be_named_in_the_words_of_either_tool(asked: Job, name: str) -> None:
    device, found = options.split(asked)
    assert device.name == name
    assert not [word for word in (*found.ptoas, *found.bisheng) if "arch" in word]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (job("--pto-arch=a3", "--pto-arch=a5"), "two devices: a3, a5"),
        (job("--pto-arch=a3", flags="--pto-arch=a5"), "two devices: a3, a5"),
        (job("--pto-arch=a3", arch="dav-3510"), "for dav-3510 and its options for a3"),
        (job("--pto-arch=a5", "--npu-arch=dav-2201"), "for a5 and its options for dav-2201"),
        (job("--pto-arch=a9"), "no device is called 'a9'"),
    ],
)
def test_contradiction_is_refused(asked: Job, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        options.split(asked)
