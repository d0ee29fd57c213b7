"""The tree of errors: codes, standard bases, and the way over the wire."""

from __future__ import annotations

import pytest

from ptocache import errors
from ptocache.errors import PtocacheError, from_wire


def family(root: type[PtocacheError] = PtocacheError) -> list[type[PtocacheError]]:
    found = [root]
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found += family(child)
    return found


ALL = family()

# A contract: scripts test the codes, callers catch the standard classes.
CONTRACT: dict[type[PtocacheError], tuple[str, type[BaseException]]] = {
    errors.PtocacheError: ("error", Exception),
    errors.BadRequestError: ("bad_request", ValueError),
    errors.BadRecordingError: ("bad_recording", errors.BadRequestError),
    errors.ConfigError: ("bad_config", ValueError),
    errors.ToolchainError: ("toolchain", PtocacheError),
    errors.UnknownToolchainError: ("unknown_toolchain", LookupError),
    errors.PluginError: ("bad_plugin", TypeError),
    errors.ToolNotFoundError: ("tool_not_found", FileNotFoundError),
    errors.CompileError: ("compile", errors.ToolchainError),
    errors.CompileFailedError: ("compile_failed", errors.CompileError),
    errors.StepTimeoutError: ("step_timeout", TimeoutError),
    errors.StepKilledError: ("step_killed", errors.CompileError),
    errors.StepSystemError: ("step_system", OSError),
    errors.CancelledError: ("cancelled", errors.CompileError),
    errors.OutputRejectedError: ("output_rejected", ValueError),
    errors.ElfError: ("bad_elf", errors.OutputRejectedError),
    errors.StoreError: ("store", OSError),
    errors.StoreUnusableError: ("store_unusable", OSError),
    errors.StoreDamagedError: ("store_damaged", OSError),
    errors.StoreBusyError: ("store_busy", BlockingIOError),
    errors.WireError: ("wire", ConnectionError),
    errors.FrameError: ("bad_frame", errors.WireError),
    errors.ProtocolMismatchError: ("protocol_mismatch", errors.WireError),
    errors.PeerRefusedError: ("peer_refused", PermissionError),
    errors.DaemonUnavailableError: ("no_daemon", errors.WireError),
    errors.UnknownEntryError: ("unknown_entry", KeyError),
    errors.LoadError: ("load_failed", OSError),
}


def test_the_contract_names_every_error() -> None:
    assert set(ALL) == set(CONTRACT)


def test_no_two_errors_share_a_code() -> None:
    codes = [kind.code for kind in ALL]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_code_and_standard_base_are_as_promised(kind: type[PtocacheError]) -> None:
    code, base = CONTRACT[kind]
    assert kind.code == code
    assert issubclass(kind, base)
    assert issubclass(kind, PtocacheError)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_text_is_message_and_hint_whatever_the_standard_base_prints(
    kind: type[PtocacheError],
) -> None:
    assert str(kind("it broke")) == "it broke"
    assert str(kind("it broke", hint="mend it")) == "it broke (mend it)"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_an_error_comes_over_the_wire_as_it_went(kind: type[PtocacheError]) -> None:
    sent = kind("it broke", hint="mend it", path="/x", size=3)
    got = from_wire(sent.to_wire())
    assert type(got) is kind
    assert (got.message, got.hint, got.fields) == ("it broke", "mend it", {"path": "/x", "size": 3})


def test_code_of_a_newer_peer_becomes_the_root() -> None:
    got = from_wire({"code": "of_tomorrow", "message": "m", "hint": "h", "fields": {"a": 1}})
    assert type(got) is PtocacheError
    assert str(got) == "m (h)"
    assert got.fields == {"a": 1}


@pytest.mark.parametrize(
    "document",
    [{}, {"code": None}, {"code": ["x"], "fields": []}, {"message": 7, "hint": b"x", "fields": 1}],
)
def test_a_malformed_error_from_a_peer_is_still_an_error(document: dict[str, object]) -> None:
    assert isinstance(from_wire(document), PtocacheError)


@pytest.mark.parametrize("field", ["message", "hint", "self"])
def test_a_field_of_a_peer_that_has_a_parameters_name_does_no_harm(field: str) -> None:
    got = from_wire({"code": "wire", "message": "m", "hint": "h", "fields": {field: "x"}})
    assert isinstance(got, errors.WireError)
    assert got.message == "m"


def test_subclasses_outside_of_the_tree_keep_the_code_of_their_parent() -> None:
    from ptocache.compiler import ToolFailedError
    from ptocache.model import Log

    error = ToolFailedError(
        "no", log=Log(), exit_code=3, depfiles={}, complete=True, step="compile"
    )
    got = from_wire(error.to_wire())
    assert got.code == "compile_failed"
    assert got.fields == {"step": "compile", "exit_code": 3}
