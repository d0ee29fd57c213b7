"""Finding a compiler driver and asking it what it would call, where it looks, and what "native" is."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from ptocache.errors import ToolNotFoundError
from ptocache.model import Installation, ToolFile
from ptocache.toolchain import COMPILE_PATH
from ptocache_cfamily.options import is_unseen
from ptocache_cfamily.programs import is_program, is_shim, loaded_libraries, on_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ptocache.toolchain import Probe

LANGUAGES = {"c": ("CC", ("cc", "gcc", "clang")), "c++": ("CXX", ("c++", "g++", "clang++"))}
"""Language → (variable, names to look for)."""
_FRONT_ENDS = {"c": "cc1", "c++": "cc1plus"}
# Prefixed to the compiler's name by build systems; a cache in front of a cache only hides it.
_LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc"})
_PLUGINS = ("liblto_plugin.so",)
_LINK_PROGRAMS = ("collect2", "ld", "lto-wrapper", "lto1")


class Found(NamedTuple):
    """A driver on disk, the options that came with its name, and the earlier places of the search."""

    path: str
    prefix: tuple[str, ...]
    absent: tuple[str, ...]
    shims: tuple[str, ...] = ()
    """Earlier places that hold launchers of ptocache itself."""


def find(language: str, env: Mapping[str, str]) -> Found:
    """The driver for a language: ``$CC``/``$CXX``, else the first known name on ``PATH``.

    Raises :class:`~ptocache.errors.ToolNotFoundError` with where it looked.
    """
    variable, known = LANGUAGES[language]
    names: tuple[str, ...] = known
    words = _words(variable, env.get(variable, ""))
    prefix: tuple[str, ...] = ()
    if words:
        names, prefix = (words[0],), tuple(words[1:])
    absent: list[str] = []
    shims: list[str] = []
    for name in names:
        for place in _places(name, env.get("PATH", "")):
            if not is_program(place):
                absent.append(place)
            elif is_shim(place):
                shims.append(place)
            else:
                return Found(place, prefix, tuple(absent), tuple(shims))
    raise ToolNotFoundError(
        f"no {'C++' if language == 'c++' else 'C'} compiler was found",
        hint=f"install one of {', '.join(LANGUAGES[language][1])}, or set {variable}; "
        f"looked at: {', '.join(absent) or 'an empty PATH'}",
        looked=absent,
    )


def locate(
    languages: tuple[str, ...],
    link: bool,
    env: Mapping[str, str],
    probe: Probe,
    path: str = COMPILE_PATH,
) -> Installation:
    """The installation that jobs in these languages need, with or without a link. ``path``: the ``PATH``
    of its runs, on which a driver looks for programs that it does not bring."""
    files: dict[str, ToolFile] = {}
    absent: list[str] = []
    facts: dict[str, Any] = {}
    local: dict[str, Any] = {}
    directories: set[str] = set()
    banner = uncertain = ""
    for language in languages:
        found = find(language, env)
        driver = (found.path, *found.prefix)
        unseen = next((word for word in found.prefix if is_unseen(word)), "")
        if unseen:
            uncertain = (
                f"{LANGUAGES[language][0]} holds {unseen}, which brings in what nobody lists"
            )
        absent += found.absent
        directories.update(map(os.path.dirname, found.shims))
        files[language] = ToolFile(language, found.path, True)
        front = _describe(driver, language, probe)
        own_banner = front.pop("banner")
        banner = banner or own_banner
        # A folder of the compiler's own search that is not there yet may be there tomorrow.
        directories.update(front.pop("missing_dirs"))
        facts[language] = {**front, "prefix": list(found.prefix)}
        local[language] = {"native": _native(driver, language, probe), "path": path}
        programs = (_FRONT_ENDS[language], "as", *(_LINK_PROGRAMS if link else ()))
        for program in programs:
            _add_program(files, directories, driver, program, probe, path)
        if link:
            facts[language]["linker"] = _describe_linker(driver, files, probe)
    for file in list(files.values()):
        _add_libraries(files, file, probe)
    directories.update(os.path.dirname(file.path) for file in files.values() if file.principal)
    return Installation(
        banner=banner,
        files=tuple(files.values()),
        absent=tuple(dict.fromkeys(absent)),
        directories=tuple(sorted(directories)),
        facts=facts,
        local=local,
        uncertain=uncertain,
    )


def _words(variable: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ToolNotFoundError(
            f"{variable}={text!r} cannot be understood: {error}", looked=[]
        ) from error
    while len(words) > 1 and os.path.basename(words[0]) in _LAUNCHERS:
        words = words[1:]
    return words


def _places(name: str, path: str) -> list[str]:
    if os.path.isabs(name):
        return [name]
    if "/" in name:
        return []
    return list(on_path(name, path))


def _describe(driver: tuple[str, ...], language: str, probe: Probe) -> dict[str, Any]:
    """Target, family, banner and system include directories, out of one verbose run on nothing."""
    answer = probe((*driver, "-x", language, "-E", "-v", "/dev/null"))
    if answer.exit_code != 0:
        raise ToolNotFoundError(
            f"{driver[0]} does not work as a compiler (exit code {answer.exit_code}): "
            f"{answer.stderr.strip()[-200:]}",
            hint="try it by hand: a compiler answers to -E -v /dev/null",
            looked=[driver[0]],
        )
    text = answer.stderr
    target = re.search(r"^Target: (\S+)", text, re.MULTILINE)
    version = re.search(r"^.*\b(?:gcc|clang) version .*$", text, re.MULTILINE)
    return {
        "banner": version.group(0).strip() if version else "",
        "family": "clang" if version and "clang" in version.group(0) else "gcc",
        "target": target.group(1) if target else "",
        "include_dirs": _listed(text, "#include <...> search starts here:"),
        "missing_dirs": re.findall(r'^ignoring nonexistent directory "(/.*)"$', text, re.MULTILINE),
    }


def _listed(text: str, title: str) -> list[str]:
    _, found, tail = text.partition(title)
    if not found:
        return []
    lines = tail.partition("End of search list.")[0].splitlines()
    return [line.strip().removesuffix(" (framework directory)") for line in lines if line.strip()]


def _native(driver: tuple[str, ...], language: str, probe: Probe) -> str:
    """What ``native`` stands for here: the front end's own command line; empty if it has no meaning."""
    option = "-march=native"
    answer = probe((*driver, option, "-###", "-x", language, "-c", "/dev/null"))
    if answer.exit_code != 0:
        return ""
    lines = answer.stderr.split("\n")
    for number, line in enumerate(lines):
        if "cc1" in line and "/dev/null" in line:
            words = _command_line(lines[number:])
            return " ".join(word for word in words if _is_target_word(word, words))
    return ""


