"""One test per rule of :mod:`ptocache.elf`: at the limit, and one beyond it on each side."""

from __future__ import annotations

import array
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pytest
from elftools.common.exceptions import ELFError

from ptocache import elf
from ptocache.elf import device, headers, nested
from ptocache.errors import ElfError, from_wire
from tests import elf_builder as b
from tests.elf_builder import Sec, Seg, Sym
from tests.harness import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLAIN = b.build(
    sections=(
        Sec(".text", b"\x90" * 16, align=16),
        Sec(".data", b"d" * 10),
        Sec(".bss", type=b.NOBITS, size=1 << 40),
        Sec(".rela.text", bytes(24), b.RELA, link=1, entry_size=24, align=8),
    ),
    segments=(Seg(".text", align=4096),),
    symbols=[Sym("first"), Sym("local", binding=b.LOCAL), Sym("missing", section=0)],
)
FILE = len(PLAIN)
TOO_LARGE = (1 << 64) - 1

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def refusal(data: elf.Data, **wanted: Any) -> ElfError:
    with pytest.raises(ElfError) as caught:
        elf.check(data, **wanted)
    assert caught.value.code == "bad_elf"
    return caught.value


def assert_refused(data: elf.Data, rule: str, **fields: Any) -> ElfError:
    error = refusal(data)
    assert error.fields["rule"] == rule, error
    assert {name: error.fields.get(name) for name in fields} == fields
    return error


def answer(read: Callable[[elf.Data], object], data: elf.Data) -> object:
    try:
        return read(data)
    except ElfError as error:
        return error


# Reading


def test_inspect_tells_what_the_headers_say() -> None:
    image = elf.inspect(b.device_image("kernel", flags=0x940000))
    assert (image.bits, image.byte_order, image.type) == (64, "little", "EXEC")
    assert (image.machine, image.machine_name) == (elf.AICORE_MACHINE, "aicore")
    assert image.flags == 0x940000
    text = image.section(".text")
    assert text is not None
    assert (text.type, text.size, text.align, text.in_file) == ("PROGBITS", 64, 4, True)
    bss = image.section(".bss")
    assert bss is not None
    assert not bss.in_file
    assert [segment.type for segment in image.segments] == ["LOAD"]
    assert image.section(".nothing") is None


def test_an_image_ends_where_its_last_part_ends() -> None:
    assert elf.inspect(PLAIN).end == FILE
    assert elf.inspect(PLAIN + b"tail").end == FILE
    assert elf.inspect(b.set_section(PLAIN, ".data", "sh_size", FILE + 5)).end > FILE + 5


def test_inspect_shows_what_check_refuses() -> None:
    broken = b.set_section(PLAIN, ".data", "sh_offset", TOO_LARGE)
    shown = elf.inspect(broken).section(".data")
    assert shown is not None
    assert shown.offset == TOO_LARGE
    assert_refused(broken, "section_bounds")


def test_numbers_without_a_name_are_shown_in_hexadecimal() -> None:
    data = b.build(machine=0xBEEF, file_type=0xFE42, sections=(Sec(".x", b"x", type=0x70001234),))
    image = elf.inspect(data)
    assert (image.machine_name, image.type) == ("0xbeef", "0xfe42")
    assert image.sections[1].type == "0x70001234"


@pytest.mark.parametrize("osabi", range(256))
def test_any_operating_system_number_is_allowed(osabi: int) -> None:
    assert elf.check(b.set_byte(PLAIN, 7, osabi)).type == "REL"


@pytest.mark.parametrize(
    "wrap", [bytes, bytearray, memoryview, lambda data: memoryview(array.array("B", data))]
)
def test_any_kind_of_buffer_is_read(wrap: Any) -> None:
    assert elf.is_elf(wrap(PLAIN))
    assert elf.check(wrap(PLAIN)) == elf.check(PLAIN)


def test_a_buffer_of_wider_items_is_read_as_bytes() -> None:
    data = PLAIN + bytes(-len(PLAIN) % 4)
    assert elf.is_elf(memoryview(array.array("I", data)))
    assert elf.check(memoryview(array.array("I", data))).end == FILE


@pytest.mark.parametrize("broken", [False, True])
def test_a_map_can_be_closed_at_once_even_while_the_error_lives(
    tmp_path: Path, broken: bool
) -> None:
    fat = b.fat_object(b.device_image("one"), b.device_image("two"))
    path = tmp_path / "image"
    path.write_bytes(b.set_header(fat, "e_shstrndx", 1) if broken else fat)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    readers = (elf.check, elf.nested_images, elf.defined_symbols)
    kept = [answer(read, mapped) for read in readers]
    mapped.close()
    assert [isinstance(item, ElfError) for item in kept] == [broken] * len(readers)


def test_is_elf() -> None:
    assert elf.is_elf(b"\x7fELF")
    assert not elf.is_elf(b"\x7fEL")
    assert not elf.is_elf(b"")
    assert not elf.is_elf(b"#!/bin/sh")


# Header


@pytest.mark.parametrize("size", [0, 1, 3])
def test_magic_cut(size: int) -> None:
    assert_refused(PLAIN[:size], "magic")


def test_magic_wrong() -> None:
    assert_refused(b.set_byte(PLAIN, 3, ord("f")), "magic")


@pytest.mark.parametrize("size", [4, 5, 16, 63])
def test_header_cut(size: int) -> None:
    assert_refused(PLAIN[:size], "header_size", size=64, file_size=size)


def test_a_header_alone_is_a_whole_image() -> None:
    bare = PLAIN[:64]
    for field in ("e_phoff", "e_phnum", "e_shoff", "e_shnum", "e_shstrndx"):
        bare = b.set_header(bare, field, 0)
    image = elf.check(bare)
    assert (image.sections, image.segments, image.end) == ((), (), 64)


@pytest.mark.parametrize("value", [0, 1, 3, 255])
def test_class(value: int) -> None:
    assert_refused(b.set_byte(PLAIN, 4, value), "class", found=value)


@pytest.mark.parametrize("value", [0, 3, 255])
def test_byte_order_number(value: int) -> None:
    assert_refused(b.set_byte(PLAIN, 5, value), "byte_order", found=value)


@pytest.mark.parametrize("machine", [b.X86_64, b.AICORE])
def test_byte_order_of_a_little_endian_machine(machine: int) -> None:
    elf.check(b.build(machine=machine, byte_order="little"))
    assert_refused(b.build(machine=machine, byte_order="big"), "byte_order", wanted="little")


@pytest.mark.parametrize("byte_order", ["little", "big"])
def test_byte_order_of_this_machine(monkeypatch: pytest.MonkeyPatch, byte_order: str) -> None:
    s390x = 22
    monkeypatch.setattr(headers, "host_machine", lambda: s390x)
    monkeypatch.setattr(sys, "byteorder", byte_order)
    images = {order: b.build(machine=s390x, byte_order=order) for order in ("little", "big")}
    assert elf.check(images.pop(byte_order)).byte_order == byte_order
    assert_refused(images.popitem()[1], "byte_order", wanted=byte_order)


