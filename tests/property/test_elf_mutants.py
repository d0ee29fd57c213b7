"""Device images and fat objects, damaged in bulk: by count, where hypothesis goes by depth.

A seeded generator makes the same mutants on every machine. ``PTOCACHE_FUZZ_MUTANTS`` sets how many
are judged in all (default 4,000; the soak asks for 200,000 and more).
"""

from __future__ import annotations

import os
import random
import tracemalloc
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

from ptocache import artifact, elf
from ptocache.errors import ElfError
from tests import elf_builder as b
from tests import real_images
from tests.elf_builder import Sec, Sym

if TYPE_CHECKING:
    from collections.abc import Callable

MUTANTS = int(os.environ.get("PTOCACHE_FUZZ_MUTANTS", "4000"))
PARTS = 8
"""Tests that share the work, so that several processes can."""
LARGEST = (1 << 64) - 1
FIELDS = (*b.HEADER_FIELDS, *b.SECTION_FIELDS, *b.SEGMENT_FIELDS)
WEIGHTS = {"device": 5, "described": 4, "extended": 4, "fat": 3, "real": 1, "real fat": 1}
"""How often each base is damaged: the larger ones cost more."""


class Base(NamedTuple):
    """A whole artifact, and where one of its device images stands in it."""

    data: bytes
    start: int
    """Bytes before the image."""
    image: bytes
    end: int
    """Where the bytes end that the image may point to."""
    judge: Callable[[bytes], object]

    def with_image(self, image: bytes) -> bytes:
        """The artifact with its image exchanged for one of the same size."""
        return self.data[: self.start] + image + self.data[self.start + len(self.image) :]

    @property
    def room(self) -> int:
        """Bytes that the image may point to, from its start."""
        return self.end - self.start


class Mutant(NamedTuple):
    data: bytes
    must_be_rejected: bool


def judge_device(data: bytes) -> object:
    return elf.check_device(data, arch="dav-2201", symbols=["kernel"])


def judge_fat(data: bytes) -> object:
    return elf.check_fat(data, machine=b.X86_64, arch="dav-2201", symbols=["kernel"])


def alone(image: bytes, judge: Callable[[bytes], object] = judge_device) -> Base:
    return Base(image, 0, image, len(image), judge)


def in_a_library(images: list[bytes], number: int, padding: int = 0) -> Base:
    data = b.fat_object(*images, padding=padding)
    holder = b.section_field(data, ".aicore_binary", "sh_offset")
    end = holder + b.section_field(data, ".aicore_binary", "sh_size")
    start = holder + sum(len(image) + padding for image in images[:number])
    return Base(data, start, images[number], end, judge_fat)


def extended_image() -> bytes:
    return b.build(
        machine=b.AICORE, file_type=b.EXEC, flags=0x940000, extended=True,
        segments=(b.Seg(".text"),), symbols=[Sym("kernel")],
    )  # fmt: skip


@lru_cache(maxsize=1)
def bases() -> dict[str, tuple[Base, ...]]:
    device = b.device_image("kernel")
    note = Sec(".ascend.meta.kernel", b"dav-2201\0", type=b.NOTE)
    described = b.device_image("kernel_mix_aic", "kernel_mix_aiv", "helper", notes=[note])
    real = real_images.images()[1]
    shelf = [described, device, extended_image()]
    return {
        "device": (alone(device),),
        "described": (alone(described),),
        "extended": (alone(extended_image()),),
        "fat": tuple(in_a_library(shelf, number, padding=8) for number in range(3)),
        "real": (alone(real, elf.check_device),),
        "real fat": (in_a_library([device, real], 1),),
    }


def extreme(chance: random.Random, limit: int, size: int) -> int:
    """Numbers where mistakes live: around zero, the file's size, powers of two and the limit."""
    anchor = chance.choice((0, size, 1 << 16, 1 << 31, 1 << 32, 1 << 63, limit))
    return min(max(anchor + chance.randint(-70, 70), 0), limit)


def field_of(chance: random.Random, image: bytes) -> bytes:
    name = chance.choice(FIELDS)
    value = extreme(chance, b.field_limit(name), len(image))
    if name in b.HEADER_FIELDS:
        return b.set_header(image, name, value)
    if name in b.SECTION_FIELDS or not segment_count(image):
        name = name if name in b.SECTION_FIELDS else "sh_offset"
        return b.set_section(image, chance.randrange(b.section_count(image)), name, value)
    return b.set_segment(image, chance.randrange(segment_count(image)), name, value)


