"""The version files of CANN, in the forms in which they are met and in those in which they are broken."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ptocache_cann import version

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    [
        b"Version=8.5.0\n",
        b"version=8.5.0",
        b"Version=8.5.0\r\nversion_dir=8.5.0\r\ntimestamp=20260509\r\n",
        b"\xef\xbb\xbfVersion=8.5.0\n",
        b'Version="8.5.0"\n',
        b"Version='8.5.0'\n",
        b"  VERSION =  8.5.0  \n",
        b"# Version=7.0\n[toolkit]\nVersion=8.5.0\n",
        b"package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C85\narch=x86_64\n",
        b"version_dir=8.5.0\ninnerversion=V100R001C85\n",
        b"innerversion=8.5.0\n",
        b"Version=\nversion_dir=8.5.0\n",
        b"[a]\nVersion=8.5.0\n[b]\nversion=8.5.0\n",
        b"Version=8.5.0\nnote=caf\xe9\n",
        b"Version=8.5.0\rtimestamp=1\r",
    ],
)
def test_a_version_is_read_in_every_form(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "version.info"
    path.write_bytes(text)
    assert version.read(str(path)) == (str(path), "8.5.0", "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (b"\xef\xbb\xbf\n", "names no version"),
        (b"Version=\n", "names no version"),
        (b"8.5.0\n", "names no version"),
        (b"#Version=8.5.0\n", "names no version"),
        (b"Version=8.5.0\nVersion=9.0.0\n", "names two versions: 8.5.0, 9.0.0"),
        (b"[a]\nversion=8.5.0\n[b]\nVERSION=9.0.0\n", "names two versions: 8.5.0, 9.0.0"),
        (b"Version=8.5.0\n\0", "is no text of a version"),
        (b"V\0e\0r\0s\0i\0o\0n\0=\0008\0", "is no text of a version"),
        (b"Version=8.5.0\n" + b"x" * (1 << 16), "is no text of a version"),
    ],
)
def test_what_is_not_certain_is_said(text: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "version.info"
    path.write_bytes(text)
    assert version.read(str(path)) == (str(path), "", f"{path} {why}")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    for name, why in (("nothing", "No such file or directory"), (".", "Is a directory")):
        path = os.path.join(tmp_path, name)
        assert version.read(path) == (path, "", f"{path} cannot be read: {why}")


def test_the_places_are_those_of_both_layouts_and_of_each_arch_folder(tmp_path: Path) -> None:
    for name in ("x86_64-linux", "aarch64-linux", "include"):
        (tmp_path / name).mkdir()
    found = version.places(str(tmp_path))
    assert [role for role, _ in found] == [
        "version.info",
        "compiler/version.info",
        "aarch64-linux/ascend_toolkit_install.info",
        "aarch64-linux/version.info",
        "x86_64-linux/ascend_toolkit_install.info",
        "x86_64-linux/version.info",
    ]
    assert all(path == f"{tmp_path}/{role}" for role, path in found)


def test_a_tree_that_is_not_there_has_places_too(tmp_path: Path) -> None:
    assert len(version.places(str(tmp_path / "nothing"))) == 2