def test_other_machines_may_have_either_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "host_machine", lambda: b.X86_64)
    data = b.build(
        machine=b.AARCH64,
        byte_order="big",
        extended=True,
        symbols=[Sym("big")],
        segments=(Seg(".text"),),
    )
    image = elf.check(data, machine=b.AARCH64, symbols=["big"])
    assert (image.byte_order, image.machine_name) == ("big", "aarch64")
    assert elf.defined_symbols(data) == {"big"}


@pytest.mark.parametrize("value", [0, 2])
def test_version(value: int) -> None:
    assert_refused(b.set_byte(PLAIN, 6, value), "version")
    assert_refused(b.set_header(PLAIN, "e_version", value), "version")


def test_images_of_cuda_have_versions_of_their_own() -> None:
    """Seen in a cubin of Triton 3.9.0."""
    cuda = 190
    data = b.set_header(b.build(machine=cuda), "e_version", 129)
    assert elf.check(data, machine=cuda).machine_name == "cuda"


@pytest.mark.parametrize("field", ["e_ehsize", "e_shentsize", "e_phentsize"])
@pytest.mark.parametrize("step", [-1, 1])
def test_sizes_of_the_structures(field: str, step: int) -> None:
    size = b.header_field(PLAIN, field)
    assert_refused(
        b.set_header(PLAIN, field, size + step), "header_size", wanted=size, found=size + step
    )


def test_sizes_of_absent_tables_do_not_matter() -> None:
    elf.check(b.set_header(b.build(), "e_phentsize", 99))


# Tables of headers


def test_section_table_ends_exactly_at_the_end_of_the_file() -> None:
    elf.check(PLAIN)
    elf.check(PLAIN + b"\0")
    assert_refused(PLAIN[:-1], "section_table", file_size=FILE - 1)


@pytest.mark.parametrize("offset", [FILE - 63, FILE, FILE + 1, 1 << 63, TOO_LARGE - 63, TOO_LARGE])
def test_section_table_beyond_the_file(offset: int) -> None:
    data = b.set_header(PLAIN, "e_shoff", offset)
    assert_refused(data, "section_table", offset=offset, file_size=FILE)


def test_section_count_at_the_table_s_end() -> None:
    count = b.header_field(PLAIN, "e_shnum")
    assert_refused(b.set_header(PLAIN, "e_shnum", count + 1), "section_table")
    grown = b.set_header(PLAIN + bytes(64), "e_shnum", count + 1)
    assert len(elf.check(grown).sections) == count + 1


def test_sections_without_a_table() -> None:
    data = b.set_header(PLAIN, "e_shoff", 0)
    assert_refused(data, "section_count")
    assert elf.check(b.set_header(data, "e_shnum", 0)).sections == ()


def test_segment_table_within_the_file() -> None:
    last = FILE - b.SEGMENT_BYTES
    elf.inspect(b.set_header(PLAIN, "e_phoff", last))
    for offset in (last + 1, FILE, TOO_LARGE):
        assert_refused(b.set_header(PLAIN, "e_phoff", offset), "segment_table", offset=offset)


def test_segments_without_a_table() -> None:
    data = b.set_header(PLAIN, "e_phoff", 0)
    assert_refused(data, "segment_count")
    assert elf.check(b.set_header(data, "e_phnum", 0)).segments == ()


# The extended form


def test_extended_form_reads_the_same() -> None:
    symbols = [Sym("kernel")]
    plain = b.build(symbols=symbols, segments=(Seg(".text"),))
    extended = b.build(symbols=symbols, segments=(Seg(".text"),), extended=True)
    assert b.header_field(extended, "e_shnum") == 0
    assert b.header_field(extended, "e_phnum") == b.EXTENDED
    first, second = elf.check(plain, symbols=["kernel"]), elf.check(extended, symbols=["kernel"])
    assert second.sections[1:] == first.sections[1:]
    assert second.segments == first.segments


def test_extended_form_with_as_many_sections_as_need_it() -> None:
    count = 0xFF00
    data = b.build(sections=[Sec(".text.f", b"c")] * count, extended=True)
    assert len(elf.check(data).sections) == count + 2
    assert_refused(data[:-1], "section_table")


def test_plain_form_ends_where_the_reserved_numbers_begin() -> None:
    empty = bytes(64 * (0xFF00 - b.header_field(PLAIN, "e_shnum")))
    most = b.set_header(PLAIN + empty, "e_shnum", 0xFEFF)
    assert len(elf.check(most).sections) == 0xFEFF
    assert_refused(b.set_header(most, "e_shnum", 0xFF00), "section_count", found=0xFF00)


@pytest.mark.parametrize("count", [elf.MAX_HEADERS + 1, 1 << 40, TOO_LARGE])
def test_extended_section_count_is_bounded_before_anything_is_read(count: int) -> None:
    data = b.set_section(b.build(extended=True), 0, "sh_size", count)
    started = perf_counter()
    assert_refused(data, "section_count", found=count)
    assert perf_counter() - started < 1.0


def test_extended_section_count_at_its_limit_is_a_matter_of_the_file_s_size() -> None:
    data = b.set_section(b.build(extended=True), 0, "sh_size", elf.MAX_HEADERS)
    assert_refused(data, "section_table", size=64 * elf.MAX_HEADERS)
    exact = b.section_count(b.build(extended=True))
    for count, rule in ((exact + 1, "section_table"), (0, "section_count")):
        assert_refused(b.set_section(b.build(extended=True), 0, "sh_size", count), rule)


def test_extended_segment_count() -> None:
    data = b.build(segments=(Seg(".text"),), extended=True)
    for count, rule in (
        (0, "segment_count"),
        (elf.MAX_HEADERS, "segment_table"),
        (elf.MAX_HEADERS + 1, "segment_count"),
        ((1 << 32) - 1, "segment_count"),
    ):
        assert_refused(b.set_section(data, 0, "sh_info", count), rule)
    without_sections = b.set_header(data, "e_shoff", 0)
    assert_refused(without_sections, "segment_count")


def test_extended_name_table_index() -> None:
    data = b.build(extended=True)
    count = b.section_count(data)
    for index in (count, (1 << 32) - 1):
        assert_refused(b.set_section(data, 0, "sh_link", index), "name_table", section=index)
    assert_refused(b.set_section(data, 0, "sh_link", 1), "name_table", found="PROGBITS")


# Names of sections


def test_name_table_index() -> None:
    count = b.header_field(PLAIN, "e_shnum")
    for index in (count, count + 1, 0xFF00, 0xFFFE):
        assert_refused(b.set_header(PLAIN, "e_shstrndx", index), "name_table", section=index)
    for index, kind in ((0, "NULL"), (1, "PROGBITS")):
        data = b.set_header(PLAIN, "e_shstrndx", index)
        assert_refused(data, "name_table", wanted="STRTAB", found=kind)


