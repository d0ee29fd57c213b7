"""What was found or went wrong, as the answer that says so; the same for both caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .build import reason_of
from .model import Answer
from .outcome import Outcome, Reason
from .wire import pack_answer

if TYPE_CHECKING:
    from .errors import PtocacheError
    from .store.store import Loaded


def carry(loaded: Loaded, key: str, identity: str, outcome: Outcome) -> Answer:
    """The answer that an entry gives."""
    return Answer(
        outcome=outcome,
        key=key,
        artifacts=loaded.artifacts,
        log=loaded.entry.log,
        compile_ms=loaded.entry.compile_ms,
        identity=identity,
    )


def hit(loaded: Loaded, key: str, identity: str, outcome: Outcome) -> Answer:
    """The answer of a hit; the one from memory is made and packed once."""
    if outcome is not Outcome.MEMORY_HIT:
        return carry(loaded, key, identity, outcome)
    if not loaded.answers:
        answer = carry(loaded, key, identity, outcome)
        loaded.answers.append(answer._replace(packed=pack_answer(answer)))
    return loaded.answers[0]


def joined(answer: Answer) -> Answer:
    """A leader's answer as its waiters get it; a failure stays one."""
    if answer.outcome is Outcome.FAILURE:
        return answer
    return answer._replace(outcome=Outcome.JOINED, reason=Reason.NONE, detail="")


def failure(error: PtocacheError, key: str) -> Answer:
    """The answer to a request that failed."""
    return Answer(
        outcome=Outcome.FAILURE,
        key=key,
        reason=reason_of(error),
        detail=error.message,
        error=error.to_wire(),
    )
