"""Events of real directories. They are hints: what is tested is that they come, and that nothing breaks
where they cannot."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from ptocache.watch import Watcher
from tests.harness import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Seen:
    """A watcher and the paths that it told of."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.watcher = Watcher(self.paths.add)

    def wait(self, path: Path) -> None:
        wait_for(lambda: str(path) in self.paths, f"an event at {path}")


@pytest.fixture
def seen() -> Iterator[Seen]:
    found = Seen()
    yield found
    found.watcher.stop()


def test_a_change_in_a_directory_is_told(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"1")
    seen.watcher.watch([str(tmp_path)])
    (tmp_path / "tool").write_bytes(b"2")
    seen.wait(tmp_path / "tool")


def test_a_change_deep_in_a_tree_is_told_also_in_folders_that_came_later(
    seen: Seen, tmp_path: Path
) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    seen.watcher.watch([], [str(tmp_path)])
    (deep / "x.h").touch()
    seen.wait(deep / "x.h")
    (deep / "new").mkdir()
    seen.wait(deep / "new")
    (deep / "new" / "y.h").touch()
    seen.wait(deep / "new" / "y.h")


def test_only_changes_are_told(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(b"1")
    seen.watcher.watch([str(tmp_path)])
    (tmp_path / "tool").read_bytes()
    (tmp_path / "last").touch()
    seen.wait(tmp_path / "last")
    assert str(tmp_path / "tool") not in seen.paths


def test_both_ends_of_a_rename_are_told(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    seen.watcher.watch([str(tmp_path)])
    (tmp_path / "old").rename(tmp_path / "new")
    seen.wait(tmp_path / "old")
    seen.wait(tmp_path / "new")


def test_another_tree_in_the_place_of_a_watched_one_is_watched_when_named_again(
    seen: Seen, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    seen.watcher.watch([], [str(tree)])
    tree.rename(tmp_path / "away")
    (tree / "in").mkdir(parents=True)
    seen.watcher.watch([], [str(tree)])
    (tree / "in" / "x").touch()
    seen.wait(tree / "in" / "x")
    assert seen.watcher.state()["trees"] == 1


def test_what_is_named_twice_is_watched_once_and_what_is_no_directory_not_at_all(
    seen: Seen, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    names = [str(tmp_path), str(tmp_path / "file"), str(tmp_path / "nothing")]
    seen.watcher.watch([], names)
    seen.watcher.watch(names, names)
    assert seen.watcher.state() == {"directories": 0, "trees": 1, "trouble": ""}


def test_a_limit_of_the_kernel_is_said_and_breaks_nothing(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    real = seen.watcher._observer.schedule

    def no_more(handler, path, **how):  # type: ignore[no-untyped-def]
        if how["recursive"]:
            raise OSError(errno.ENOSPC, "inotify watch limit reached")
        return real(handler, path, **how)

    monkeypatch.setattr(seen.watcher._observer, "schedule", no_more)
    seen.watcher.watch([str(tmp_path / "one")], [str(tmp_path)])
    assert "inotify watch limit reached" in seen.watcher.trouble
    assert seen.watcher.state()["directories"] == 1
    assert seen.watcher.state()["trees"] == 0
    (tmp_path / "one" / "x").touch()
    seen.wait(tmp_path / "one" / "x")


def test_a_watcher_that_is_switched_off_watches_nothing_and_says_so(tmp_path: Path) -> None:
    watcher = Watcher(lambda path: None, enabled=False)
    watcher.watch([str(tmp_path)], [str(tmp_path)])
    assert watcher.state() == {
        "directories": 0,
        "trees": 0,
        "trouble": "switched off (daemon.watch)",
    }
    watcher.stop()


def test_nothing_comes_after_the_end(seen: Seen, tmp_path: Path) -> None:
    seen.watcher.watch([str(tmp_path)])
    seen.watcher.stop()
    seen.paths.clear()
    (tmp_path / "x").touch()
    assert seen.paths == set()
