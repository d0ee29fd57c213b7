"""Digests of files that a client means: of exactly those, or none."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import pytest

from ptocache import known_files
from ptocache import signature as signature_module
from ptocache.contents import Contents
from ptocache.errors import BadRequestError
from ptocache.known_files import Meant, digest, parse
from ptocache.signature import Signature, signature_of

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"a tool" * 100
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as long untouched."""
    monkeypatch.setattr(signature_module, "SETTLE_NS", -(10**15))
    found = tmp_path / "tool"
    found.write_bytes(DATA)
    return found


def meant(path: Path, **other: int) -> Meant:
    signature = signature_of(str(path))
    assert signature is not None
    return Meant(str(path), signature._replace(**other))


def test_file_that_is_meant_has_its_digest_and_is_read_once(tool: Path) -> None:
    contents = Contents()
    assert [digest(contents, meant(tool)) for _ in range(3)] == [SHA256] * 3
    assert contents.files_read == 1


@pytest.mark.parametrize("field", Signature._fields)
def test_file_that_differs_in_any_number_is_not_meant(tool: Path, field: str) -> None:
    contents = Contents()
    signature = signature_of(str(tool))
    assert signature is not None
    assert digest(contents, meant(tool, **{field: getattr(signature, field) + 1})) == ""
    assert contents.files_read == 0


def test_file_that_was_written_a_moment_ago_has_no_digest_to_rely_on(tmp_path: Path) -> None:
    fresh = tmp_path / "tool"
    fresh.write_bytes(DATA)
    assert digest(Contents(), meant(fresh)) == ""


def test_file_that_is_larger_than_what_is_read_for_a_client(
    tool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_files, "MAX_BYTES", len(DATA))
    assert digest(Contents(), meant(tool)) == SHA256
    monkeypatch.setattr(known_files, "MAX_BYTES", len(DATA) - 1)
    assert digest(Contents(), meant(tool)) == ""


def test_what_is_no_file_is_not_opened(tool: Path) -> None:
    pipe, folder = tool.with_name("pipe"), tool.with_name("folder")
    os.mkfifo(pipe)
    folder.mkdir()

    class Closed(Contents):
        def sha256(self, path: str) -> str:
            raise AssertionError(path)

    contents = Closed()
    assert [digest(contents, meant(path)) for path in (pipe, folder)] == ["", ""]
    assert digest(contents, Meant("/nowhere\0", Signature(0, 0, 0, 0, 0))) == ""


def test_file_that_is_exchanged_while_it_is_read_has_no_digest(tool: Path) -> None:
    class Exchanged(Contents):
        def sha256(self, path: str) -> str:
            found = super().sha256(path)
            other = tool.with_name("other")
            other.write_bytes(DATA)
            os.replace(other, tool)
            return found

    assert digest(Exchanged(), meant(tool)) == ""


ROW: list[Any] = ["/tool", 1, 2, 3, 4, 5]


def test_message_is_paths_with_their_signatures() -> None:
    assert parse({"files": [ROW]}) == [Meant("/tool", Signature(1, 2, 3, 4, 5))]
    assert parse({"files": []}) == []
    assert len(parse({"files": [ROW] * known_files.MAX_FILES})) == known_files.MAX_FILES


@pytest.mark.parametrize(
    "wrong",
    [
        None, "/tool", {}, ["/tool"], [[]], [ROW[:5]], [[*ROW, 6]], [["tool", *ROW[1:]]],
        [[b"/tool", *ROW[1:]]], [[*ROW[:5], "5"]], [[*ROW[:5], True]], [[*ROW[:5], 5.0]],
        [ROW] * (known_files.MAX_FILES + 1),
    ],
)  # fmt: skip
def test_message_that_is_something_else_is_refused(wrong: object) -> None:
    with pytest.raises(BadRequestError):
        parse({"files": wrong})
