"""Where the store, the settings and the socket lie, and whom the socket's folder may belong to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ptocache.errors import BadRequestError, PeerRefusedError
from ptocache.paths import (
    SOCKET_PATH_LIMIT,
    StorePaths,
    config_file,
    default_root,
    make_socket_directory,
    socket_path,
    verify_socket_directory,
)

UID = os.geteuid()
ROOT = "/somewhere/store"
NAME_BYTES = len("/ptocache/0123456789abcdef.sock")


@pytest.mark.parametrize(
    ("env", "root"),
    [
        ({"HOME": "/home/me"}, "/home/me/.cache/ptocache"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/big/cache"}, "/big/cache/ptocache"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "relative"}, "/home/me/.cache/ptocache"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": ""}, "/home/me/.cache/ptocache"),
        ({}, f"/var/tmp/ptocache-{UID}"),
        ({"HOME": ""}, f"/var/tmp/ptocache-{UID}"),
        ({"HOME": "/"}, f"/var/tmp/ptocache-{UID}"),
        ({"HOME": "//"}, f"/var/tmp/ptocache-{UID}"),
        ({"HOME": "relative"}, f"/var/tmp/ptocache-{UID}"),
    ],
    ids=repr,
)
def test_default_place_of_the_store(env: dict[str, str], root: str) -> None:
    assert default_root(env) == root


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"HOME": "/home/me"}, "/home/me/.config/ptocache/config.toml"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}, "/x/ptocache/config.toml"),
        ({"HOME": "/h", "XDG_CONFIG_HOME": "x"}, "/h/.config/ptocache/config.toml"),
        ({"HOME": "/h", "PTOCACHE_CONFIG": "/my.toml"}, "/my.toml"),
        ({}, ""),
        ({"HOME": "/"}, ""),
        ({"HOME": "relative"}, ""),
    ],
    ids=repr,
)
def test_place_of_the_settings(env: dict[str, str], path: str) -> None:
    assert config_file(env) == path


def test_names_below_the_root() -> None:
    paths = StorePaths("/s")
    sha = "ab" + "0" * 62
    assert paths.blob(sha) == f"/s/blobs/ab/{sha}"
    assert paths.blob_directory(sha) == "/s/blobs/ab"
    found = {os.path.relpath(getattr(paths, name), "/s") for name in paths.__slots__}
    assert found == {
        ".", "blobs", "tmp", "quarantine", "index.sqlite", "daemon.lock", "start.lock",
        "daemon.log", "VERSION", "CACHEDIR.TAG",
    }  # fmt: skip


def test_the_tag_has_the_signature_of_its_specification() -> None:
    signature = b"Signature: 8a477f597d28d172789f06886806bc55"
    assert StorePaths("/s").tag_bytes.startswith(signature)


# --- the socket's place


def test_an_explicit_socket_is_taken_as_it_is() -> None:
    env = {"PTOCACHE_SOCKET": "/my/own.sock", "XDG_RUNTIME_DIR": "/tmp"}
    assert socket_path(env, ROOT) == "/my/own.sock"


def test_an_explicit_socket_may_be_as_long_as_an_address_and_no_longer() -> None:
    longest = "/" + "x" * (SOCKET_PATH_LIMIT - 1)
    assert socket_path({"PTOCACHE_SOCKET": longest}, ROOT) == longest
    with pytest.raises(BadRequestError, match=f"at most {SOCKET_PATH_LIMIT}") as caught:
        socket_path({"PTOCACHE_SOCKET": longest + "x"}, ROOT)
    assert caught.value.fields["path"] == longest + "x"


def test_length_counts_in_bytes() -> None:
    # 60 letters of two bytes each.
    with pytest.raises(BadRequestError, match="121 bytes"):
        socket_path({"PTOCACHE_SOCKET": "/" + "ä" * 60}, ROOT)


def test_the_limit_is_the_one_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for length, fits in ((SOCKET_PATH_LIMIT, True), (SOCKET_PATH_LIMIT + 1, False)):
        with socket.socket(socket.AF_UNIX) as made:
            name = "x" * length
            if fits:
                made.bind(name)
            else:
                with pytest.raises(OSError, match="too long"):
                    made.bind(name)


@pytest.mark.parametrize("path", ["own.sock", "./own.sock", "a/own.sock"])
def test_a_relative_socket_is_refused_as_client_and_daemon_would_differ(path: str) -> None:
    with pytest.raises(BadRequestError, match="absolute"):
        socket_path({"PTOCACHE_SOCKET": path}, ROOT)


def test_the_default_socket_lies_in_the_runtime_folder(tmp_path: Path) -> None:
    found = socket_path({"XDG_RUNTIME_DIR": str(tmp_path)}, ROOT)
    assert os.path.dirname(found) == str(tmp_path / "ptocache")
    assert found.endswith(".sock")


@pytest.mark.parametrize("value", ["", "relative", "/does/not/exist"])
def test_without_a_usable_runtime_folder_it_lies_in_a_private_one_below_tmp(value: str) -> None:
    found = socket_path({"XDG_RUNTIME_DIR": value}, ROOT)
    assert os.path.dirname(found) == f"/tmp/ptocache-{UID}"
    assert found == socket_path({}, ROOT)


@pytest.mark.parametrize(("extra", "kept"), [(0, True), (1, False)])
def test_a_runtime_folder_too_long_for_an_address_gives_the_short_place(
    extra: int, kept: bool, tmp_path: Path
) -> None:
    room = SOCKET_PATH_LIMIT - NAME_BYTES + extra - len(os.fsencode(tmp_path)) - 1
    assert room > 0, "the test's own folder must be short enough"
    runtime = tmp_path / ("x" * room)
    runtime.mkdir()
    found = socket_path({"XDG_RUNTIME_DIR": str(runtime)}, ROOT)
    assert found.startswith(str(runtime)) is kept
    assert len(found) <= SOCKET_PATH_LIMIT
    if not kept:
        assert found == socket_path({}, ROOT)


def test_two_stores_have_two_sockets_and_two_spellings_of_one_store_have_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    real = socket_path({}, str(tmp_path / "store"))
    assert socket_path({}, str(tmp_path / "link")) == real
    assert socket_path({}, str(tmp_path / "other")) != real


# --- the socket's folder


def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    folder.chmod(0o700)
    return folder


def test_a_private_folder_of_ones_own_is_fine(tmp_path: Path) -> None:
    verify_socket_directory(str(private(tmp_path) / "s"))


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o704, 0o720, 0o750, 0o755, 0o777, 0o1777])
def test_a_folder_open_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    folder = private(tmp_path)
    folder.chmod(mode)
    with pytest.raises(PeerRefusedError, match="open to others") as caught:
        verify_socket_directory(str(folder / "s"))
    assert caught.value.fields["path"] == str(folder)


def test_a_link_to_a_private_folder_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(private(tmp_path))
    with pytest.raises(PeerRefusedError, match="symbolic link"):
        verify_socket_directory(str(link / "s"))


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    file.chmod(0o600)
    with pytest.raises(PeerRefusedError, match="not a directory"):
        verify_socket_directory(str(file / "s"))


@pytest.mark.skipif(UID != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = private(tmp_path)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PeerRefusedError, match="belongs to user 12345"):
        verify_socket_directory(str(folder / "s"))


def test_a_folder_that_is_not_there_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify_socket_directory(str(tmp_path / "none" / "s"))


def test_a_folder_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_socket_directory(str(tmp_path / "a" / "b" / "s"))
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_making_the_folder_twice_is_fine_and_a_bad_one_is_still_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "made" / "s")
    make_socket_directory(path)
    make_socket_directory(path)
    (tmp_path / "made").chmod(0o755)
    with pytest.raises(PeerRefusedError):
        make_socket_directory(path)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o755, "left as it was"
