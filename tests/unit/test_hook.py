"""The start-up hook: an integration is installed after its framework was imported, and breaks nothing."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from ptocache.integrations import hook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ON = {"PTOCACHE_FAKE": "1"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A framework ``fake_framework`` and its integration, which notes that it was installed."""
    (tmp_path / "fake_framework.py").write_text("import sys\nready = True\n")
    (tmp_path / "fake_integration.py").write_text(
        "import fake_framework\ncount = 0\n"
        "def install():\n    global count\n    count += bool(fake_framework.ready)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        hook, "FRAMEWORKS", {"fake_framework": ("PTOCACHE_FAKE", "fake_integration")}
    )
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    for name in ("fake_framework", "fake_integration"):
        sys.modules.pop(name, None)


def installed() -> int:
    count: int = importlib.import_module("fake_integration").count
    return count


def test_integration_is_installed_once_the_framework_was_run(place: Path) -> None:
    assert hook.arm(ON) is not None
    assert "fake_integration" not in sys.modules
    importlib.import_module("fake_framework")
    assert installed() == 1


def test_framework_that_is_there_already_is_installed_into_at_once(place: Path) -> None:
    importlib.import_module("fake_framework")
    assert hook.arm(ON) is None
    assert installed() == 1


@pytest.mark.parametrize("value", ["", "0", "no", "off", "false"])
def test_framework_that_is_not_switched_on_is_left_alone(place: Path, value: str) -> None:
    before = list(sys.meta_path)
    assert hook.arm({"PTOCACHE_FAKE": value}) is None
    assert sys.meta_path == before


def test_arming_twice_is_arming_once(place: Path) -> None:
    assert hook.arm(ON) is hook.arm(ON)
    importlib.import_module("fake_framework")
    assert installed() == 1


def test_module_is_what_it_would_have_been(place: Path) -> None:
    plain = importlib.import_module("fake_framework")
    before = (type(plain.__loader__), plain.__spec__.origin if plain.__spec__ else "")
    del sys.modules["fake_framework"]
    hook.arm(ON)
    hooked = importlib.import_module("fake_framework")
    assert (type(hooked.__loader__), hooked.__spec__.origin if hooked.__spec__ else "") == before
    assert "exec_module" not in vars(hooked.__loader__)


def test_framework_that_fails_fails_as_ever_and_is_watched_again(place: Path) -> None:
    good = (place / "fake_framework.py").read_text()
    (place / "fake_framework.py").write_text("raise LookupError('no device')\n")
    hook.arm(ON)
    with pytest.raises(LookupError, match="no device"):
        importlib.import_module("fake_framework")
    (place / "fake_framework.py").write_text(good)
    importlib.invalidate_caches()
    importlib.import_module("fake_framework")
    assert installed() == 1


def test_framework_that_is_missing_is_missing_as_ever(place: Path) -> None:
    (place / "fake_framework.py").unlink()
    hook.arm(ON)
    with pytest.raises(ModuleNotFoundError, match="fake_framework"):
        importlib.import_module("fake_framework")


def test_integration_that_fails_is_one_warning(place: Path) -> None:
    (place / "fake_integration.py").write_text("def install():\n    raise OSError('no disk')\n")
    hook.arm(ON)
    with pytest.warns(RuntimeWarning, match="fake_framework goes on without it: OSError: no disk"):
        importlib.import_module("fake_framework")


def test_warning_that_would_be_an_error_is_a_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "fake_integration.py").write_text("def install():\n    raise OSError('no disk')\n")
    hook.arm(ON)
    importlib.import_module("fake_framework")
    assert "fake_framework goes on without it" in capsys.readouterr().err


def test_missing_ptocache_is_said_by_its_name(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"fake_framework": ("PTOCACHE_FAKE", "ptocache.integrations.nothing")}
    monkeypatch.setattr(hook, "FRAMEWORKS", wanted)
    hook.arm(ON)
    with pytest.warns(RuntimeWarning, match="ptocache is not installed for"):
        importlib.import_module("fake_framework")
