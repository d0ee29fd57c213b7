"""Whatever the bytes are: our error or an answer that an independent reading confirms.

``PTOCACHE_FUZZ_EXAMPLES`` sets the number of images of each test (default 100), for long runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from ptocache import elf
from ptocache.errors import ElfError
from tests import elf_builder as b
from tests.elf_builder import Sec, Seg, Sym
from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = int(os.environ.get("PTOCACHE_FUZZ_EXAMPLES", "100"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

LARGEST = (1 << 64) - 1
READERS = (
    elf.is_elf,
    elf.inspect,
    elf.check,
    lambda data: elf.check(data, machine=elf.AICORE_MACHINE, types=("EXEC",), symbols=["kernel"]),
    elf.defined_symbols,
    elf.needed_libraries,
    elf.nested_images,
    lambda data: elf.nested_images(data, ".text", machine=None),
    lambda data: elf.check_device(data, arch="dav-2201", types=("EXEC", "REL"), symbols=["kernel"]),
    lambda data: elf.check_fat(data, machine=b.X86_64, arch="dav-2201", symbols=["kernel"]),
    elf.check_any,
    elf.section_bytes,
    elf.entry_symbols,
)


class Base(NamedTuple):
    """An image to damage; every one is accepted as it is."""

    name: str
    data: bytes


def built() -> list[Base]:
    device = b.device_image("kernel", "kernel_mix_aic")
    everything = b.build(
        sections=(
            Sec(".text", b"\x90" * 40, align=16),
            Sec(".rela.text", bytes(48), b.RELA, align=8, link=4, entry_size=24),
            Sec(".bss", type=b.NOBITS, size=1 << 40),
        ),
        segments=(Seg(""), Seg(".text", align=4096), Seg(".bss", memory_size=1 << 40)),
        symbols=[Sym("kernel"), Sym("other", section=0)],
        dynamic_symbols=[Sym("kernel", binding=b.WEAK)],
    )
    # A segment over .bss describes bytes that are not in the file.
    everything = b.set_segment(everything, 2, "p_filesz", 0)
    return [
        Base("device", device),
        Base("noted", b.device_image("kernel", notes=[Sec(".note", b"dav-2201", type=b.NOTE)])),
        Base("fat", b.fat_object(device, b.device_image("two"), device, padding=5)),
        Base("everything", everything),
        Base("extended", b.build(symbols=[Sym("kernel")], segments=(Seg(""),), extended=True)),
        Base("dynamic", b.dynamic_executable(needed=["liba.so", "libb.so"], runpath="/x:/y")),
        Base("big", b.build(machine=21, byte_order="big", symbols=[Sym("kernel")])),
    ]


def real() -> list[Base]:
    """An object and a library of this machine's compiler, and a program of its system."""
    found = []
    program = shutil.which("true")
    if program:
        found.append(Base("program", Path(program).resolve().read_bytes()))
    if shutil.which("cc"):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "tiny.c")
            source.write_text("int data[9] = {1}; int kernel(int x) { return x + data[1]; }\n")
            for name, flags in (("tiny.o", ["-c", "-g"]), ("tiny.so", ["-shared", "-fPIC"])):
                output = Path(folder, name)
                subprocess.run(["cc", *flags, source, "-o", output], check=True, timeout=DEADLINE_S)
                found.append(Base(name, output.read_bytes()))
    return [base for base in found if elf.is_elf(base.data)]


@lru_cache(maxsize=1)
def bases() -> tuple[Base, ...]:
    return (*built(), *real())


BASES = st.deferred(lambda: st.sampled_from(bases()))


@st.composite
def numbers(draw: st.DrawFn, limit: int, file_size: int) -> int:
    """Numbers where mistakes live: around zero, the file's size, powers of two and the limit."""
    anchor = draw(st.sampled_from([0, file_size, 1 << 16, 1 << 31, 1 << 32, 1 << 63, limit]))
    near = st.integers(-70, 70).map(lambda step: anchor + step)
    value = draw(near | st.integers(0, limit) | st.integers(0, file_size))
    return min(max(value, 0), limit)


