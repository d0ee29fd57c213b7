"""Launchers: those that are followed, with what they lead to, and those that may lead anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.compiler import probe
from ptocache.errors import ToolNotFoundError
from ptocache.toolchain import ProbeResult
from ptocache_cann import launcher
from tests.simcann import SimCann, build_tool, make_pip_ptoas, make_ptoas_release

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal


class Places:
    """Where the simulated tools log."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log, self.knobs = root / "sim" / "log", root / "sim" / "knobs"
        self.knobs.mkdir(parents=True)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python environment with a ptoas in it, as pip would install it."""
    prefix = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    own = Places(tmp_path_factory.mktemp("sim"))
    make_pip_ptoas(prefix, log=own.log, knobs=own.knobs, python=f"{prefix}/bin/python")
    return prefix


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def names(paths: object) -> set[str]:
    assert isinstance(paths, tuple)
    return {os.path.basename(str(path)) for path in paths}


def roles(lead: launcher.Lead) -> set[str]:
    return set(parts(lead))


def parts(lead: launcher.Lead) -> dict[str, str]:
    """Role → path."""
    found = {file.role: file.path for file in lead.files}
    return {**found, **{tree.role: tree.path for tree in lead.trees}}


# --- programs and foreign caches


def test_a_program_leads_nowhere_else(places: Places) -> None:
    tool = build_tool(places.root / "bin", log=places.log, knobs=places.knobs)
    assert not launcher.is_script(str(tool))
    assert launcher.follow(str(tool), "", probe) == launcher.Lead(True)


@pytest.mark.parametrize("name", ["ccache", "sccache", "distcc", "icecc"])
def test_a_link_to_another_cache_is_known_by_where_it_leads(name: str, tmp_path: Path) -> None:
    script(tmp_path / "real" / name, "#!/bin/sh\n")
    (tmp_path / "bisheng").symlink_to(tmp_path / "real" / name)
    assert launcher.is_cache(str(tmp_path / "bisheng"))
    assert not launcher.is_cache(script(tmp_path / "other" / "bisheng", "#!/bin/sh\n"))


@pytest.mark.parametrize(
    "text",
    [
        '#!/bin/sh\nexec /opt/real/ptoas "$@"\n',
        '#!/bin/sh\nexec "$(cat /etc/which-ptoas)" "$@"\n',
        "#!/usr/bin/env python3\nimport os\nos.execv('/opt/real/ptoas', ['ptoas'])\n",
        "#!\n",
        "#!relative/python\nfrom ptoas import main\nif True:\n    sys.exit(main())\n",
    ],
)
def test_a_shim_may_lead_anywhere(text: str, tmp_path: Path) -> None:
    path = script(tmp_path / "ptoas", text)
    assert launcher.is_script(path)
    assert not launcher.follow(path, "", probe).followed


# --- what pip writes

BODY = """\
import re
import sys
from ptoas.__main__ import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""
NEWER = """\
import sys
from ptoas.__main__ import main
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(main())
"""
UV = """\
# -*- coding: utf-8 -*-
import sys
from ptoas.__main__ import main
if __name__ == "__main__":
    if sys.argv[0].endswith("-script.pyw"):
        sys.argv[0] = sys.argv[0][:-11]
    elif sys.argv[0].endswith(".exe"):
        sys.argv[0] = sys.argv[0][:-4]
    sys.exit(main())
"""
HEADS = {
    "plain": "#!{python}\n",
    "with options": "#!{python} -E\n",
    "handed on": "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
    "handed on, quoted": "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
}


FORMS = {
    **{f"pip, {name}": (head, BODY) for name, head in HEADS.items()},
    "newer pip": (HEADS["handed on"], NEWER),
    "uv": (HEADS["plain"], UV),
}


@pytest.mark.parametrize(("head", "body"), FORMS.values(), ids=FORMS)
def test_a_launcher_of_pip_is_followed_to_its_package_and_interpreter(
    head: str, body: str, venv: Path, tmp_path: Path
) -> None:
    path = script(tmp_path / "bin" / "ptoas", head.format(python=venv / "bin" / "python") + body)
    lead = launcher.follow(path, "", probe)
    assert lead.followed
    assert {"python", "tree:package ptoas", "tree:python library 0"} <= roles(lead)
    found = parts(lead)
    assert found["python"] == str(venv / "bin" / "python")
    assert found["tree:package ptoas"].startswith(str(venv / "lib"))
    # What the package itself starts loads this, though no file that pip wrote tells.
    assert "libc.so.6" in names(lead.libraries)


