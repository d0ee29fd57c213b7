"""What CANN's own tools made: 21 device images in a library, judged whole and cut."""

from __future__ import annotations

from typing import Any

import pytest

from ptocache import artifact, elf
from ptocache.errors import ElfError
from tests import elf_builder as b
from tests import real_images as real

COUNT = len(real.STARTS)
EVERY = pytest.mark.parametrize("number", range(COUNT))


def refusal(data: bytes, **wanted: Any) -> ElfError:
    with pytest.raises(ElfError) as caught:
        elf.check_fat(data, machine=b.X86_64, **wanted)
    return caught.value


def in_a_library(section: bytes) -> bytes:
    return b.build(sections=(b.Sec(".aicore_binary", section, align=8),))


def test_the_library_is_accepted_whole() -> None:
    data = real.library()
    found = elf.check_fat(data, machine=b.X86_64, types=("DYN",), arch="dav-2201")
    assert [item.offset - real.SECTION_OFFSET for item in found] == list(real.STARTS)
    assert [item.size for item in found] == [len(image) for image in real.images()]
    assert sum(item.size for item in found) == real.SECTION_SIZE
    assert min(map(len, real.images())) == 96_392
    assert max(map(len, real.images())) == 3_837_704
    assert elf.section_bytes(data) == real.section()
    elf.check_any(data)


def test_the_objects_it_was_linked_from_are_device_images_too() -> None:
    data = real.library()
    found = elf.check_fat(data, machine=b.X86_64, section="__aicore_rel_binary", arch="dav-2201")
    assert [item.image.type for item in found] == ["REL"] * COUNT


@EVERY
def test_an_image_is_accepted_alone(number: int) -> None:
    image = elf.check_device(real.images()[number], arch="dav-2201")
    assert (image.machine, image.type, image.flags) == (0x1029, "EXEC", 0x940000)
    assert image.end == len(real.images()[number])


@EVERY
def test_an_image_cut_by_one_byte_is_rejected(number: int) -> None:
    with pytest.raises(ElfError) as caught:
        elf.check_device(memoryview(real.images()[number])[:-1])
    assert caught.value.fields["rule"] == "section_table"


@EVERY
def test_the_section_cut_by_one_byte_within_an_image_is_rejected(number: int) -> None:
    parts = list(real.images()[number : number + 2])
    parts[0] = parts[0][:-1]
    error = refusal(in_a_library(b"".join(parts)))
    # What follows has moved up by the byte that is missing, so that a table seems to go on; what is
    # then read of it breaks this or a later rule.
    assert error.fields["nested"] in (0, 1)


def test_the_last_image_cut_by_one_byte_is_named() -> None:
    error = refusal(in_a_library(real.section()[:-1].tobytes()))
    assert error.fields["rule"] == "section_table"
    assert error.fields["nested"] == COUNT - 1
    assert f"image {COUNT - 1}" in error.message


def test_the_library_whose_section_is_one_byte_shorter_is_rejected() -> None:
    # The header is found where readelf sees it: number 26 of the table at the end of the file.
    data = b.set_section(real.library(), ".aicore_binary", "sh_size", real.SECTION_SIZE - 1)
    error = refusal(data)
    assert (error.fields["rule"], error.fields["nested"]) == ("section_table", COUNT - 1)


def test_the_library_cut_by_one_byte_is_rejected() -> None:
    error = refusal(memoryview(real.library())[:-1])  # type: ignore[arg-type]
    assert error.fields["rule"] == "section_table"


@pytest.mark.parametrize("arch", ["dav-2201", "dav-c220", "dav-c220-vec", "a3", "dav-9999", ""])
def test_the_arch_that_they_were_built_for_is_accepted(arch: str) -> None:
    elf.check_device(real.images()[1], arch=arch)


def test_flags_that_later_devices_are_known_by_contradict_an_earlier_one() -> None:
    image = bytearray(real.images()[1])
    image[48:52] = (0x990000).to_bytes(4, "little")
    elf.check_device(image, arch="dav-3510")
    with pytest.raises(ElfError, match="dav-3510, not of dav-2201") as caught:
        elf.check_device(image, arch="dav-2201")
    assert caught.value.fields["rule"] == "arch_flags"


def test_kernels_are_found_by_the_names_that_their_callers_use() -> None:
    names = ["vabs_fp16", "vabs_fp32", "fa_fp16", "tri_inv_trick_fp16"]
    elf.check_fat(real.library(), machine=b.X86_64, symbols=names)
    elf.check_device(real.images()[1], symbols=["vabs_fp16", "vabs_fp32_mix_aiv"])
    assert refusal(real.library(), symbols=["vabs_fp64"]).fields["wanted"] == ["vabs_fp64"]
    with pytest.raises(ElfError, match="'fa_fp16'"):
        elf.check_device(real.images()[1], symbols=["vabs_fp16", "fa_fp16"])


def test_the_report_names_every_image_and_its_kernels() -> None:
    found = artifact.report(real.library())
    assert found.verdict.accepted
    assert found.form == "shared object"
    assert [item.offset - real.SECTION_OFFSET for item in found.nested_images] == list(real.STARTS)
    assert {item.image.flags for item in found.nested_images} == {0x940000}
    assert all(item.entry_symbols for item in found.nested_images)
    # Global helpers and records stand beside the kernels; only these are entries.
    assert found.nested_images[1].entry_symbols == ("vabs_fp16_mix_aiv", "vabs_fp32_mix_aiv")


def test_the_section_as_a_file_is_accepted_whole_and_rejected_cut() -> None:
    whole = real.section()
    found = elf.check_images(whole, arch="dav-2201", symbols=["vabs_fp16", "fa_fp16"])
    assert [item.offset for item in found] == list(real.STARTS)
    with pytest.raises(ElfError) as caught:
        elf.check_images(whole[:-1])
    assert caught.value.fields["nested"] == COUNT - 1
    shown = artifact.report(whole)
    assert [item.offset for item in shown.nested_images] == list(real.STARTS)


def test_the_report_of_a_cut_library_shows_the_images_before_the_cut() -> None:
    data = b.set_section(real.library(), ".aicore_binary", "sh_size", real.STARTS[3] + 5000)
    found = artifact.report(data)
    assert len(found.nested_images) == 3
    assert not found.verdict.accepted
    assert found.verdict.fields["nested"] == 3
