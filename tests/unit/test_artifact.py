"""The report on an artifact: what it is, and the verdict, whatever the bytes are."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache import artifact, elf
from ptocache_cli import render
from tests import elf_builder as b
from tests.elf_builder import Sec, Sym

if TYPE_CHECKING:
    from typing import Any

DEVICE = b.device_image("gemm_mix_aic", "gemm_mix_aiv")
BROKEN = b.set_section(DEVICE, ".text", "sh_size", 1 << 40)
FOREIGN = b.AARCH64 if elf.host_machine() != b.AARCH64 else b.X86_64


@pytest.mark.parametrize(
    ("data", "kind", "form"),
    [
        (DEVICE, "device", "executable"),
        (b.device_image("k", file_type=b.REL), "device", "object"),
        (b.build(machine=elf.host_machine()), "host", "object"),
        (b.build(machine=elf.host_machine(), file_type=b.DYN), "host", "shared object"),
        (b.build(machine=FOREIGN), "foreign", "object"),
        (b.build(machine=FOREIGN, file_type=0xFE42), "foreign", "0xfe42"),
        (b.fat_object(DEVICE, machine=FOREIGN), "foreign", "object"),
    ],
)  # fmt: skip
def test_whole_artifacts_are_accepted(data: bytes, kind: str, form: str) -> None:
    found = artifact.report(data)
    assert (found.kind, found.form, found.size) == (kind, form, len(data))
    assert found.verdict == artifact.Verdict(True, "", {})


@pytest.mark.parametrize(
    ("data", "rule"), [(b"", "magic"), (b"int main", "magic"), (b"\x7fELF", "header_size")]
)
def test_what_is_no_elf_is_rejected(data: bytes, rule: str) -> None:
    found = artifact.report(data)
    assert (found.kind, found.form, found.image) == ("unknown", "", None)
    assert not found.verdict.accepted
    assert found.verdict.fields["rule"] == rule


def test_a_broken_artifact_is_described_and_rejected_with_section_and_numbers() -> None:
    found = artifact.report(BROKEN)
    assert found.kind == "device"
    assert found.image is not None
    assert found.image.section(".text") is not None
    assert not found.verdict.accepted
    assert "'.text'" in found.verdict.reason
    assert found.verdict.fields["rule"] == "section_bounds"
    assert found.verdict.fields["size"] == 1 << 40
    assert found.verdict.fields["file_size"] == len(DEVICE)


def test_entry_symbols_of_a_device_image() -> None:
    assert artifact.report(DEVICE).entry_symbols == ("gemm_mix_aic", "gemm_mix_aiv")


def test_nested_images_have_their_place_and_their_symbols() -> None:
    data = b.fat_object(DEVICE, b.device_image("two", flags=7), padding=8)
    found = artifact.report(data)
    assert found.verdict.accepted
    assert found.entry_symbols == ("launch",)
    first, second = found.nested_images
    assert data[first.offset : first.offset + first.size] == DEVICE
    assert (second.image.flags, second.entry_symbols) == (7, ("two",))


def test_nested_images_before_a_broken_one_are_shown() -> None:
    found = artifact.report(b.fat_object(DEVICE, BROKEN, DEVICE))
    assert [item.size for item in found.nested_images] == [len(DEVICE)]
    assert found.verdict.fields["nested"] == 1
    assert found.verdict.reason.startswith("image 1 in section '.aicore_binary'")


def test_images_back_to_back_are_shown_one_by_one() -> None:
    other = b.device_image("two")
    found = artifact.report(DEVICE + bytes(8) + other)
    assert (found.kind, found.entry_symbols) == ("device", ())
    assert [item.offset for item in found.nested_images] == [0, len(DEVICE) + 8]
    assert found.nested_images[1].entry_symbols == ("two",)
    assert found.verdict.accepted
    cut = artifact.report(DEVICE + other[:-1])
    assert [item.size for item in cut.nested_images] == [len(DEVICE)]
    assert cut.verdict.fields["nested"] == 1


def test_an_image_with_zeros_after_it_is_one_image() -> None:
    found = artifact.report(DEVICE + bytes(70_000))
    assert (found.nested_images, found.verdict.accepted) == ((), True)
    assert found.entry_symbols == ("gemm_mix_aic", "gemm_mix_aiv")


@pytest.mark.parametrize("content", [b"", b"no image", bytes(16)])
def test_a_section_without_images_is_rejected(content: bytes) -> None:
    found = artifact.report(b.build(sections=(Sec(".aicore_binary", content),)))
    assert found.nested_images == ()
    assert not found.verdict.accepted


def test_an_image_with_unreadable_symbols_is_shown_and_rejected() -> None:
    size = b.section_field(DEVICE, ".strtab", "sh_size")
    found = artifact.report(b.fat_object(b.set_section(DEVICE, ".strtab", "sh_size", size - 1)))
    assert [item.entry_symbols for item in found.nested_images] == [()]
    assert found.verdict.fields["rule"] == "symbol"


def test_a_map_can_be_closed_after_the_report(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b.fat_object(DEVICE, BROKEN))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        found = artifact.report(mapped)
    assert found.kind in ("host", "foreign")


# --- shown


def shown(data: bytes) -> str:
    return render.inspected("f.o", artifact.report(data).to_map())


def test_json_is_text_and_numbers_alone() -> None:
    for data in (b"", DEVICE, BROKEN, b.fat_object(DEVICE, b"junk")):
        found = artifact.report(data).to_map()
        assert json.loads(render.to_json(found)) == found


def test_json_has_the_documented_keys() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "artifacts.md"
    text = page.read_text(encoding="utf-8")
    found = artifact.report(b.fat_object(DEVICE)).to_map()
    inner: list[dict[str, Any]] = [found["sections"][0], found["nested_images"][0]]
    for key in {name for item in (found, *inner) for name in item}:
        assert f"`{key}`" in text
    for arch, flags in elf.ARCH_FLAGS.items():
        assert f"| `{arch}` | 0x{flags:x} |" in text


def test_text_says_what_it_is_and_the_verdict() -> None:
    text = shown(b.fat_object(DEVICE, machine=b.X86_64))
    assert "object" in text
    assert "x86_64 (0x3e), little-endian" in text
    assert ".aicore_binary" in text
    assert "0 gemm_mix_aic, gemm_mix_aiv" in text
    assert "0x940000" in text
    assert text.endswith("verdict  accepted")


def test_text_of_a_refusal_ends_with_its_reason() -> None:
    assert "verdict  rejected: section '.text'" in shown(BROKEN)
    assert shown(b"junk").endswith(
        "verdict  rejected: not an ELF image: the magic number is missing"
    )


def test_text_of_many_sections_and_images_is_bounded() -> None:
    sections = [Sec(f".s{n}", b"x") for n in range(500)]
    text = shown(b.build(sections=sections))
    assert "and 438 more (--json lists them)" in text
    text = shown(b.fat_object(*[b.device_image(*"abcde")] * 100))
    assert "99 " not in text
    assert "0 a, b, c and 2 more" in text
    assert "and 36 more (--json lists them)" in text


def test_text_of_an_image_without_sections_or_symbols() -> None:
    assert "(no entry symbol)" in shown(b.fat_object(b.device_image()))
    bare = b.set_header(
        b.set_header(b.set_header(DEVICE, "e_shoff", 0), "e_shnum", 0), "e_shstrndx", 0
    )
    assert "no sections" in shown(bare)


def test_no_control_sequence_of_a_file_reaches_the_terminal() -> None:
    data = b.build(
        machine=b.AICORE, file_type=b.EXEC, symbols=[Sym("\x1b[31mred"), Sym("n" * 500)],
        sections=(Sec(".te\x07xt\x1b]0;title\x07", b"x"),),
    )  # fmt: skip
    text = shown(data)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r".te\x07xt" in text
    assert "n" * 201 not in text
    assert render.visible("kernel\udc80 ü\n") == r"kernel\udc80 ü\n"