def _command_line(lines: list[str]) -> list[str]:
    """The words of a command line, which goes on where a quotation does: the private directory that
    it names may have a line's end in its path."""
    for count in range(1, len(lines) + 1):
        with contextlib.suppress(ValueError):
            return shlex.split("\n".join(lines[:count]))
    return []


def _is_target_word(word: str, words: list[str]) -> bool:
    if word.startswith(("-m", "--param", "+", "l1-cache", "l2-cache")):
        return word != "-march=native"
    index = words.index(word)
    return index > 0 and words[index - 1] in (
        "-target-cpu",
        "-tune-cpu",
        "-target-feature",
        "--param",
    )


def _add_program(
    files: dict[str, ToolFile],
    directories: set[str],
    driver: tuple[str, ...],
    program: str,
    probe: Probe,
    path: str,
) -> None:
    if program in files:
        return
    answer = probe((*driver, f"-print-prog-name={program}")).stdout.strip()
    for place in _places(answer, path) if answer else ():
        if is_program(place):
            # The link-time optimiser only runs for jobs that ask for it; its own checks are enough.
            files[program] = ToolFile(program, place, not program.startswith("lto"))
            return
        # Earlier places of the search path: watched, and looked at around each compile.
        directories.add(os.path.dirname(place))


def _describe_linker(
    driver: tuple[str, ...], files: dict[str, ToolFile], probe: Probe
) -> dict[str, Any]:
    """Where libraries are looked for, and whether the linker lists what it opened."""
    for name in _PLUGINS:
        path = probe((*driver, f"-print-file-name={name}")).stdout.strip()
        if os.path.isabs(path) and os.path.isfile(path):
            files.setdefault(name, ToolFile(name, path, False))
    dirs = probe((*driver, "-print-search-dirs")).stdout
    match = re.search(r"^libraries: =(.*)$", dirs, re.MULTILINE)
    help_text = probe((*driver, "-Wl,--help")).stdout
    return {
        "library_dirs": match.group(1).split(os.pathsep) if match else [],
        "dependency_file": "--dependency-file" in help_text,
    }


def _add_libraries(files: dict[str, ToolFile], tool: ToolFile, probe: Probe) -> None:
    for path in loaded_libraries(tool.path, probe):
        role = f"lib:{os.path.basename(path)}"
        files.setdefault(role, ToolFile(role, path, False))