def test_name_table_within_the_file() -> None:
    offset = b.section_field(PLAIN, ".shstrtab", "sh_offset")
    data = b.set_section(PLAIN, ".shstrtab", "sh_size", FILE - offset)
    elf.check(data)
    number = b.section_number(PLAIN, ".shstrtab")
    data = b.set_section(PLAIN, number, "sh_size", FILE - offset + 1)
    assert_refused(data, "section_bounds", section=number, offset=offset, file_size=FILE)


def test_name_within_the_name_table() -> None:
    size = b.section_field(PLAIN, ".shstrtab", "sh_size")
    image = elf.check(b.set_section(PLAIN, 2, "sh_name", size - 1))
    assert image.sections[2].name == ""
    for offset in (size, size + 1, (1 << 32) - 1):
        data = b.set_section(PLAIN, 2, "sh_name", offset)
        assert_refused(data, "section_name", section=2, offset=offset, size=size)


def test_name_has_an_end() -> None:
    number = b.section_number(PLAIN, ".shstrtab")
    size = b.section_field(PLAIN, number, "sh_size")
    data = b.set_section(PLAIN, number, "sh_size", size - 1)
    assert_refused(data, "section_name", section=number)


def test_an_empty_name_table_names_nothing() -> None:
    nameless = b.build(sections=(Sec("", b"x"),))
    number = b.section_number(nameless, ".shstrtab")
    data = b.set_section(nameless, number, "sh_size", 0)
    assert_refused(data, "section_name", section=number)
    data = b.set_section(data, number, "sh_name", 0)
    assert {section.name for section in elf.check(data).sections} == {""}


def test_names_that_are_not_text_stay_valid_text() -> None:
    offset = b.section_field(PLAIN, ".shstrtab", "sh_offset")
    name = elf.check(b.set_byte(PLAIN, offset + 2, 0xFF)).sections[1].name
    assert name == ".\\xffext"


def test_overlapping_names_do_not_multiply_memory() -> None:
    length = 20_000
    sections = [Sec("n" * length), *[Sec("", b"")] * 2_000]
    data = bytearray(b.build(sections=sections))
    table = b.header_field(bytes(data), "e_shoff")
    for number in range(2, 2_002):
        start = table + number * 64
        data[start : start + 4] = number.to_bytes(4, "little")
    tracemalloc.start()
    try:
        assert_refused(data, "string")
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
    finally:
        tracemalloc.stop()


# Sections


@pytest.mark.parametrize("name", [".text", ".data", ".symtab", ".strtab"])
def test_section_ends_exactly_at_the_end_of_the_file(name: str) -> None:
    size = b.section_field(PLAIN, name, "sh_size")
    number = b.section_number(PLAIN, name)
    elf.check(b.set_section(PLAIN, number, "sh_offset", FILE - size))
    for offset in (FILE - size + 1, FILE, FILE + 1, (1 << 64) - size, TOO_LARGE):
        data = b.set_section(PLAIN, number, "sh_offset", offset)
        error = assert_refused(
            data, "section_bounds", section=name, offset=offset, size=size, file_size=FILE
        )
        for part in (name, str(offset), str(size), str(FILE)):
            assert part in error.message


def test_section_grows_to_the_end_of_the_file() -> None:
    offset = b.section_field(PLAIN, ".data", "sh_offset")
    elf.check(b.set_section(PLAIN, ".data", "sh_size", FILE - offset))
    for size in (FILE - offset + 1, (1 << 64) - offset, TOO_LARGE):
        data = b.set_section(PLAIN, ".data", "sh_size", size)
        assert_refused(data, "section_bounds", section=".data", size=size)


def test_empty_section_within_the_file() -> None:
    data = b.set_section(PLAIN, ".data", "sh_size", 0)
    elf.check(b.set_section(data, ".data", "sh_offset", FILE))
    assert_refused(b.set_section(data, ".data", "sh_offset", FILE + 1), "section_bounds")


@pytest.mark.parametrize("kind", [b.NULL, b.NOBITS])
def test_sections_without_bytes_in_the_file_may_be_anywhere(kind: int) -> None:
    data = b.set_section(PLAIN, ".data", "sh_type", kind)
    data = b.set_section(data, ".data", "sh_offset", TOO_LARGE)
    image = elf.check(b.set_section(data, ".data", "sh_size", TOO_LARGE))
    assert image.end == FILE


@pytest.mark.parametrize("align", [0, 1, 2, 1 << 63])
def test_section_alignment(align: int) -> None:
    elf.check(b.set_section(PLAIN, ".data", "sh_addralign", align))


@pytest.mark.parametrize("align", [3, 6, (1 << 63) + 1, (1 << 63) - 1, TOO_LARGE])
def test_section_alignment_that_is_no_power_of_two(align: int) -> None:
    for name in (".data", ".bss"):
        data = b.set_section(PLAIN, name, "sh_addralign", align)
        assert_refused(data, "section_align", section=name, found=align)


@pytest.mark.parametrize("name", [".symtab", ".rela.text"])
def test_section_link(name: str) -> None:
    count = b.section_count(PLAIN)
    for link in (count, count + 1, (1 << 32) - 1):
        data = b.set_section(PLAIN, name, "sh_link", link)
        assert_refused(data, "section_link", section=name, found=link)


def test_section_link_of_relocations_reaches_the_last_section() -> None:
    elf.check(b.set_section(PLAIN, ".rela.text", "sh_link", b.section_count(PLAIN) - 1))
    elf.check(b.set_section(PLAIN, ".rela.text", "sh_link", 0))


@pytest.mark.parametrize("link", [0, 1])
def test_section_link_of_symbols_is_a_string_table(link: int) -> None:
    data = b.set_section(PLAIN, ".symtab", "sh_link", link)
    assert_refused(data, "section_link", section=".symtab", wanted="STRTAB")


@pytest.mark.parametrize("size", [0, 1, 23, 25, TOO_LARGE])
def test_size_of_a_symbol(size: int) -> None:
    data = b.set_section(PLAIN, ".symtab", "sh_entsize", size)
    assert_refused(data, "symbol_table", section=".symtab", found=size)


@pytest.mark.parametrize("step", [-1, 1])
def test_size_of_a_symbol_table(step: int) -> None:
    size = b.section_field(PLAIN, ".symtab", "sh_size") + step
    data = b.set_section(PLAIN, ".symtab", "sh_size", size)
    assert_refused(data, "symbol_table", section=".symtab", size=size)


def test_one_symbol_table_of_each_kind() -> None:
    both = b.build(file_type=b.DYN, symbols=[Sym("a")], dynamic_symbols=[Sym("b")])
    elf.check(both)
    assert_refused(b.set_section(both, ".dynsym", "sh_type", b.SYMTAB), "symbol_table", found=2)


# Segments


def test_segment_ends_exactly_at_the_end_of_the_file() -> None:
    size = b.segment_field(PLAIN, 0, "p_filesz")
    elf.check(b.set_segment(PLAIN, 0, "p_offset", FILE - size))
    for offset in (FILE - size + 1, FILE + 1, (1 << 64) - size, TOO_LARGE):
        data = b.set_segment(PLAIN, 0, "p_offset", offset)
        error = assert_refused(data, "segment_bounds", segment=0, offset=offset, file_size=FILE)
        assert "LOAD" in error.message