@pytest.mark.parametrize(
    "more",
    [
        "import os\n",
        "exec(open('/etc/other').read())\n",
        "sys.path.insert(0, '/opt')\n",
        "sys.argv[0] = ''; import other\n",
        "from other import thing\n",
    ],
)
def test_a_launcher_of_pip_that_somebody_has_edited_may_lead_anywhere(
    more: str, venv: Path, tmp_path: Path
) -> None:
    head = HEADS["plain"].format(python=venv / "bin" / "python")
    path = script(tmp_path / "ptoas", head + more + BODY)
    assert not launcher.follow(path, "", probe).followed


def test_a_launcher_whose_interpreter_or_package_is_gone_is_not_followed(
    venv: Path, tmp_path: Path
) -> None:
    gone = script(tmp_path / "one", HEADS["plain"].format(python=tmp_path / "python3") + BODY)
    assert not launcher.follow(gone, "", probe).followed
    other = HEADS["plain"].format(python=venv / "bin/python") + BODY.replace("ptoas.", "nothing.")
    assert not launcher.follow(script(tmp_path / "two", other), "", probe).followed


def test_an_editable_install_is_followed_to_its_source(
    venv: Path, places: Places, tmp_path: Path
) -> None:
    source = tmp_path / "src"
    build_tool(source / "edited" / "_native", log=places.log, knobs=places.knobs, name="ptoas")
    (source / "edited" / "__init__.py").write_text("")
    (source / "edited" / "__main__.py").write_text("def main(): pass\n")
    site = next((venv / "lib").glob("python*")) / "site-packages"
    (site / "edited.pth").write_text(f"{source}\n")
    head = HEADS["plain"].format(python=venv / "bin" / "python")
    path = script(tmp_path / "ptoas", head + BODY.replace("ptoas.", "edited."))
    lead = launcher.follow(path, "", probe)
    (site / "edited.pth").unlink()
    found = parts(lead)
    assert found["tree:package edited"] == str(source / "edited")
    # Another checkout is installed by another of these.
    assert found["site edited.pth"] == str(site / "edited.pth")
    assert str(site) in lead.directories


def test_a_package_that_starts_what_lies_elsewhere_leads_anywhere(
    venv: Path, places: Places, tmp_path: Path
) -> None:
    outside = build_tool(tmp_path / "opt", log=places.log, knobs=places.knobs, name="ptoas")
    site = next((venv / "lib").glob("python*")) / "site-packages"
    (site / "wandering.py").write_text(
        f"import os\ndef main(): os.execv({str(outside)!r}, ['{outside}', '--version'])\n"
    )
    body = BODY.replace("ptoas.__main__", "wandering")
    path = script(tmp_path / "ptoas", HEADS["plain"].format(python=venv / "bin/python") + body)
    assert not launcher.follow(path, "", probe).followed


