"""Plugins: the check when one is loaded, and how one is found by name."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from ptocache.errors import PluginError, UnknownToolchainError
from ptocache.model import Job, Output, Prepared
from ptocache.toolchain import GROUP, CheckedOutputs, Registry, validate

METHODS = [
    "flavour", "locate", "prepare", "plan", "collect", "discover", "judge_inputs", "beside", "finish",
    "validate",
]  # fmt: skip


def plugin(name: Any = "fake", **changes: Any) -> Any:
    """A whole plugin, as far as a registry looks; ``changes`` replace or (``...``) remove parts."""
    parts: dict[str, Any] = {
        "name": name,
        "version": "1",
        "ENV": ("FAKE_FLAGS", "FAKE_*"),
        "SEARCH": ("PATH",),
        "FLAVOURS": ("",),
        **{method: lambda *_: None for method in METHODS},
        **changes,
    }
    return type("Plugin", (), {key: value for key, value in parts.items() if value is not ...})()


def test_a_whole_plugin_is_found_by_its_name() -> None:
    one, other = plugin("one"), plugin("other")
    registry = Registry([other, one])
    assert registry.get("one") is one
    assert registry.names() == ["one", "other"]


def test_an_unknown_name_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(UnknownToolchainError, match=r"no toolchain 'three'.*installed: one, two"):
        Registry([plugin("two"), plugin("one")]).get("three")
    with pytest.raises(UnknownToolchainError, match="installed: none"):
        Registry().get("host")


@pytest.mark.parametrize("attribute", ["name", "version", "ENV", "SEARCH", "FLAVOURS"])
@pytest.mark.parametrize("value", [..., None, 7, ["PATH"]], ids=["missing", "none", "int", "list"])
def test_an_attribute_that_is_missing_or_of_another_type_is_named(
    attribute: str, value: object
) -> None:
    with pytest.raises(PluginError, match=f"the caller has no {attribute} of type") as caught:
        Registry([plugin(**{attribute: value})])
    assert "write-a-toolchain" in caught.value.hint


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [..., None, "text"], ids=["missing", "none", "text"])
def test_a_method_that_is_missing_is_named(method: str, value: object) -> None:
    with pytest.raises(PluginError, match=rf"has no method {method}\(\)"):
        Registry([plugin(**{method: value})])


@pytest.mark.parametrize("name", ["", "Fake", "1fake", "fa ke", "fake/x", "../x", "x" * 33, "fäke"])
def test_a_name_that_cannot_be_typed_everywhere_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="unusable name"):
        Registry([plugin(name)])


@pytest.mark.parametrize("name", ["a", "fake-2", "fake_2", "x" * 32])
def test_a_plain_name_is_fine(name: str) -> None:
    assert Registry([plugin(name)]).names() == [name]


def test_two_plugins_of_one_name_are_refused_naming_the_second() -> None:
    registry = Registry([plugin()])
    with pytest.raises(PluginError, match=r"two toolchain plugins are called 'fake': dist: x = y"):
        registry.add(plugin(), source="dist: x = y")


def test_a_client_must_send_the_variables_of_compile_and_search() -> None:
    assert Registry([plugin()]).variables() == {"fake": ["FAKE_FLAGS", "FAKE_*", "PATH"]}


def test_the_host_toolchain_is_found_through_its_entry_point() -> None:
    registry = Registry.discover()
    assert "host" in registry.names()
    assert registry.get("host").name == "host"


class Point:
    """An entry point as the standard library gives it."""

    name = "broken"
    value = "broken:Plugin"
    dist = None

    def __init__(self, loaded: object) -> None:
        self._loaded = loaded

    def load(self) -> object:
        if isinstance(self._loaded, BaseException):
            raise self._loaded
        return self._loaded


def discover(monkeypatch: pytest.MonkeyPatch, *loaded: object) -> Registry:
    def entry_points(group: str) -> list[Point]:
        assert group == GROUP
        return [Point(item) for item in loaded]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return Registry.discover()


@pytest.mark.parametrize("error", [ImportError("no module"), SyntaxError("bad"), ValueError("x")])
def test_a_plugin_that_cannot_be_imported_is_an_error_that_names_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PluginError, match="broken = broken:Plugin cannot be imported") as caught:
        discover(monkeypatch, error)
    assert caught.value.__cause__ is error


def test_an_entry_point_may_be_a_class_or_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = discover(monkeypatch, type(plugin("a-class")), plugin("an-object"))
    assert registry.names() == ["a-class", "an-object"]


def test_an_installed_plugin_without_the_interface_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(PluginError, match="broken = broken:Plugin has no method plan"):
        discover(monkeypatch, plugin(plan=...))


PREPARED = Prepared(Job("fake", "", (), (), (), ("o",)))
OUTPUTS = (Output("o", b"data", 0o644),)


def test_only_a_validation_makes_checked_outputs() -> None:
    seen: list[tuple[Output, ...]] = []
    judge = plugin(validate=lambda _self, _prepared, outputs: seen.append(outputs))
    assert validate(judge, PREPARED, OUTPUTS).outputs == OUTPUTS
    assert seen == [OUTPUTS]
    for token in (None, object(), True):
        with pytest.raises(TypeError, match=r"only .* makes CheckedOutputs"):
            CheckedOutputs(OUTPUTS, token)


def test_outputs_that_do_not_pass_are_not_checked_outputs() -> None:
    def reject(*_: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        validate(plugin(validate=reject), PREPARED, OUTPUTS)