def test_segment_s_file_size_against_its_memory_size() -> None:
    size = b.segment_field(PLAIN, 0, "p_filesz")
    for memory in (size, size + 1, TOO_LARGE):
        elf.check(b.set_segment(PLAIN, 0, "p_memsz", memory))
    data = b.set_segment(PLAIN, 0, "p_memsz", size - 1)
    assert_refused(data, "segment_size", segment=0, found=size, size=size - 1)
    # Only loaded segments have a size in memory: notes and the like may leave it out.
    elf.check(b.set_segment(data, 0, "p_type", 4))


@pytest.mark.parametrize("align", [0, 1, 1 << 63])
def test_segment_alignment(align: int) -> None:
    elf.check(b.set_segment(PLAIN, 0, "p_align", align))


@pytest.mark.parametrize("align", [3, (1 << 63) - 1, TOO_LARGE])
def test_segment_alignment_that_is_no_power_of_two(align: int) -> None:
    data = b.set_segment(PLAIN, 0, "p_align", align)
    assert_refused(data, "segment_align", segment=0, found=align)


def test_unused_segment_says_nothing() -> None:
    data = b.set_segment(PLAIN, 0, "p_type", b.PT_NULL)
    assert elf.check(b.set_segment(data, 0, "p_offset", TOO_LARGE)).end == FILE


# What was wanted


def test_machine() -> None:
    data = b.device_image("kernel")
    assert elf.check(data, machine=elf.AICORE_MACHINE).machine == 0x1029
    for machine in (0x1028, 0x102A):
        error = refusal(data, machine=machine)
        assert error.fields["rule"] == "machine"
        assert (error.fields["wanted"], error.fields["found"]) == (machine, 0x1029)
    assert "aicore" in refusal(data, machine=b.X86_64).message


def test_type() -> None:
    data = b.device_image("kernel")
    elf.check(data, types=("REL", "EXEC"))
    for types in (("REL",), ("REL", "DYN"), ()):
        error = refusal(data, types=types)
        assert (error.fields["rule"], error.fields["wanted"]) == ("type", list(types))


SYMBOLS = [
    Sym("function"),
    Sym("weak", binding=b.WEAK),
    Sym("unique", binding=10, kind=b.OBJECT),
    Sym("object", kind=b.OBJECT),
    Sym("absolute", section=0xFFF1, kind=b.OBJECT),
    Sym("common", section=0xFFF2, kind=b.OBJECT),
    Sym("far", section=0xFFFF),
    Sym("untyped", kind=b.NOTYPE),
    Sym("file", kind=4),
    Sym("section", kind=3),
    Sym("local", binding=b.LOCAL),
    Sym("undefined", section=0),
    Sym(""),
]
NAMED = {"function", "weak", "unique", "object", "absolute", "common", "far"}


def test_defined_symbols() -> None:
    assert elf.defined_symbols(b.build(symbols=SYMBOLS)) == NAMED
    assert elf.defined_symbols(b.build()) == frozenset()


def test_symbols_wanted() -> None:
    data = b.build(symbols=SYMBOLS)
    elf.check(data, symbols=[*NAMED, "untyped"])
    for name in ("file", "section", "local", "undefined", "", "nowhere", "unctio"):
        error = refusal(data, symbols=["weak", name])
        assert (error.fields["rule"], error.fields["wanted"]) == ("symbol", [name])
        assert error.fields["section"] == ".symtab"
        assert repr(name) in error.message


def test_symbols_may_be_any_iterable() -> None:
    elf.check(b.build(symbols=SYMBOLS), symbols=iter(["weak"]))


def test_symbols_of_a_shared_object_are_those_that_a_loader_finds() -> None:
    tables: dict[str, Any] = {"symbols": [Sym("inner")], "dynamic_symbols": [Sym("outer")]}
    shared = b.build(file_type=b.DYN, **tables)
    assert elf.defined_symbols(shared) == {"outer"}
    elf.check(shared, symbols=["outer"])
    assert refusal(shared, symbols=["inner"]).fields["section"] == ".dynsym"
    program = b.build(file_type=b.EXEC, **tables)
    assert elf.defined_symbols(program) == {"inner", "outer"}


def test_symbol_without_any_symbol_table() -> None:
    assert refusal(b.build(), symbols=["kernel"]).fields["rule"] == "symbol"


def test_symbol_s_name_within_the_string_table() -> None:
    data = b.build(symbols=[Sym("kernel")])
    entry = b.section_field(data, ".symtab", "sh_offset") + b.SYMBOL_BYTES
    size = b.section_field(data, ".strtab", "sh_size")

    def renamed(offset: int) -> bytes:
        return data[:entry] + offset.to_bytes(4, "little") + data[entry + 4 :]

    assert elf.defined_symbols(renamed(size - 2)) == {"l"}
    assert elf.defined_symbols(renamed(size - 1)) == frozenset()
    for offset in (size, size + 1, (1 << 32) - 1):
        error = refusal(renamed(offset), symbols=["kernel"])
        assert (error.fields["rule"], error.fields["offset"]) == ("symbol", offset)
    cut = b.set_section(data, ".strtab", "sh_size", size - 1)
    assert refusal(cut, symbols=["kernel"]).fields["rule"] == "symbol"


def test_many_symbols_are_read_quickly() -> None:
    data = b.build(symbols=[Sym(f"kernel_{number}") for number in range(100_000)])
    started = perf_counter()
    assert len(elf.defined_symbols(data)) == 100_000
    assert perf_counter() - started < 2.0


def test_long_names_are_shortened_in_messages() -> None:
    data = b.build(sections=(Sec("n" * 5_000, b"x", align=3),))
    error = assert_refused(data, "section_align")
    assert len(str(error)) < 300
    assert len(error.fields["section"]) < 300


def test_refusal_crosses_the_wire() -> None:
    error = refusal(b.set_section(PLAIN, ".data", "sh_size", TOO_LARGE))
    again = from_wire(error.to_wire())
    assert isinstance(again, ElfError)
    assert (str(again), again.fields) == (str(error), error.fields)


def test_a_parser_s_own_error_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(layout: object, stream: BytesIO) -> None:
        raise ELFError("no such field")

    monkeypatch.setattr(headers, "struct_parse", fail)
    assert "no such field" in refusal(PLAIN).message


# What a loader needs


def test_needed_libraries() -> None:
    data = b.dynamic_executable(
        interpreter="/lib/ld.so", needed=["liba.so.1", "libb.so"], runpath="$ORIGIN/../lib::/opt"
    )
    assert elf.needed_libraries(data) == (
        "/lib/ld.so",
        ("liba.so.1", "libb.so"),
        ("$ORIGIN/../lib", "", "/opt"),
    )


def test_needed_libraries_of_a_big_endian_executable() -> None:
    data = b.dynamic_executable(needed=["libc.so"], machine=21, byte_order="big")
    assert elf.needed_libraries(data).needed == ("libc.so",)