def segment_count(image: bytes) -> int:
    count = b.header_field(image, "e_phnum")
    return b.section_field(image, 0, "sh_info") if count == b.EXTENDED else count


def bits_flipped(chance: random.Random, base: Base) -> Mutant:
    changed = bytearray(base.data)
    for _ in range(chance.randint(1, 8)):
        # Half of them in the header, where they do the most.
        place = base.start + chance.randrange(64) if chance.random() < 0.5 else None
        changed[chance.randrange(len(changed)) if place is None else place] ^= (
            1 << chance.randrange(8)
        )
    return Mutant(bytes(changed), must_be_rejected=False)


def truncated(chance: random.Random, base: Base) -> Mutant:
    size = len(base.data) - 1
    return Mutant(
        base.data[: chance.choice((size, chance.randint(0, size)))], must_be_rejected=True
    )


def field_changed(chance: random.Random, base: Base) -> Mutant:
    image = field_of(chance, base.image)
    return Mutant(base.with_image(image), must_be_rejected=False)


def host_changed(chance: random.Random, base: Base) -> Mutant:
    if base.start and chance.random() < 0.5:
        return Mutant(holder_moved(chance, base), must_be_rejected=False)
    return Mutant(field_of(chance, base.data), must_be_rejected=False)


def holder_moved(chance: random.Random, base: Base) -> bytes:
    """A fat object whose section is somewhere else within the file."""
    start, end = sorted(chance.choices(range(len(base.data) + 1), k=2))
    data = b.set_section(base.data, ".aicore_binary", "sh_offset", start)
    return b.set_section(data, ".aicore_binary", "sh_size", end - start)


def section_out_of_bounds(chance: random.Random, base: Base) -> Mutant:
    number = chance.choice(
        [
            number
            for number in range(1, b.section_count(base.image))
            if b.section_field(base.image, number, "sh_type") not in (b.NULL, b.NOBITS)
        ]
    )
    if chance.random() < 0.5:
        first_bad = base.room - b.section_field(base.image, number, "sh_size") + 1
        image = b.set_section(base.image, number, "sh_offset", beyond(chance, first_bad))
    else:
        first_bad = base.room - b.section_field(base.image, number, "sh_offset") + 1
        image = b.set_section(base.image, number, "sh_size", beyond(chance, first_bad))
    return Mutant(base.with_image(image), must_be_rejected=True)


def segment_out_of_bounds(chance: random.Random, base: Base) -> Mutant:
    number = chance.randrange(segment_count(base.image))
    first_bad = base.room - b.segment_field(base.image, number, "p_filesz") + 1
    image = b.set_segment(base.image, number, "p_offset", beyond(chance, first_bad))
    return Mutant(base.with_image(image), must_be_rejected=True)


def holder_out_of_bounds(chance: random.Random, base: Base) -> Mutant:
    """A fat object whose section of images does not lie within the file."""
    if not base.start:
        return section_out_of_bounds(chance, base)
    size = b.section_field(base.data, ".aicore_binary", "sh_size")
    where = beyond(chance, len(base.data) - size + 1)
    return Mutant(b.set_section(base.data, ".aicore_binary", "sh_offset", where), True)


def beyond(chance: random.Random, first_bad: int) -> int:
    near, far = first_bad + 70, 1 << chance.randrange(32, 64)
    return chance.choice(
        (first_bad, chance.randint(first_bad, near), far, LARGEST - chance.randrange(70))
    )


WAYS = (
    bits_flipped, truncated, field_changed, field_changed, host_changed,
    section_out_of_bounds, section_out_of_bounds, segment_out_of_bounds, holder_out_of_bounds,
)  # fmt: skip


def refused(read: Callable[[bytes], object], data: bytes) -> bool:
    try:
        read(data)
    except ElfError as error:
        refusal = error
    else:
        return False
    assert refusal.code == "bad_elf"
    assert refusal.fields["rule"]
    assert 0 < len(refusal.message) < 600
    return True


def assert_in_bounds(image: bytes, room: int) -> None:
    """What an accepted image must be, read by the builder's own means."""
    if b.header_field(image, "e_shoff"):
        for number in range(b.section_count(image)):
            if b.section_field(image, number, "sh_type") not in (b.NULL, b.NOBITS):
                offset = b.section_field(image, number, "sh_offset")
                assert offset + b.section_field(image, number, "sh_size") <= room
    for number in range(segment_count(image)):
        if b.segment_field(image, number, "p_type") != b.PT_NULL:
            offset = b.segment_field(image, number, "p_offset")
            assert offset + b.segment_field(image, number, "p_filesz") <= room


