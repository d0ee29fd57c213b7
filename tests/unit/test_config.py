"""Settings: which source wins, what each value may be, and errors that name setting, value, source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ptocache.config import LOG_LEVELS, MODES, TABLE, Settings, load, parse_age, parse_size
from ptocache.errors import ConfigError

GOOD: dict[str, tuple[str, Any]] = {
    "store.root": ("/somewhere/store", "/somewhere/store"),
    "store.max_size": ("2G", 2 << 30),
    "store.low_water": ("0.5", 0.5),
    "store.max_age": ("30d", 30 * 86400.0),
    "store.fsync": ("no", False),
    "compile.jobs": ("3", 3),
    "compile.step_timeout": ("90", 90.0),
    "compile.negative_ttl": ("1h", 3600.0),
    "compile.log_limit": ("64K", 64 << 10),
    "kernel.lease_timeout": ("2h", 7200.0),
    "daemon.idle_timeout": ("10m", 600.0),
    "daemon.memory": ("1M", 1 << 20),
    "daemon.rescan": ("5s", 5.0),
    "daemon.watch": ("0", False),
    "daemon.log_level": ("debug", "debug"),
    "daemon.log_format": ("json", "json"),
    "daemon.log_file": ("/var/log//mine.log", "/var/log/mine.log"),
    "daemon.log_size": ("1M", 1 << 20),
    "daemon.log_count": ("7", 7),
    "identity.relocatable": ("on", True),
    "identity.trust_scripts": ("/a/cc:/b/cc", ("/a/cc", "/b/cc")),
    "request.salt": ("pepper", "pepper"),
    "request.priority": ("sweep", "sweep"),
    "request.mode": ("refresh", "refresh"),
    "request.base_dirs": ("/a/proj:/b/venv/", ("/a/proj", "/b/venv")),
    "client.require": ("1", True),
    "client.autostart": ("0", False),
    "client.record": ("/a/m.journal", "/a/m.journal"),
}
BAD: dict[str, tuple[str, ...]] = {
    "store.root": ("relative", "./x"),
    "store.max_size": ("big", "-1", "1X", "nan", "inf", "1e400", "1e308T", "G", "10 Gigs"),
    "store.low_water": ("0", "1.01", "-0.5", "half", "nan", "90%"),
    "store.max_age": ("old", "-1d", "1y", "1e400", "1e308w"),
    "store.fsync": ("maybe", "2", "enabled"),
    "compile.jobs": ("0", "-1", "1.5", "many"),
    "compile.step_timeout": ("soon", "-5"),
    "compile.negative_ttl": ("x",),
    "compile.log_limit": ("x",),
    "kernel.lease_timeout": ("x", "-1s"),
    "daemon.idle_timeout": ("x",),
    "daemon.memory": ("x",),
    "daemon.rescan": ("x",),
    "daemon.watch": ("x",),
    "daemon.log_level": ("loud", "DEBUG"),
    "daemon.log_format": ("xml", "JSON"),
    "daemon.log_file": ("daemon.log", "./daemon.log"),
    "daemon.log_size": ("x", "-1"),
    "daemon.log_count": ("0", "-1", "x"),
    "identity.relocatable": ("x",),
    "identity.trust_scripts": ("cc", "/a/cc:cc"),
    "request.priority": ("urgent", "0"),
    "request.mode": ("off", "USE", "read_only"),
    "request.base_dirs": ("proj", "/", "/a:/", "/a=b", ":".join(f"/b{n}" for n in range(17))),
    "client.require": ("x",),
    "client.autostart": ("x",),
    "client.record": ("m.journal",),
}
DEFAULTS: dict[str, Any] = {
    "store.root": "/home/me/.cache/ptocache",
    "store.max_size": 10 << 30,
    "store.low_water": 0.9,
    "store.max_age": 0.0,
    "store.fsync": True,
    "compile.jobs": len(os.sched_getaffinity(0)),
    "compile.step_timeout": 900.0,
    "compile.negative_ttl": 300.0,
    "compile.log_limit": 1 << 20,
    "kernel.lease_timeout": 900.0,
    "daemon.idle_timeout": 0.0,
    "daemon.memory": 64 << 20,
    "daemon.rescan": 60.0,
    "daemon.watch": True,
    "daemon.log_level": "info",
    "daemon.log_format": "text",
    "daemon.log_file": "",
    "daemon.log_size": 8 << 20,
    "daemon.log_count": 3,
    "identity.relocatable": False,
    "identity.trust_scripts": (),
    "request.salt": "",
    "request.priority": "",
    "request.mode": "use",
    "request.base_dirs": (),
    "client.require": False,
    "client.autostart": True,
    "client.record": "",
}
VARIABLES = {row.name: row.variable for row in TABLE}
ROWS = sorted(VARIABLES)


def with_file(directory: Path, text: str) -> dict[str, str]:
    """An environment whose settings' file holds ``text``."""
    path = directory / "config.toml"
    path.write_text(text, encoding="utf-8")
    return {"HOME": "/home/me", "PTOCACHE_CONFIG": str(path)}