def test_older_search_path_counts_only_alone() -> None:
    assert elf.needed_libraries(b.dynamic_executable(rpath="/old")).runpath == ("/old",)
    both = b.dynamic_executable(rpath="/old", runpath="/new")
    assert elf.needed_libraries(both).runpath == ("/new",)


def test_nothing_is_needed_without_dynamic_entries() -> None:
    nothing = elf.NeededLibraries("", (), ())
    assert elf.needed_libraries(PLAIN) == nothing
    assert elf.needed_libraries(b.device_image("kernel")) == nothing
    assert elf.needed_libraries(b.dynamic_executable()) == ("/lib/ld.so", (), ())


def test_needed_libraries_of_an_executable_without_sections() -> None:
    data = b.dynamic_executable(needed=["libc.so"])
    for field in ("e_shoff", "e_shnum", "e_shstrndx"):
        data = b.set_header(data, field, 0)
    assert elf.needed_libraries(data).needed == ("libc.so",)


def dynamic_value(data: bytes, tag: int, value: int) -> bytes:
    """A copy with the value of the first dynamic entry of that tag changed."""
    table = b.section_field(data, ".dynamic", "sh_offset")
    for start in range(table, table + b.section_field(data, ".dynamic", "sh_size"), 16):
        if int.from_bytes(data[start : start + 8], "little") == tag:
            return data[: start + 8] + value.to_bytes(8, "little") + data[start + 16 :]
    raise LookupError(tag)


def refused_needed(data: bytes) -> ElfError:
    with pytest.raises(ElfError) as caught:
        elf.needed_libraries(data)
    return caught.value


def test_dynamic_string_table_within_a_loaded_segment() -> None:
    data = b.dynamic_executable(needed=["libc.so"])
    address = b.section_field(data, ".dynstr", "sh_addr")
    size = len(data) - address
    assert elf.needed_libraries(dynamic_value(data, b.DT_STRSZ, size)).needed == ("libc.so",)
    for tag, value in (
        (b.DT_STRSZ, size + 1),
        (b.DT_STRSZ, TOO_LARGE),
        (b.DT_STRTAB, len(data)),
        (b.DT_STRTAB, TOO_LARGE),
    ):
        assert refused_needed(dynamic_value(data, tag, value)).fields["rule"] == "dynamic"
    moved = b.set_segment(data, 0, "p_vaddr", address + 1)
    assert refused_needed(moved).fields["rule"] == "dynamic"


def test_dynamic_names_within_their_string_table() -> None:
    data = b.dynamic_executable(needed=["libc.so"], runpath="/x")
    size = b.section_field(data, ".dynstr", "sh_size")
    elf.needed_libraries(dynamic_value(data, b.DT_NEEDED, size - 1))
    for tag in (b.DT_NEEDED, b.DT_RUNPATH):
        for offset in (size, TOO_LARGE):
            error = refused_needed(dynamic_value(data, tag, offset))
            assert (error.fields["rule"], error.fields["offset"]) == ("dynamic", offset)


def test_dynamic_names_without_a_string_table() -> None:
    data = b.dynamic_executable(needed=["libc.so"])
    table = b.section_field(data, ".dynamic", "sh_offset")
    ended = data[: table + 16] + bytes(16) + data[table + 32 :]
    assert refused_needed(ended).fields["rule"] == "dynamic"


def test_interpreter_s_name_has_an_end() -> None:
    data = b.dynamic_executable(interpreter="/lib/ld.so")
    size = b.segment_field(data, 1, "p_filesz")
    assert refused_needed(b.set_segment(data, 1, "p_filesz", size - 1)).fields["rule"] == "dynamic"
    assert elf.needed_libraries(b.set_segment(data, 1, "p_filesz", 0)).interpreter == ""


def test_one_segment_of_a_kind() -> None:
    data = b.dynamic_executable(needed=["libc.so"])
    for segment, kind in ((1, b.PT_DYNAMIC), (2, b.PT_INTERP)):
        error = refused_needed(b.set_segment(data, segment, "p_type", kind))
        assert (error.fields["rule"], error.fields["found"]) == ("dynamic", 2)


def test_needed_libraries_refuses_a_segment_out_of_bounds() -> None:
    data = b.set_segment(b.dynamic_executable(), 2, "p_offset", TOO_LARGE)
    assert refused_needed(data).fields["rule"] == "segment_bounds"


# Fat objects

ONE, TWO = b.device_image("one"), b.device_image("two", content=b"\x02" * 999)


def refused_nested(data: bytes, **options: Any) -> ElfError:
    with pytest.raises(ElfError) as caught:
        elf.nested_images(data, **options)
    return caught.value


@pytest.mark.parametrize("padding", [0, 1, 7, 4095, 4096, 4097, 9000])
def test_nested_images(padding: int) -> None:
    images = (ONE, TWO, ONE)
    data = b.fat_object(*images, padding=padding)
    found = elf.nested_images(data)
    assert [data[item.offset : item.offset + item.size] for item in found] == list(images)
    assert [item.image for item in found] == [elf.check(image) for image in images]


def test_nested_images_in_a_section_of_another_name() -> None:
    data = b.fat_object(ONE, section="__aicore_rel_binary")
    assert len(elf.nested_images(data, "__aicore_rel_binary")) == 1
    error = refused_nested(data)
    assert (error.fields["rule"], error.fields["section"]) == ("nested_section", ".aicore_binary")


def test_nested_section_must_have_bytes() -> None:
    assert refused_nested(b.fat_object()).fields["rule"] == "nested_section"
    data = b.set_section(b.fat_object(ONE), ".aicore_binary", "sh_type", b.NOBITS)
    assert refused_nested(data).fields["rule"] == "nested_section"


def test_nested_section_stands_once() -> None:
    section = Sec(".aicore_binary", ONE)
    assert refused_nested(b.build(sections=(section, section))).fields["found"] == 2


@pytest.mark.parametrize("size", [1, 64, 5000])
def test_nested_section_of_zeros_holds_no_image(size: int) -> None:
    error = refused_nested(b.fat_object(bytes(size)))
    assert (error.fields["rule"], error.fields["nested"]) == ("nested_padding", 0)


def test_nested_section_begins_with_an_image() -> None:
    assert refused_nested(b.fat_object(b"\0" + ONE)).fields["rule"] == "nested_padding"


@pytest.mark.parametrize("junk", [b"x", bytes(5000) + b"x", b"\x7fEL", b"\0\0\x01\0"])
def test_nothing_but_zeros_stands_between_or_after_images(junk: bytes) -> None:
    for images, number in (((ONE, junk), 1), ((ONE, TWO, junk), 2), ((ONE, junk, TWO), 1)):
        error = refused_nested(b.fat_object(*images))
        assert (error.fields["rule"], error.fields["nested"]) == ("nested_padding", number)


def test_nested_image_cut_by_one_byte() -> None:
    for images in ((ONE[:-1],), (ONE, TWO[:-1])):
        error = refused_nested(b.fat_object(*images))
        assert error.fields["rule"] == "section_table"
        assert error.fields["nested"] == len(images) - 1
    # The next image lends its first byte to the one that was cut.
    error = refused_nested(b.fat_object(ONE[:-1], TWO))
    assert error.fields["rule"] == "nested_padding"