@pytest.mark.parametrize(("name", "followed"), [("uname", True), ("python3", False)])
def test_a_package_may_start_a_utility_of_the_system_and_no_other_python(
    name: str, followed: bool, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "system"
    system.mkdir()
    shutil.copy("/bin/uname", system / name)
    folders = (*launcher._SYSTEM_FOLDERS, str(system))
    monkeypatch.setattr(launcher, "_SYSTEM_FOLDERS", folders)
    site = next((venv / "lib").glob("python*")) / "site-packages"
    (site / "starting.py").write_text(
        f"import os\ndef main(): os.execv('{system}/{name}', ['{system}/{name}'])\n"
    )
    head = HEADS["plain"].format(python=venv / "bin/python")
    body = BODY.replace("ptoas.__main__", "starting")
    lead = launcher.follow(script(tmp_path / "ptoas", head + body), "", probe)
    assert lead.followed is followed
    assert (f"utility {name}" in roles(lead)) is followed


# --- releases of ptoas


@pytest.mark.parametrize("era", ["0.30", "0.56"])
def test_the_script_of_a_release_is_followed_in_its_tree(
    era: Literal["0.30", "0.56"], places: Places, tmp_path: Path
) -> None:
    tool = make_ptoas_release(tmp_path / "pto", era=era, log=places.log, knobs=places.knobs)
    lead = launcher.follow(str(tool), str(tmp_path / "pto"), probe)
    assert lead.followed
    assert {"utility sh", "utility dirname", "utility readlink"} <= roles(lead)
    assert "libc.so.6" in names(lead.libraries)
    assert not any(launcher._inside(item.path, str(tmp_path / "pto")) for item in lead.trees)


def test_the_interpreter_that_a_release_selects_brings_its_library(
    places: Places, tmp_path: Path
) -> None:
    """The bundled one is a link here, so its library lies outside."""
    tool = make_ptoas_release(tmp_path / "pto", era="0.56", log=places.log, knobs=places.knobs)
    lead = launcher.follow(str(tool), str(tmp_path / "pto"), probe)
    found = parts(lead)
    assert found["python"] == str(tmp_path / "pto" / "python" / "bin" / "python3")
    assert found["tree:python library 0"] == os.path.dirname(os.__file__)


def test_a_release_script_that_starts_what_lies_elsewhere_leads_anywhere(
    places: Places, tmp_path: Path
) -> None:
    outside = build_tool(tmp_path / "opt", log=places.log, knobs=places.knobs, name="ptoas")
    path = script(tmp_path / "pto" / "ptoas", f'#!/bin/sh\nexec "{outside}" "$@"\n')
    assert not launcher.follow(path, str(tmp_path / "pto"), probe).followed


def test_a_script_of_a_cann_tree_is_followed_to_what_it_starts_there(tmp_path: Path) -> None:
    cann = SimCann.make(tmp_path / "cann", ptoas="launcher")
    lead = launcher.follow(str(cann.ptoas), str(cann.root), probe)
    assert lead.followed
    assert "utility sh" in roles(lead)


def test_a_script_whose_loader_does_not_tell_is_followed_by_its_first_line(
    places: Places, tmp_path: Path
) -> None:
    tool = make_ptoas_release(tmp_path / "pto", era="0.30", log=places.log, knobs=places.knobs)

    def hangs(argv: tuple[str, ...], env: Mapping[str, str] = {}) -> ProbeResult:
        raise TimeoutError("it does not answer")

    lead = launcher.follow(str(tool), str(tmp_path / "pto"), hangs)
    assert lead.followed
    assert roles(lead) == {"utility sh"}


# --- asking an interpreter


def test_an_interpreter_tells_where_its_library_and_packages_lie(venv: Path) -> None:
    found = launcher.ask(str(venv / "bin" / "python"), ("ptoas",), probe)
    assert found is not None
    assert found.executable == str(venv / "bin" / "python")
    assert found.version == sys.version.split()[0]
    assert found.libraries[0] == os.path.dirname(os.__file__)
    assert names(found.packages) == {"ptoas"}
    assert found.versions == (("ptoas", "0.1.1"),)


@pytest.mark.parametrize("answer", ["", "no json", "[]", "{}", '{"places": 7}'])
def test_an_answer_that_is_none_is_no_interpreter(answer: str) -> None:
    def says(argv: tuple[str, ...], env: Mapping[str, str] = {}) -> ProbeResult:
        return ProbeResult(0, answer, "Traceback\nno module of mine\n")

    with pytest.raises(ToolNotFoundError, match="does not work as a Python: no module of mine"):
        launcher.ask("/usr/bin/python3", (), says)


def test_a_module_that_python_imports_at_each_start_is_named(venv: Path) -> None:
    site = next((venv / "lib").glob("python*")) / "site-packages"
    (site / "sitecustomize.py").write_text("")
    found = launcher.ask(str(venv / "bin" / "python"), ("ptoas",), probe)
    (site / "sitecustomize.py").unlink()
    assert found is not None
    assert found.customized == (str(site / "sitecustomize.py"),)
    assert "sitecustomize" in {file.role for file in launcher.parts_of(found)[0]}