def toml(name: str, value: str) -> str:
    section, key = name.split(".")
    return f"[{section}]\n{key} = '{value}'\n"


def test_every_setting_has_samples_here() -> None:
    assert set(GOOD) == set(DEFAULTS) == set(VARIABLES)
    assert set(VARIABLES) - set(BAD) == {"request.salt"}, "any text is a salt"


@pytest.mark.parametrize("name", ROWS)
def test_default_of(name: str) -> None:
    settings = load({"HOME": "/home/me"})
    assert settings[name] == DEFAULTS[name]
    assert settings.source(name) == "default"


@pytest.mark.parametrize("name", ROWS)
def test_each_source_wins_over_the_ones_before_it(name: str, tmp_path: Path) -> None:
    text, value = GOOD[name]
    env = with_file(tmp_path, toml(name, text))
    settings = load(env)
    assert (settings[name], settings.source(name)) == (value, env["PTOCACHE_CONFIG"])

    # An unusable value in the file shows that it is not even looked at.
    bad = BAD.get(name, ("",))[0]
    env = {**with_file(tmp_path, toml(name, bad)), VARIABLES[name]: text}
    settings = load(env)
    assert (settings[name], settings.source(name)) == (value, VARIABLES[name])

    settings = load({**env, VARIABLES[name]: bad}, {name: text})
    assert (settings[name], settings.source(name)) == (value, "command line")


@pytest.mark.parametrize("name", ROWS)
def test_an_empty_variable_and_an_override_of_nothing_count_as_unset(name: str) -> None:
    settings = load({"HOME": "/home/me", VARIABLES[name]: ""}, {name: None})
    assert (settings[name], settings.source(name)) == (DEFAULTS[name], "default")


@pytest.mark.parametrize(("name", "value"), [(n, v) for n in sorted(BAD) for v in BAD[n]])
def test_a_bad_value_is_an_error_that_names_setting_value_and_source(
    name: str, value: str, tmp_path: Path
) -> None:
    in_file = with_file(tmp_path, toml(name, value))
    attempts: list[tuple[dict[str, str], dict[str, object], str]] = [
        (in_file, {}, in_file["PTOCACHE_CONFIG"]),
        ({"HOME": "/home/me", VARIABLES[name]: value}, {}, VARIABLES[name]),
        ({"HOME": "/home/me"}, {name: value}, "command line"),
    ]
    for env, overrides, source in attempts:
        with pytest.raises(ConfigError) as caught:
            load(env, overrides)
        fields = caught.value.fields
        assert (fields["setting"], fields["value"], fields["source"]) == (name, value, source)
        for part in (name, value, source):
            assert part in str(caught.value)


def test_toml_values_keep_their_types(tmp_path: Path) -> None:
    text = """
[store]
max_size = 1048576
low_water = 0.25
fsync = false
[compile]
jobs = 5
step_timeout = 2.5
[identity]
trust_scripts = ["/a/cc", "/b/../c"]
"""
    settings = load(with_file(tmp_path, text))
    assert settings["store.max_size"] == 1 << 20
    assert settings["store.low_water"] == 0.25
    assert settings["store.fsync"] is False
    assert settings["compile.jobs"] == 5
    assert settings["compile.step_timeout"] == 2.5
    assert settings["identity.trust_scripts"] == ("/a/cc", "/c")