def test_nested_section_cut_by_one_byte() -> None:
    data = b.fat_object(ONE, TWO)
    size = b.section_field(data, ".aicore_binary", "sh_size")
    assert refused_nested(b.set_section(data, ".aicore_binary", "sh_size", size - 1))


def test_nested_image_keeps_the_rules_itself() -> None:
    broken = b.set_section(TWO, ".text", "sh_offset", 1 << 40)
    data = b.fat_object(ONE, broken)
    error = refused_nested(data)
    offset = b.section_field(data, ".aicore_binary", "sh_offset") + len(ONE)
    assert error.fields["rule"] == "section_bounds"
    assert (error.fields["nested"], error.fields["nested_offset"]) == (1, offset)
    assert "'.text'" in error.message
    assert "'.aicore_binary'" in error.message


def test_nested_images_are_for_the_device() -> None:
    data = b.fat_object(ONE, b.build())
    error = refused_nested(data)
    assert (error.fields["rule"], error.fields["nested"]) == ("machine", 1)
    assert len(elf.nested_images(data, machine=None)) == 2


def test_nested_images_of_a_broken_host() -> None:
    data = b.set_section(b.fat_object(ONE), ".text", "sh_offset", TOO_LARGE)
    error = refused_nested(data)
    assert error.fields["rule"] == "section_bounds"
    assert "nested" not in error.fields


def test_number_of_nested_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "MAX_NESTED", 3)
    assert len(elf.nested_images(b.fat_object(ONE, ONE, ONE))) == 3
    error = refused_nested(b.fat_object(ONE, ONE, ONE, ONE))
    assert error.fields["rule"] == "nested_count"


# Device images and fat objects, as a toolchain asks


def device_refusal(data: elf.Data, **wanted: Any) -> ElfError:
    with pytest.raises(ElfError) as caught:
        elf.check_device(data, **wanted)
    return caught.value


def fat_refusal(data: elf.Data, **wanted: Any) -> ElfError:
    with pytest.raises(ElfError) as caught:
        elf.check_fat(data, machine=b.X86_64, **wanted)
    return caught.value


def noted(*texts: bytes, flags: int = 0x123) -> bytes:
    return b.device_image("k", flags=flags, notes=[Sec(".note", t, type=b.NOTE) for t in texts])


def test_device_image_is_accepted() -> None:
    assert elf.check_device(b.device_image("k"), symbols=["k"]).machine == elf.AICORE_MACHINE
    data = b.device_image("k", file_type=b.REL)
    assert elf.check_device(data, types=("REL",)).type == "REL"


def test_device_image_of_another_machine_or_type() -> None:
    assert device_refusal(PLAIN, types=("REL",)).fields["rule"] == "machine"
    assert device_refusal(b.device_image("k", file_type=b.REL)).fields["rule"] == "type"
    assert device_refusal(b.device_image("k"), types=("REL",)).fields["rule"] == "type"


@pytest.mark.parametrize("sections", [(), (Sec(".bss", type=b.NOBITS, size=64), Sec(".empty"))])
def test_device_image_without_any_content(sections: tuple[Sec, ...]) -> None:
    data = b.build(machine=b.AICORE, file_type=b.EXEC, sections=sections)
    elf.check(data)
    assert device_refusal(data).fields["rule"] == "content"
    assert fat_refusal(b.fat_object(data)).fields["rule"] == "content"


def test_device_image_stripped_of_its_sections_has_a_segment() -> None:
    data = b.device_image("k")
    for field in ("e_shoff", "e_shnum", "e_shstrndx"):
        data = b.set_header(data, field, 0)
    assert elf.check_device(data).sections == ()


@pytest.mark.parametrize("defined", ["gemm", "gemm_mix_aic", "gemm_mix_aiv"])
def test_entry_symbol_of_a_kernel_for_one_or_both_kinds_of_core(defined: str) -> None:
    elf.check_device(b.device_image(defined), symbols=["gemm"])
    elf.check_fat(b.fat_object(b.device_image(defined)), machine=b.X86_64, symbols=["gemm"])


@pytest.mark.parametrize("defined", ["gemm2", "gem", "gemm_mix", "_mix_aic", "xgemm_mix_aic"])
def test_entry_symbol_that_is_missing(defined: str) -> None:
    error = device_refusal(b.device_image(defined, "other"), symbols=["other", "gemm"])
    assert (error.fields["rule"], error.fields["wanted"]) == ("symbol", ["gemm"])


def test_entry_symbols_that_are_undefined_or_local_do_not_count() -> None:
    for symbol in (Sym("k", section=0), Sym("k", binding=b.LOCAL)):
        data = b.build(machine=b.AICORE, file_type=b.EXEC, symbols=[symbol])
        assert device_refusal(data, symbols=["k"]).fields["rule"] == "symbol"


def test_symbols_of_a_fat_object_may_be_in_any_image_or_in_the_host_part() -> None:
    data = b.fat_object(b.device_image("one"), b.device_image("two_mix_aiv"))
    elf.check_fat(data, machine=b.X86_64, symbols=["one", "two", "launch"])
    assert fat_refusal(data, symbols=["one", "three"]).fields["wanted"] == ["three"]


def test_symbols_with_broken_names_are_refused_though_none_is_asked_for() -> None:
    broken = b.device_image("k")
    strings = b.section_field(broken, ".strtab", "sh_size")
    broken = b.set_section(broken, ".strtab", "sh_size", strings - 1)
    assert device_refusal(broken).fields["rule"] == "symbol"
    assert fat_refusal(b.fat_object(broken)).fields["rule"] == "symbol"


@pytest.mark.parametrize(
    ("arch", "flags", "accepted"),
    [
        ("dav-2201", 0x940000, True), ("dav-c220-cube", 0x940000, True), ("a3", 0x940000, True),
        ("dav-3510", 0x990000, True), ("dav-c310-vec", 0x990000, True), ("a5", 0x990000, True),
        ("dav-3101", 0x990000, True), ("dav-2201", 0x990000, False), ("a3", 0x990000, False),
        ("dav-c220", 0x990000, False), ("dav-2201-vec", 0x990000, False),
        # Carried by images of an arch whose other flags are known, perhaps.
        ("dav-3510", 0x940000, True), ("dav-c310", 0x940000, True),
        # Archs and flags of which no real image was seen.
        ("dav-2002", 0x940000, True), ("Ascend910B", 0x990000, True), ("dav-2201", 0x940001, True),
        ("dav-3510", 0, True), ("", 0x940000, True),
    ],
)  # fmt: skip
def test_flags_that_contradict_the_arch(arch: str, flags: int, accepted: bool) -> None:
    data = b.device_image("k", flags=flags)
    if accepted:
        elf.check_device(data, arch=arch)
        elf.check_fat(b.fat_object(data), machine=b.X86_64, arch=arch)
        return
    error = device_refusal(data, arch=arch)
    assert (error.fields["rule"], error.fields["found"]) == ("arch_flags", flags)
    assert fat_refusal(b.fat_object(data), arch=arch).fields["nested"] == 0


