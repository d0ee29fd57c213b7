"""What the state machine and its relatives found, each as the shortest story that shows it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptocache.errors import BadRequestError
from ptocache.outcome import Outcome, Reason
from tests.harness import DaemonProcess, LoggingCompiler
from tests.property.oracle import Compile, compile_directly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ptocache.client import Client
    from ptocache.result import Result


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One daemon for all: every test salts its keys with its own folder's name."""
    daemon = DaemonProcess(tmp_path_factory.mktemp("shared") / "store")
    try:
        daemon.start()
        with daemon.client() as client:
            yield client
    finally:
        daemon.clean_up()


class World:
    """A folder of sources; each request is compared with the compiler's own answer."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder = Path(os.path.realpath(folder)) / "world"
        self.client = client
        compiler = shutil.which("cc")
        assert compiler
        self.compiler = compiler

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ask(self, text: str, *options: str, source_dir: str = "src", name: str = "k.c") -> Outcome:
        """Compile ``text`` (``@`` in an option or the text is this folder); the outcome."""
        return self.result(text, *options, source_dir=source_dir, name=name).outcome

    def result(
        self, text: str, *options: str, source_dir: str = "src", name: str = "k.c"
    ) -> Result:
        here = str(self.folder)
        inputs = {name: text.replace("@", here).encode()}
        options = tuple(word.replace("@", here) for word in options)
        place = str(self.folder / source_dir)
        (self.folder / source_dir).mkdir(parents=True, exist_ok=True)
        asked = Compile((self.compiler,), name, inputs, options, (), {}, here, place, "object")
        expected = compile_directly(asked, self.folder.parent / "oracle")
        found = self.client.compile(
            "host", inputs, options=options, outputs=["object"], source_dir=place, salt=here,
            env={"CC": self.compiler}, check=False,
        )  # fmt: skip
        output = bytes(found.outputs["object"].buffer) if found.ok else b""
        assert (found.exit_code, found.log.stderr, output) == expected[:3]
        return found


@pytest.fixture
def world(tmp_path: Path, client: Client) -> World:
    return World(tmp_path, client)


def test_a_header_beside_the_source_does_not_shadow_what_another_folders_header_quotes(
    world: World,
) -> None:
    world.write("src/keep.h", "")
    world.write("one/a.h", '#include "b.h"\n')
    world.write("two/b.h", "int b = 1;\n")
    ask = ("#include <a.h>\n", "-I", "@/one", "-I", "@/two")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write("src/b.h", "int b = 2;\n")
    assert world.ask(*ask) is Outcome.MEMORY_HIT
    world.write("one/b.h", "int b = 3;\n")
    assert world.ask(*ask) is Outcome.MISS


def test_headers_beside_the_source_find_each_other_as_without_a_cache(world: World) -> None:
    world.write("src/a.h", '#include "sub/b.h"\n#include "../up/e.h"\nint a = A;\n')
    world.write("src/sub/b.h", '#include "c.h"\n#include "../d.h"\n')
    world.write("src/sub/c.h", "int c = 1;\n")
    world.write("src/d.h", "#define A 1\nstatic const char *where = __FILE__;\n")
    world.write("up/e.h", '#include "f.h"\n')
    world.write("up/f.h", "int f = 1;\n")
    ask = (
        '#include "a.h"\n#define M "g.h"\n#include M\nconst char *w(void) { return where; }\n',
        "-g",
    )
    world.write("src/g.h", "int g = 1;\n")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    for changed in ("src/sub/c.h", "src/d.h", "up/f.h", "up/e.h", "src/g.h"):
        path = world.folder / changed
        path.write_text(path.read_text() + f"int more_{path.stem};\n")
        assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT], changed
    world.write("src/sub/f.h", "int unused;\n")
    assert world.ask(*ask) is Outcome.MEMORY_HIT, "nobody looks there"


def test_include_next_goes_on_in_the_folders_of_quotes(world: World) -> None:
    world.write("one/a.h", "#include_next <b.h>\n")
    world.write("two/keep.h", "")
    world.write("three/b.h", "int b = 1;\n")
    ask = ('#include "a.h"\n', "-iquote", "@/one", "-iquote", "@/two", "-I", "@/three")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write("two/b.h", "int b = 2;\n")
    assert world.ask(*ask) is Outcome.MISS


def test_include_next_of_a_header_found_beside_another_begins_the_search_anew(world: World) -> None:
    world.write("one/sub/n.h", '#include "a.h"\n')
    world.write("one/sub/a.h", "#include_next <b.h>\n")
    world.write("two/keep.h", "")
    world.write("three/b.h", "int b = 1;\n")
    ask = ("#include <sub/n.h>\n", "-I", "@/one", "-iquote", "@/two", "-I", "@/three")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write("two/b.h", "int b = 2;\n")
    assert world.ask(*ask) is Outcome.MISS


def test_a_name_that_a_macro_built_is_looked_for_even_if_the_file_was_found_otherwise(
    world: World,
) -> None:
    world.write("src/keep.h", "")
    world.write("one/b.h", "#ifdef AGAIN\nint again;\n#endif\n#define AGAIN\n")
    ask = ('#include <b.h>\n#define M "b.h"\n#include M\n', "-I", "@/one")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write("src/b.h", "int other;\n")
    assert world.ask(*ask) is Outcome.MISS


def test_a_folder_that_is_also_a_system_folder_is_searched_late(world: World) -> None:
    world.write("one/a.h", "int a = 1;\n")
    world.write("two/keep.h", "")
    ask = ("#include <a.h>\n", "-I", "@/one", "-isystem", "@/one", "-I", "@/two")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write("two/a.h", "int a = 2;\n")
    assert world.ask(*ask) is Outcome.MISS


def test_a_test_for_a_name_that_a_macro_built_in_a_header_is_a_bypass(world: World) -> None:
    world.write(
        "src/a.h", "#define M <opt.h>\n#if __has_include(M)\nint opt = 1;\n#endif\nint a = 1;\n"
    )
    ask = ('#include "a.h"\n', "-I", "@/one")
    first = world.result(*ask)
    assert (first.outcome, first.reason) == (Outcome.BYPASS, Reason.UNSEEN_INPUT)
    world.write("one/opt.h", "")
    assert world.ask(*ask) is Outcome.BYPASS


def test_a_link_to_nothing_that_leads_somewhere_later_shadows(world: World) -> None:
    world.write("one/keep.h", "")
    world.write("two/a.h", "int a = 1;\n")
    (world.folder / "one" / "a.h").symlink_to(world.folder / "real.h")
    ask = ("#include <a.h>\n", "-I", "@/one", "-I", "@/two")
    assert [world.ask(*ask), world.ask(*ask)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write("real.h", "int a = 2;\n")
    assert world.ask(*ask) is Outcome.MISS


def test_a_header_of_one_checkout_is_not_looked_for_in_another(world: World) -> None:
    for checkout in ("src", "other"):
        world.write(f"{checkout}/include/a.h", "int a = 1;\n")
    ask = ("#include <a.h>\n", "-I", "@/src/include")
    assert world.ask(*ask) is Outcome.MISS
    world.write("src/include/a.h", "int a = 2;\n")
    # The other checkout's header is as the first one was, and it is not the one that is read.
    assert world.ask(*ask, source_dir="other") is Outcome.MISS


def test_a_header_of_one_checkout_named_in_full_is_not_looked_for_in_another(world: World) -> None:
    for checkout in ("src", "other"):
        world.write(f"{checkout}/a.h", "int a = 1;\n")
    text = '#include "@/src/a.h"\n'
    assert world.ask(text) is Outcome.MISS
    world.write("src/a.h", "int a = 2;\n")
    assert world.ask(text, source_dir="other") is Outcome.MISS


@pytest.mark.parametrize("first", ["src", "other"])
@pytest.mark.parametrize("include", ["src/include", "src-more"])
def test_the_name_of_a_header_in_the_output_is_that_of_the_request(
    world: World, first: str, include: str
) -> None:
    world.write(f"{include}/a.h", "const char *name = __FILE__;\n")
    ask = ("#include <a.h>\n", "-I", f"@/{include}")
    second = "other" if first == "src" else "src"
    # The name is the one that the option gives; only who is named by it is bound to it.
    assert world.ask(*ask, source_dir=first) is Outcome.MISS
    world.ask(*ask, source_dir=second)
    assert world.ask(*ask, source_dir=first) is Outcome.MEMORY_HIT
    assert world.ask(*ask, source_dir=second) is Outcome.MEMORY_HIT


def test_checkouts_whose_headers_warn_share_an_entry_and_its_text(world: World) -> None:
    for checkout in ("src", "other"):
        world.write(f"{checkout}/a.h", "#warning here\n")
    order = ("src", "other", "src", "other")
    results = [world.result('#include "a.h"\n', source_dir=checkout) for checkout in order]
    assert [item.outcome for item in results] == [Outcome.MISS] + [Outcome.MEMORY_HIT] * 3
    assert all(
        item.log.stderr.startswith(b"In file included from k.c:1:\na.h:1:2:") for item in results
    )


def test_checkouts_that_nothing_names_share_an_entry(world: World) -> None:
    for checkout in ("src", "other"):
        world.write(f"{checkout}/a.h", "const char *name = __FILE__;\n")
    text = '#include "a.h"\n'
    assert world.ask(text, "-g", source_dir="src") is Outcome.MISS
    assert world.ask(text, "-g", source_dir="other") is Outcome.MEMORY_HIT


@pytest.mark.parametrize(
    ("text", "options", "late"),
    [
        ('#define M "b.h"\n#include M\n', ("-I", "@/inc"), "src/b.h"),
        ('#include "b.h"\n', ("-I", "@/inc"), "src/b.h"),
        ("#include <b.h>\n", ("-I", "@/one", "-I", "@/inc"), "one/b.h"),
        ("", ("-L", "@/one", "-L", "@/inc", "-lq"), "one/libq.a"),
    ],
)
def test_what_comes_between_the_look_of_the_compiler_and_ours_makes_no_entry(
    make_daemon: Callable[..., DaemonProcess], tmp_path: Path, text: str, options: tuple[str, ...],
    late: str,
) -> None:  # fmt: skip
    world = Path(os.path.realpath(tmp_path)) / "world"
    for folder in ("src", "one", "inc", "late"):
        (world / folder).mkdir(parents=True)
    (world / "inc/b.h").write_text("int b = 1;\n")
    (world / "inc/libq.a").write_text("q_symbol = 1;\n")
    new = "q_symbol = 2;\n" if late.endswith(".a") else "int b = 2;\n"
    (world / "late/staged").write_text(new)
    move = f'[ ! -e "{world}/late/staged" ] || mv "{world}/late/staged" "{world}/{late}"'
    step = "-shared" if late.endswith(".a") else "-MD"
    after = f'case " $* " in *" -o "*) case " $* " in *" {step} "*) {move} ;; esac ;; esac'
    compiler = LoggingCompiler(tmp_path / "logging", after=after)
    daemon = make_daemon(trust_scripts=compiler.trust).start()
    words = [word.replace("@", str(world)) for word in options]
    with daemon.client() as client:
        first, second, third = (
            client.compile(
                "host", {"k.c": text}, options=words, source_dir=world / "src", env=compiler.env
            )
            for _ in range(3)
        )
    assert (first.outcome, first.reason) == (Outcome.BYPASS, Reason.INPUT_CHANGED)
    assert second.outcome is Outcome.MISS
    assert third.outcome is Outcome.MEMORY_HIT
    assert bytes(second.outputs["shared"].buffer) != bytes(first.outputs["shared"].buffer)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('#define M "sub/x.h"\n#include M\n', ()),
        ("#include PICK\n", ('-DPICK="sub/x.h"',)),
        ("#define S(x) #x\n#define T(x) S(x)\n#include T(sub/x.h)\n", ()),
    ],
)
def test_a_name_that_a_macro_built_may_lead_below_the_source(
    world: World, text: str, options: tuple[str, ...]
) -> None:
    world.write("src/sub/x.h", '#include "../y.h"\n')
    world.write("src/y.h", "int y = 1;\n")
    assert world.ask(text, *options) is Outcome.MISS
    assert world.ask(text, *options) is Outcome.MEMORY_HIT
    world.write("src/y.h", "int y = 2;\n")
    assert world.ask(text, *options) is Outcome.MISS


@pytest.mark.parametrize("up", ["../inc", "../../inc", "../../../../../inc"])
def test_headers_far_above_the_source_are_found_as_without_a_cache(world: World, up: str) -> None:
    source_dir = "p/q/r/s/t/src"
    place = os.path.normpath(f"{source_dir}/{up}")
    world.write(f"{place}/a.h", '#include "b.h"\nconst char *name = __FILE__;\n')
    world.write(f"{place}/b.h", "int b = 1;\n")
    ask = (f'#include "{up}/a.h"\n', "-g")
    assert world.ask(*ask, source_dir=source_dir) is Outcome.MISS
    world.write(f"{place}/b.h", "int b = 2;\n")
    assert world.ask(*ask, source_dir=source_dir) is Outcome.MISS


@pytest.mark.parametrize("name", ["x\u3000y.h", "x\u00a0y.h", "x\u2028y.h", "x\\\\y.h", "x y#$.h"])
def test_headers_with_odd_names_are_kept_and_watched(world: World, name: str) -> None:
    world.write(f"src/{name}", "int a = 1;\n")
    text = f'#include "{name}"\n'
    assert [world.ask(text), world.ask(text)] == [Outcome.MISS, Outcome.MEMORY_HIT]
    world.write(f"src/{name}", "int a = 2;\n")
    assert world.ask(text) is Outcome.MISS


def test_a_dry_run_of_gc_foresees_what_gc_does(world: World) -> None:
    for number in range(3):
        world.ask(f"int f{number};\n")
    foreseen = world.client.call("gc", max_size=0, dry_run=True)
    assert foreseen["remaining"] == 0
    assert world.client.call("gc", max_size=0) == foreseen


def test_an_entry_that_was_made_anew_is_gone_when_it_is_invalidated(world: World) -> None:
    world.write("src/a.h", "int a = 1;\n")
    text = '#include "a.h"\n'
    assert world.ask(text) is Outcome.MISS
    again = world.client.compile(
        "host", {"k.c": text}, outputs=["object"], source_dir=world.folder / "src", mode="refresh",
        salt=str(world.folder), env={"CC": world.compiler},
    )  # fmt: skip
    assert again.outcome is Outcome.MISS
    assert world.ask(text) is Outcome.MEMORY_HIT
    world.client.call("invalidate", keys=[again.key])
    assert world.ask(text) is Outcome.MISS


def test_text_that_nothing_can_hold_is_a_wrong_request(world: World) -> None:
    with pytest.raises(BadRequestError):
        world.client.compile("host", {"k.c": b""}, options=["-DX=\ud800"])