@pytest.mark.parametrize(
    "text",
    [
        "[store]\nroot = 7",
        "[store]\nmax_size = true",
        "[store]\nmax_size = [1]",
        "[compile]\njobs = false",
        "[request]\nsalt = 7",
        "[identity]\ntrust_scripts = [7]",
        "[identity]\ntrust_scripts = 7",
        "[daemon]\nlog_level = {a = 1}",
        "[store]\nlow_water = 1979-05-27",
    ],
)
def test_a_toml_value_of_another_type_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load(with_file(tmp_path, text))


@pytest.mark.parametrize(
    "text", ["[store]\nmaxsize = '1G'", "[stor]\nroot = '/x'", "[store.deep]\nroot = '/x'"]
)
def test_an_unknown_setting_in_the_file_is_an_error_that_names_it(
    text: str, tmp_path: Path
) -> None:
    env = with_file(tmp_path, text)
    with pytest.raises(ConfigError, match="there is no setting") as caught:
        load(env)
    assert caught.value.fields["path"] == env["PTOCACHE_CONFIG"]


def test_a_setting_outside_of_a_section_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outside of a section"):
        load(with_file(tmp_path, "max_size = '1G'"))


@pytest.mark.parametrize("content", [b"this is no toml", b"[store", b"\xff\xfe", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_an_error_that_names_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is not TOML") as caught:
        load({"PTOCACHE_CONFIG": str(path)})
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load({"PTOCACHE_CONFIG": str(tmp_path)})


def test_a_named_file_that_is_not_there_is_an_error_and_a_default_one_is_not(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load({"PTOCACHE_CONFIG": str(tmp_path / "none.toml")})
    assert load({"HOME": str(tmp_path)}).source("store.max_size") == "default"


def test_the_default_file_is_found_below_home_and_xdg(tmp_path: Path) -> None:
    for env, place in (
        ({"HOME": str(tmp_path / "h")}, tmp_path / "h" / ".config"),
        ({"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path / "x")}, tmp_path / "x"),
    ):
        path = place / "ptocache" / "config.toml"
        path.parent.mkdir(parents=True)
        path.write_text("[compile]\njobs = 7\n")
        settings = load(env)
        assert (settings["compile.jobs"], settings.source("compile.jobs")) == (7, str(path))


def test_without_arguments_the_environment_of_the_process_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PTOCACHE_SALT", "of the process")
    assert load()["request.salt"] == "of the process"


def test_items_are_all_settings_in_the_order_of_the_table() -> None:
    settings = load({"HOME": "/home/me"})
    assert isinstance(settings, Settings)
    assert [name for name, _ in settings.items()] == [row.name for row in TABLE]


def test_names_and_variables_are_unique() -> None:
    assert len({row.name for row in TABLE}) == len({row.variable for row in TABLE}) == len(TABLE)
    assert all(row.help for row in TABLE)


def test_every_choice_is_accepted() -> None:
    for mode in MODES:
        assert load({"HOME": "/h", "PTOCACHE_MODE": mode})["request.mode"] == mode
    for level in LOG_LEVELS:
        assert load({"HOME": "/h", "PTOCACHE_LOG_LEVEL": level})["daemon.log_level"] == level


def test_the_socket_belongs_to_the_store_that_is_meant() -> None:
    one, other = (load({"HOME": "/h", "PTOCACHE_DIR": root}).socket for root in ("/a", "/b"))
    assert one != other
    assert load({"HOME": "/h"}, {"store.root": "/a"}).socket == one


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        (4096, 4096),
        (" 12 ", 12),
        ("1b", 1),
        ("1k", 1 << 10),
        ("1K", 1 << 10),
        ("1kb", 1 << 10),
        ("1KiB", 1 << 10),
        ("10 GiB", 10 << 30),
        ("1.5M", 3 << 19),
        ("500M", 500 << 20),
        ("2T", 2 << 40),
        ("1e3", 1000),
    ],
)
def test_sizes_in_human_units(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        (90, 90.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("30m", 1800.0),
        ("30 M", 1800.0),
        ("12h", 43200.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
        ("0.5h", 1800.0),
    ],
)
def test_ages_in_human_units(text: object, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " ", "K", "1Q", "1 K B", "--1", "-1", "1,5G", "nan", "inf", "1e999", None, "s", "1ms"],
)
def test_what_is_no_size_and_no_age_is_a_value_error(text: object) -> None:
    with pytest.raises(ValueError):
        parse_size(text)
    with pytest.raises(ValueError):
        parse_age(text)