def test_flags_of_the_table_belong_to_one_arch_each() -> None:
    assert len(set(elf.ARCH_FLAGS.values())) == len(elf.ARCH_FLAGS)
    assert set(elf.ARCH_ALIASES.values()) <= set(elf.ARCH_FLAGS)


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        (b"dav-2201", True), (b"arch=dav-c220-vec\0", True), (b"dav-c220 dav-2201-cube", True),
        (b"\0\1\2", True), (b"", True), (b"dav-", True), (b"mydav-3510", True),
        (b"dav-3510", False), (b"arch=dav-c310-cube\0", False), (b"dav-22010", False),
        (b"dav-2201\0dav-3510\0", False), (b"\xff\xfedav-1001\xff", False),
    ],
)  # fmt: skip
def test_note_that_names_another_arch(text: bytes, accepted: bool) -> None:
    data = noted(b"\0" * 4, text)
    elf.check_device(data)
    elf.check_device(data, arch="Ascend910B3")
    if accepted:
        elf.check_device(data, arch="dav-2201")
        return
    error = device_refusal(data, arch="dav-2201")
    assert (error.fields["rule"], error.fields["section"]) == ("arch_note", ".note")
    place = error.fields["offset"]
    assert data[place:].startswith(error.fields["found"].encode())
    assert fat_refusal(b.fat_object(data), arch="dav-2201").fields["rule"] == "arch_note"


def test_names_of_archs_in_other_sections_say_nothing() -> None:
    data = b.device_image("k", content=b"dav-3510", notes=[Sec(".comment", b"dav-3510")])
    elf.check_device(data, arch="dav-2201")


def test_notes_side_by_side_are_read_one_by_one() -> None:
    elf.check_device(noted(b"x=dav-22", b"01"), arch="dav-22")
    assert device_refusal(noted(b"dav-22", b"01"), arch="dav-2201").fields["found"] == "dav-22"