def assert_nested_in_bounds(data: bytes) -> None:
    holder = b.section_field(data, ".aicore_binary", "sh_offset")
    end = holder + b.section_field(data, ".aicore_binary", "sh_size")
    position = holder
    for item in elf.nested_images(data):
        assert not data[position : item.offset].strip(b"\0")
        assert_in_bounds(data[item.offset : end], end - item.offset)
        position = item.offset + item.size
    assert not data[position:end].strip(b"\0")


def judged(chance: random.Random, base: Base) -> bool:
    """Damage the base once and judge the result; True if it was refused."""
    mutant = chance.choice(WAYS)(chance, base)
    bad = refused(base.judge, mutant.data)
    assert bad or not mutant.must_be_rejected
    if not bad:
        assert_in_bounds(mutant.data, len(mutant.data))
        if base.start:
            assert_nested_in_bounds(mutant.data)
        # Whoever asks for less accepts it too.
        elf.check_any(mutant.data)
        assert artifact.report(mutant.data).verdict.accepted
    elif chance.random() < 0.05:
        refused(elf.check_any, mutant.data)
        refused(elf.entry_symbols, mutant.data)
        artifact.report(mutant.data)
    return bad


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_bases_are_accepted(name: str) -> None:
    for base in bases()[name]:
        base.judge(base.data)
        assert base.with_image(base.image) == base.data
        assert base.image.startswith(b"\x7fELF")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_mutants_raise_nothing_else_and_none_out_of_bounds_is_accepted(part: int) -> None:
    chance = random.Random(part)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    done = bad = 0
    for name in chance.choices(names, weights, k=-(-MUTANTS // PARTS)):
        bad += judged(chance, chance.choice(bases()[name]))
        done += 1
    assert done * PARTS >= MUTANTS
    # A reader that refused or accepted everything would not show any fault here.
    assert done // 2 < bad < done


# Memory


OVERLAPPING = 4_000


def headers_alone() -> bytes:
    bare = b.device_image()
    for field in ("e_shoff", "e_shnum", "e_shstrndx", "e_phoff", "e_phnum", "e_phentsize"):
        bare = b.set_header(bare, field, 0)
    return b.build(sections=(Sec(".aicore_binary", bare[:64] * 4000),))


def many_sections() -> bytes:
    return b.build(
        machine=b.AICORE, file_type=b.EXEC, extended=True,
        sections=(Sec(".text", b"x"), *[Sec(".s", type=b.NOTE, size=0)] * 10_000),
    )  # fmt: skip


def overlapping_symbols() -> bytes:
    """Symbols whose names are the ends of one long name."""
    names = b"\0" + b"k" * (OVERLAPPING) + b"\0"
    entries = b"".join(
        (1 + number).to_bytes(4, "little") + b"\x12\0\1\0" + bytes(16)
        for number in range(OVERLAPPING)
    )
    table = Sec(".symtab", entries, b.SYMTAB, link=2, entry_size=24)
    return b.build(
        machine=b.AICORE, file_type=b.EXEC, sections=(table, Sec(".strtab", names, b.STRTAB))
    )


def many_symbols() -> bytes:
    return b.device_image(*(f"{number:x}" for number in range(5000)))


@pytest.mark.parametrize("make", [headers_alone, many_sections, overlapping_symbols, many_symbols])
@pytest.mark.parametrize("read", [elf.check_any, judge_device, judge_fat, elf.nested_images])
def test_memory_is_a_small_multiple_of_the_file(
    make: Callable[[], bytes], read: Callable[[bytes], object]
) -> None:
    data = make()
    assert len(data) > 90_000
    tracemalloc.start()
    try:
        refused(read, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(data)


def test_a_section_of_more_images_than_are_allowed_is_refused_in_the_end() -> None:
    bare = headers_alone()
    start = b.section_field(bare, ".aicore_binary", "sh_offset")
    image = bare[start : start + 64]
    data = b.build(sections=(Sec(".aicore_binary", image * (elf.MAX_NESTED + 1)),))
    with pytest.raises(ElfError) as caught:
        elf.nested_images(data)
    assert caught.value.fields["rule"] == "nested_count"
