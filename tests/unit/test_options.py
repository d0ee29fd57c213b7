"""Driver options of the host toolchain: one spelling, canonical paths, and nothing unseen unnoticed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ptocache.errors import BadRequestError
from ptocache_cfamily.options import Options, parse

CWD = "/work/here"


def read(*options: str, cwd: str = CWD) -> Options:
    return parse(options, cwd)


DIRECTORIES = {
    "-iquote": "quote",
    "-I": "angle",
    "-isystem": "system",
    "-idirafter": "after",
    "-L": "library_dirs",
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_joined_and_separate_directories_are_the_same(name: str) -> None:
    assert read(f"{name}/opt/x") == read(name, "/opt/x")
    found = read(name, "/opt/x")
    assert found.all == (name, "/opt/x")
    assert getattr(found, DIRECTORIES[name]) == ("/opt/x",)
    assert found.paths
    others = {field for key, field in DIRECTORIES.items() if key != name}
    assert all(getattr(found, field) == () for field in others)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_relative_directory_counts_from_the_callers_cwd(name: str) -> None:
    for spelled in ("sub", "./sub", "sub/", "x/../sub", "../here/sub"):
        assert read(name, spelled) == read(name, "/work/here/sub"), spelled
        assert read(name + spelled) == read(name, "/work/here/sub"), spelled


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_relative_directory_without_a_cwd_is_refused(name: str) -> None:
    with pytest.raises(BadRequestError, match="no cwd"):
        read(name, "sub", cwd="")
    assert read(name, "/sub", cwd="").all == (name, "/sub")


@pytest.mark.parametrize("name", ["-I", "-iquote", "-L"])
def test_a_link_and_what_it_leads_to_are_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert read(name, str(tmp_path / "link")) == read(name, str(tmp_path / "real"))


@pytest.mark.parametrize("name", ["-include", "-imacros"])
def test_a_forced_header_counts_by_its_canonical_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "real.h").write_text("")
    (tmp_path / "link.h").symlink_to("real.h")
    wanted = (name, str(tmp_path / "real.h"))
    for options in ((name, "real.h"), (name + "real.h",), (name, "./link.h"), wanted):
        found = read(*options, cwd=str(tmp_path))
        assert found.all == found.compile == wanted, options
        assert found.paths


@pytest.mark.parametrize("name", ["-include", "-imacros"])
def test_a_forced_header_that_is_not_in_the_cwd_is_left_to_the_compilers_search(
    name: str, tmp_path: Path
) -> None:
    for cwd in (str(tmp_path), ""):
        found = read(name, "stdio.h", cwd=cwd)
        assert found.all == found.compile == (name, "stdio.h")
        assert found.paths, "the file system had a say"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("-D", "N=1"), "-DN=1"),
        (("-DN=1",), "-DN=1"),
        (("-U", "N"), "-UN"),
        (("-UN",), "-UN"),
    ],
)
def test_joined_and_separate_texts_are_the_same(options: tuple[str, ...], word: str) -> None:
    found = read(*options)
    assert found.all == found.compile == (word,)
    assert (found.link, found.libraries, found.paths, found.unseen) == ((), (), False, "")


@pytest.mark.parametrize("options", [("-lm",), ("-l", "m")])
def test_libraries_go_behind_the_objects_in_order(options: tuple[str, ...]) -> None:
    found = read("-L", "/a", *options, "-L", "/b", "-Wl,--as-needed", "-lz")
    assert found.names == ("m", "z")
    assert found.libraries == ("-L", "/a", "-lm", "-L", "/b", "-Wl,--as-needed", "-lz")
    assert found.library_dirs == ("/a", "/b")
    assert found.compile == ()


PLAIN = ["-O3", "-g", "-std=c11", "-march=x86-64", "-mavx2", "-ffast-math", "-Wall", "-Wextra", "-w",
         "-fopenmp", "-pthread", "-fPIC", "-ansi", "--std=c99", "--param=ssp-buffer-size=4"]  # fmt: skip


@pytest.mark.parametrize("word", PLAIN)
def test_an_option_that_is_its_text_serves_compile_and_link(word: str) -> None:
    found = read(word)
    assert found.all == found.compile == found.link == (word,)
    assert (found.libraries, found.unseen, found.paths, found.native) == ((), "", False, ())


def test_the_order_of_the_caller_is_kept() -> None:
    words = ("-O3", "-DA", "-I", "/x", "-UA", "-g", "-I", "/y", "-DA=2")
    assert read(*words).all == words


@pytest.mark.parametrize("word", ["-nostdlib", "-static-libgcc", "-rdynamic", "-s", "-no-pie"])
def test_an_option_of_the_link_alone_does_not_reach_the_compile(word: str) -> None:
    found = read(word)
    assert (found.all, found.link, found.compile) == ((word,), (word,), ())


@pytest.mark.parametrize("options", [("-z", "now"), ("-Wl,-z,now",), ("-Wl,-O1,--sort-common",)])
def test_words_for_the_linker_go_behind_the_objects(options: tuple[str, ...]) -> None:
    found = read(*options)
    assert found.libraries == found.all == options
    assert (found.compile, found.link, found.unseen) == ((), (), "")


def test_a_symbol_that_must_stay_undefined_belongs_to_the_link() -> None:
    found = read("-u", "needed")
    assert (found.all, found.link, found.compile) == (("-u", "needed"), ("-u", "needed"), ())


def test_pipes_are_nobodys_business() -> None:
    assert read("-pipe", "-O2").all == ("-O2",)


@pytest.mark.parametrize("word", ["-march=native", "-mtune=native", "-mcpu=native"])
def test_an_option_that_means_this_processor_is_noticed(word: str) -> None:
    assert read("-O2", word).native == (word,)


@pytest.mark.parametrize("word", ["-nostdinc", "-nostdinc++"])
def test_leaving_out_the_compilers_own_folders_is_noticed(word: str) -> None:
    assert read(word).no_system
    assert not read("-O2").no_system


REFUSED = [
    "-c", "-S", "-E", "-o", "-ok.o", "-M", "-MM", "-MD", "-MMD", "-MF", "-MT", "-MQ", "-MP", "-MG",
    "-shared", "-###", "-v", "--version", "--help", "-dumpversion", "-dumpmachine", "-",
    "-fsyntax-only", "-print-search-dirs", "-print-prog-name=cc1",
]  # fmt: skip


@pytest.mark.parametrize("word", REFUSED)
def test_what_ptocache_decides_itself_is_refused(word: str) -> None:
    with pytest.raises(BadRequestError, match="has no place"):
        read("-O2", word)


@pytest.mark.parametrize("word", ["k.c", "lib.a", "/abs/k.c", "", "k.o"])
def test_a_file_among_the_options_is_refused(word: str) -> None:
    with pytest.raises(BadRequestError, match="among the options"):
        read("-O2", word)


@pytest.mark.parametrize(
    "word",
    ["-I", "-iquote", "-isystem", "-idirafter", "-L", "-include", "-imacros", "-D", "-U", "-l",
     "-x", "--param", "-Xlinker", "-u", "-z"],
)  # fmt: skip
def test_an_option_at_the_end_without_its_operand_is_refused(word: str) -> None:
    with pytest.raises(BadRequestError, match="no operand"):
        read("-O2", word)


UNSEEN = [
    ("@args",), ("-B/opt",), ("-specs=x",), ("--specs=x",), ("-wrapper",), ("-fplugin=x.so",),
    ("-fpass-plugin=x.so",), ("-fxray-always-instrument=x",), ("-fembed-offload-object=x",),
    ("-fuse-ld=gold",), ("-fprofile-use=x",), ("-fprofile-generate",), ("--coverage",),
    ("-gsplit-dwarf",), ("-save-temps",), ("-fdump-tree-all",), ("-dM",), ("-Xlinker", "-Map=x"),
    ("-Xassembler", "-a"), ("-Xpreprocessor", "-DX"), ("-Xclang", "-x"), ("-Wp,-MD,x",),
    ("-Wa,-I/x",), ("-T", ), ("-Tscript",), ("--sysroot=/x",), ("--sysroot",), ("-isysroot/x",),
    ("-iprefix/x",), ("-ftime-report",), ("-Q",), ("-ffile-prefix-map=/a=/b",), ("-x", "c++"),
    ("-xassembler-with-cpp",), ("-I=/x",), ("-I", "=/x"), ("-isystem=/x",),
    ("--include-directory=/x",), ("--include-directory-after=/x",), ("--include=/x",),
    ("--output=x",), ("--preprocess",), ("--save-temps",), ("--language=c++",), ("--prefix=/x",),
    ("-Wl,-Map=x",), ("-Wl,@args",), ("-Wl,-T,script",), ("-Wl,--version-script=x",),
    ("-Wl,-soname,x,--version-script=x",), ("-Wl,-script=x",), ("-Wl,-section-start=.x=1",),
    ("-Wl,--export-dynamic-symbol-list=x",), ("-Wl,-L/x",), ("-Wl,-lm",), ("-Wl,-plugin=x",),
    ("-Wl,--dynamic-list=x",), ("-Wl,-rpath-linkx",), ("-Wl,-eh",), ("-Wl,--dependency-file=x",),
]  # fmt: skip


@pytest.mark.parametrize("options", UNSEEN, ids=" ".join)
def test_an_option_whose_effect_the_key_would_not_see_is_noticed(options: tuple[str, ...]) -> None:
    assert read("-O2", *options, "-g").unseen
    assert read("-O2", "-g").unseen == ""


def test_the_first_unseen_option_is_the_one_that_is_named() -> None:
    assert read("-O2", "-B/one", "-specs=two").unseen == "-B/one"


SEEN_BY_LINKER = [
    "-Wl,-soname,libx.so", "-Wl,-soname=libx.so", "-Wl,--soname=libx.so", "-Wl,-z,relro,-z,now",
    "-Wl,--gc-sections", "-Wl,-gc-sections", "-Wl,-rpath,/x", "-Wl,-rpath=/x", "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu", "-Wl,-O1", "-Wl,-s", "-Wl,-Bsymbolic", "-Wl,-Bsymbolic-functions",
    "-Wl,--defsym=a=1", "-Wl,--export-dynamic", "-Wl,-E", "-Wl,--no-undefined", "-Wl,-e,main",
]  # fmt: skip


@pytest.mark.parametrize("word", SEEN_BY_LINKER)
def test_a_word_of_the_linker_that_brings_in_no_file_is_fine(word: str) -> None:
    found = read(word)
    assert found.unseen == ""
    assert found.libraries == (word,)


def test_every_fine_word_is_one_that_the_machines_linker_knows(tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text("int a(void) { return 1; }\nint main(void) { return a(); }\n")
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", *SEEN_BY_LINKER, "-o", "k.so", "k.c"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options", [("-O3", "-I", "sub", "-DN", "-lm"), ("-isystem", "a/../b", "-z", "now")]
)
def test_the_normal_form_is_its_own_normal_form(options: tuple[str, ...]) -> None:
    once = read(*options)
    assert read(*once.all, cwd="") == once