class Counted:
    """A pattern that knows how many bytes it has been sent through."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern = pattern
        self.searched = 0

    def fullmatch(self, text: bytes) -> re.Match[bytes] | None:
        return self.pattern.fullmatch(text)

    def finditer(self, text: memoryview) -> Iterator[re.Match[bytes]]:
        self.searched += len(text)
        return self.pattern.finditer(text)


def test_many_notes_over_the_same_bytes_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [Sec(f".note{n}", type=b.NOTE) for n in range(500)]
    data = b.device_image("k", flags=0x123, content=b"dav-2201 " * 200, notes=notes)
    start = b.section_field(data, ".text", "sh_offset")
    for number in range(4, 4 + len(notes)):
        data = _moved(data, number, start, 1800 - number % 7)
    counted = Counted(device._ARCH_NAME)
    monkeypatch.setattr(device, "_ARCH_NAME", counted)
    elf.check_device(data, arch="dav-2201")
    assert 1800 <= counted.searched < 2000


def _moved(data: bytes, number: int, offset: int, size: int) -> bytes:
    header = b.header_field(data, "e_shoff") + 64 * number
    changed = bytearray(data)
    changed[header + 24 : header + 40] = offset.to_bytes(8, "little") + size.to_bytes(8, "little")
    return bytes(changed)


def test_images_of_a_fat_object_for_one_arch_have_the_same_flags() -> None:
    data = b.fat_object(b.device_image("a", flags=1), b.device_image("b", flags=2))
    assert len(elf.check_fat(data, machine=b.X86_64)) == 2
    error = fat_refusal(data, arch="dav-2002")
    assert error.fields["rule"] == "arch_flags"
    assert (error.fields["nested"], error.fields["found"], error.fields["wanted"]) == (1, 2, 1)
    assert data[error.fields["nested_offset"] :].startswith(b"\x7fELF")


def test_fat_object_is_for_this_machine_unless_said() -> None:
    other = b.AARCH64 if elf.host_machine() != b.AARCH64 else b.X86_64
    data = b.fat_object(b.device_image("k"), machine=other)
    assert len(elf.check_fat(data, machine=other)) == 1
    with pytest.raises(ElfError) as caught:
        elf.check_fat(data)
    assert caught.value.fields["rule"] == "machine"
    mine = b.fat_object(b.device_image("k"), machine=elf.host_machine())
    assert len(elf.check_fat(mine)) == 1


def test_fat_object_of_another_type() -> None:
    data = b.fat_object(b.device_image("k"), file_type=b.DYN)
    assert len(elf.check_fat(data, machine=b.X86_64, types=("DYN",))) == 1
    assert fat_refusal(data, types=("REL",)).fields["rule"] == "type"


def test_fat_object_may_hold_its_images_in_another_section() -> None:
    data = b.fat_object(b.device_image("k", file_type=b.REL), section="__aicore_rel_binary")
    found = elf.check_fat(data, machine=b.X86_64, section="__aicore_rel_binary", symbols=["k"])
    assert [item.image.type for item in found] == ["REL"]
    assert fat_refusal(data).fields["rule"] == "nested_section"


@pytest.mark.parametrize("kind", [0, 4])
def test_image_in_a_fat_object_has_a_type_that_can_be_run_or_linked(kind: int) -> None:
    data = b.fat_object(b.device_image("k", file_type=kind))
    assert fat_refusal(data).fields["rule"] == "type"


def test_images_back_to_back_without_a_host() -> None:
    images = [b.device_image("one"), b.device_image("two_mix_aiv")]
    found = elf.check_images(images[0] + bytes(3) + images[1], symbols=["one", "two"])
    assert [item.offset for item in found] == [0, len(images[0]) + 3]
    assert len(elf.check_images(images[0], arch="dav-2201")) == 1


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "nested_section"), (bytes(64), "nested_padding"), (PLAIN, "machine"),
        (b.device_image("one") + b"junk", "nested_padding"),
        (b.device_image("one") + b.device_image("two")[:-1], "section_table"),
        (b.device_image("one"), "symbol"),
        (b.device_image("one", "two", flags=0x990000), "arch_flags"),
        (b.device_image("two", flags=1) + b.device_image(flags=2), "arch_flags"),
    ],
)  # fmt: skip
def test_images_back_to_back_are_refused_as_in_a_fat_object(data: bytes, rule: str) -> None:
    with pytest.raises(ElfError) as caught:
        elf.check_images(data, arch="dav-2201", symbols=["two"])
    assert caught.value.fields["rule"] == rule


def test_section_bytes() -> None:
    device = b.device_image("k")
    assert elf.section_bytes(b.fat_object(device)) == device
    assert elf.section_bytes(b.fat_object(device), ".comment") == b"host\0"


@pytest.mark.parametrize("name", [".nothing", ".bss"])
def test_section_bytes_of_nothing(name: str) -> None:
    with pytest.raises(ElfError) as caught:
        elf.section_bytes(PLAIN, name)
    assert caught.value.fields["rule"] == "nested_section"


def test_section_bytes_of_a_broken_image() -> None:
    with pytest.raises(ElfError):
        elf.section_bytes(b.set_section(PLAIN, ".bss", "sh_addralign", 3), ".text")


@pytest.mark.parametrize("data", [b"", b"\x7fEL", b"text", b"\0\0\x7fELF", b"\x7fELG" + bytes(99)])
def test_anything_but_elf_passes(data: bytes) -> None:
    elf.check_any(data)


def test_elf_of_any_machine_is_judged_among_anything() -> None:
    for data in (PLAIN, b.device_image("k"), b.build(machine=190), b.fat_object(b.device_image())):
        elf.check_any(data)
        with pytest.raises(ElfError):
            elf.check_any(data[:-1])
    with pytest.raises(ElfError):
        elf.check_any(b"\x7fELF")


def test_nested_images_are_judged_among_anything() -> None:
    broken = b.set_section(b.device_image("k"), ".text", "sh_offset", TOO_LARGE)
    with pytest.raises(ElfError) as caught:
        elf.check_any(b.fat_object(b.device_image("k"), broken))
    assert (caught.value.fields["rule"], caught.value.fields["nested"]) == ("section_bounds", 1)
    with pytest.raises(ElfError):
        elf.check_any(b.fat_object(b"no image"))


def small(order: str = "<") -> bytes:
    """A 32-bit image: a header, a segment header, two section headers."""
    ident = b"\x7fELF\x01" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    fields = (2, 40, 1, 0, 52, 84, 0, 52, 32, 1, 40, 2, 0)
    header = ident + struct.pack(order + "HHIIIIIHHHHHH", *fields)
    return header + bytes(32 + 80)


@pytest.mark.parametrize("order", ["<", ">"])
def test_tables_of_a_32_bit_image_are_judged_among_anything(order: str) -> None:
    data = small(order=order)
    elf.check_any(data)
    elf.check_any(data + b"more")
    for size in (4, 5, 51, 52, 83, len(data) - 1):
        with pytest.raises(ElfError) as caught:
            elf.check_any(data[:size])
        assert caught.value.fields["rule"] in ("header_size", "segment_table", "section_table")


def test_entry_symbols_are_the_functions_with_a_description() -> None:
    assert elf.entry_symbols(b.device_image("b", "a")) == ("a", "b")
    notes = [Sec(f".ascend.meta.{name}", b"x", type=b.NOTE) for name in ("b", "gone")]
    assert elf.entry_symbols(b.device_image("a", "b", notes=notes)) == ("b",)
    data = b.build(machine=b.AICORE, symbols=[Sym("data", kind=b.OBJECT), Sym("asm", kind=0)])
    assert elf.entry_symbols(data) == ("asm",)


def test_readable_images_end_before_the_first_that_is_refused() -> None:
    good, bad = b.device_image("k"), b.set_header(b.device_image("k"), "e_shstrndx", 1)
    assert len(elf.readable_images(b.fat_object(good, good))) == 2
    assert len(elf.readable_images(b.fat_object(good, bad, good))) == 1
    assert elf.readable_images(PLAIN) == ()
    assert elf.readable_images(b"") == ()


# This machine


def test_host_machine_is_that_of_this_interpreter() -> None:
    machine = elf.host_machine()
    assert machine == elf.inspect(Path(sys.executable).read_bytes()).machine
    known = {"x86_64": b.X86_64, "aarch64": b.AARCH64}
    assert machine == known.get(os.uname().machine, machine)


@pytest.mark.parametrize(("name", "machine"), [("x86_64", b.X86_64), ("aarch64", b.AARCH64)])
@pytest.mark.parametrize("executable", [None, "", "missing", "script"])
def test_host_machine_without_a_readable_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, machine: int, executable: str | None
) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    path = str(tmp_path / executable) if executable else executable
    monkeypatch.setattr(sys, "executable", path)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "r", "v", name)))
    assert elf.host_machine.__wrapped__() == machine


def test_host_machine_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "r", "v", "pdp11")))
    with pytest.raises(ElfError, match="pdp11"):
        elf.host_machine.__wrapped__()


# Real files


def compiled(folder: Path, name: str, *flags: str) -> bytes:
    source = folder / "tiny.c"
    source.write_text(
        "int table[4] = {1};\n"
        "static int hidden(int x) { return x + table[1]; }\n"
        "int kernel(int x) { return hidden(x); }\n"
        "__attribute__((weak)) int spare(int x) { return x; }\n"
        "extern int elsewhere(int);\n"
        "int caller(int x) { return elsewhere(x); }\n"
    )
    output = folder / name
    subprocess.run(["cc", *flags, str(source), "-o", str(output)], check=True, timeout=DEADLINE_S)
    return output.read_bytes()


@needs_cc
@pytest.mark.parametrize(
    ("name", "flags", "kind"),
    [
        ("tiny.o", ("-c", "-g", "-ffunction-sections"), "REL"),
        ("tiny.so", ("-shared", "-fPIC"), "DYN"),
        ("stripped.so", ("-shared", "-fPIC", "-s"), "DYN"),
    ],
)
def test_what_the_compiler_writes(
    tmp_path: Path, name: str, flags: tuple[str, ...], kind: str
) -> None:
    data = compiled(tmp_path, name, *flags)
    image = elf.check(
        data, machine=elf.host_machine(), types=(kind,), symbols=["kernel", "spare", "table"]
    )
    assert image.byte_order == sys.byteorder
    assert elf.defined_symbols(data) >= {"kernel", "spare", "caller", "table"}
    for absent in ("hidden", "elsewhere"):
        assert refusal(data, symbols=[absent]).fields["rule"] == "symbol"
    assert refusal(data[:-1]).fields["rule"] == "section_table"


@needs_cc
def test_what_the_linker_needs(tmp_path: Path) -> None:
    data = compiled(
        tmp_path, "tiny.so", "-shared", "-fPIC", "-Wl,-rpath,$ORIGIN/lib", "-Wl,--no-as-needed"
    )
    found = elf.needed_libraries(data)
    assert any(name.startswith("libc.") for name in found.needed)
    assert found.runpath == ("$ORIGIN/lib",)


def system_files() -> list[Path]:
    names = ("ls", "sh", "cat", "env", "cc", "ld")
    found = {Path(path).resolve() for name in names if (path := shutil.which(name))}
    libraries = sorted(Path(sys.prefix).glob("lib/python3*/site-packages/**/*.so"))[:20]
    files = [Path(sys.executable).resolve(), *sorted(found), *libraries]
    return [path for path in files if elf.is_elf(path.read_bytes()[:4])]


def test_what_the_system_runs() -> None:
    files = system_files()
    assert files
    for path in files:
        data = path.read_bytes()
        image = elf.check(data, machine=elf.host_machine(), types=("EXEC", "DYN"))
        assert image.end <= len(data)
        elf.defined_symbols(data)
        elf.needed_libraries(data)


def test_shell_names_its_loader() -> None:
    shell = shutil.which("sh")
    assert shell
    found = elf.needed_libraries(Path(shell).resolve().read_bytes())
    if found.needed:
        assert Path(found.interpreter).is_absolute()