@st.composite
def field_changed(draw: st.DrawFn, data: bytes) -> bytes:
    kinds = ["header"]
    if b.header_field(data, "e_shoff"):
        kinds.append("section")
    if b.header_field(data, "e_phoff"):
        kinds.append("segment")
    kind = draw(st.sampled_from(kinds))
    fields = {"header": b.HEADER_FIELDS, "section": b.SECTION_FIELDS, "segment": b.SEGMENT_FIELDS}
    field = draw(st.sampled_from(fields[kind]))
    value = draw(numbers(b.field_limit(field), len(data)))
    if kind == "header":
        return b.set_header(data, field, value)
    if kind == "section":
        return b.set_section(data, draw(st.integers(0, b.section_count(data) - 1)), field, value)
    segments = b.header_field(data, "e_phnum")
    count = b.section_field(data, 0, "sh_info") if segments == b.EXTENDED else segments
    return b.set_segment(data, draw(st.integers(0, count - 1)), field, value)


@st.composite
def bits_flipped(draw: st.DrawFn, data: bytes) -> bytes:
    changed = bytearray(data)
    header_or_anywhere = st.integers(0, 63) | st.integers(0, len(data) - 1)
    for offset in draw(st.lists(header_or_anywhere, min_size=1, max_size=8)):
        changed[offset] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


@st.composite
def range_replaced(draw: st.DrawFn, data: bytes) -> bytes:
    start = draw(st.integers(0, len(data)))
    end = draw(st.integers(start, min(start + 200, len(data))))
    return data[:start] + draw(st.binary(max_size=200)) + data[end:]


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> bytes:
    return data[: draw(st.integers(0, len(data)))]


@st.composite
def two_fields_changed(draw: st.DrawFn, data: bytes) -> bytes:
    start, size = sorted(draw(st.lists(st.integers(0, len(data)), min_size=2, max_size=2)))
    number = draw(st.integers(0, b.section_count(data) - 1))
    data = b.set_section(data, number, "sh_offset", start)
    return b.set_section(data, number, "sh_size", size - start)


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    data = draw(BASES).data
    way = draw(
        st.sampled_from([field_changed, bits_flipped, range_replaced, cut, two_fields_changed])
    )
    return draw(way(data))


def refusal(read: Callable[[bytes], object], data: bytes) -> ElfError | None:
    try:
        read(data)
    except ElfError as error:
        return error
    return None


def read_every_way(data: bytes) -> None:
    for read in READERS:
        error = refusal(read, data)
        if error is not None:
            assert error.code == "bad_elf"
            assert error.message
            assert len(str(error)) < 600
            assert str(error).encode()


def assert_in_bounds(data: bytes) -> None:
    """What an accepted image must be, read by the builder's own means."""
    if b.header_field(data, "e_shoff"):
        for number in range(b.section_count(data)):
            if b.section_field(data, number, "sh_type") not in (b.NULL, b.NOBITS):
                offset = b.section_field(data, number, "sh_offset")
                assert offset + b.section_field(data, number, "sh_size") <= len(data)
    segments = b.header_field(data, "e_phnum")
    for number in range(b.section_field(data, 0, "sh_info") if segments == 0xFFFF else segments):
        if b.segment_field(data, number, "p_type") != b.PT_NULL:
            offset = b.segment_field(data, number, "p_offset")
            assert offset + b.segment_field(data, number, "p_filesz") <= len(data)


@pytest.mark.parametrize("number", range(len(built())))
def test_bases_are_accepted(number: int) -> None:
    elf.check(built()[number].data)


def test_real_bases_are_accepted() -> None:
    for base in real():
        elf.check(base.data, machine=elf.host_machine())


@fuzz
@given(st.binary(max_size=400))
@example(b"")
@example(b"\x7fELF")
@example(b"\x7fELF\x02\x01\x01" + bytes(57))
@example(b"\x7fELF\x02\x01\x01" + b"\xff" * 57)
def test_arbitrary_bytes(data: bytes) -> None:
    read_every_way(data)


@fuzz
@given(st.sampled_from([1, 2]), st.binary(min_size=57, max_size=700))
def test_arbitrary_bytes_after_an_identification(order: int, rest: bytes) -> None:
    read_every_way(b"\x7fELF\x02" + bytes([order, 1]) + rest)


@fuzz
@given(mutants())
def test_mutants_raise_nothing_else(data: bytes) -> None:
    read_every_way(data)


@fuzz
@given(mutants())
def test_accepted_mutants_are_in_bounds(data: bytes) -> None:
    try:
        elf.check(data)
    except ElfError:
        return
    assert_in_bounds(data)


@fuzz
@given(st.data())
def test_section_moved_out_of_bounds_is_rejected(choices: st.DataObject) -> None:
    data = choices.draw(BASES).data
    number = choices.draw(st.integers(1, b.section_count(data) - 1))
    assume(b.section_field(data, number, "sh_type") not in (b.NULL, b.NOBITS))
    size = b.section_field(data, number, "sh_size")
    if choices.draw(st.booleans()):
        size = choices.draw(numbers(LARGEST, len(data)))
        data = b.set_section(data, number, "sh_size", size)
    first_bad = max(len(data) - size + 1, 0)
    offset = choices.draw(
        st.integers(first_bad, LARGEST)
        | st.integers(first_bad, first_bad + 70)
        | st.integers(LARGEST - 70, LARGEST)
    )
    with pytest.raises(ElfError):
        elf.check(b.set_section(data, number, "sh_offset", offset))


@fuzz
@given(st.data())
def test_segment_moved_out_of_bounds_is_rejected(choices: st.DataObject) -> None:
    data = choices.draw(BASES.filter(lambda base: b.header_field(base.data, "e_phnum"))).data
    count = len(elf.inspect(data).segments)
    number = choices.draw(st.integers(0, count - 1))
    assume(b.segment_field(data, number, "p_type") != b.PT_NULL)
    first_bad = len(data) - b.segment_field(data, number, "p_filesz") + 1
    offset = choices.draw(st.integers(first_bad, LARGEST) | st.integers(first_bad, first_bad + 70))
    with pytest.raises(ElfError):
        elf.check(b.set_segment(data, number, "p_offset", offset))


@fuzz
@given(st.data())
def test_every_truncation_is_rejected(choices: st.DataObject) -> None:
    data = choices.draw(BASES).data
    with pytest.raises(ElfError):
        elf.check(data[: choices.draw(st.integers(0, elf.inspect(data).end - 1))])


@fuzz
@given(st.lists(st.tuples(st.text("abc_", min_size=1), st.integers(0, 300)), max_size=5), st.data())
def test_nested_images_are_found_as_they_were_put(
    kernels: list[tuple[str, int]], choices: st.DataObject
) -> None:
    images = [b.device_image(name, content=bytes(size)) for name, size in kernels]
    data = b.fat_object(*images, padding=choices.draw(st.integers(0, 40)))
    if not images:
        with pytest.raises(ElfError):
            elf.nested_images(data)
        return
    found = elf.nested_images(data)
    assert [data[item.offset : item.offset + item.size] for item in found] == images
    for item, (name, _) in zip(found, kernels, strict=True):
        assert elf.defined_symbols(data[item.offset : item.offset + item.size]) == {name}


@fuzz
@given(st.data())
def test_accepted_mutants_of_a_fat_object_are_images_and_zeros(choices: st.DataObject) -> None:
    way = choices.draw(st.sampled_from([bits_flipped, range_replaced, field_changed]))
    content = b.section_content(built()[2].data, ".aicore_binary")
    data = b.fat_object(choices.draw(way(content)))
    try:
        found = elf.nested_images(data)
    except ElfError:
        return
    holder = b.section_field(data, ".aicore_binary", "sh_offset")
    position = holder
    for item in found:
        assert not data[position : item.offset].strip(b"\0")
        image = data[item.offset : item.offset + item.size]
        assert_in_bounds(image)
        assert elf.check(image, machine=elf.AICORE_MACHINE) == item.image
        position = item.offset + item.size
    end = holder + b.section_field(data, ".aicore_binary", "sh_size")
    assert position <= end
    assert not data[position:end].strip(b"\0")
