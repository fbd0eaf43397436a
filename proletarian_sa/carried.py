"""Decisions and events on their way from one process to another: exceptions may be what cannot be pickled."""

from __future__ import annotations

import pickle
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from proletarian_sa.error_text import error_line, error_text

if TYPE_CHECKING:
    from proletarian_sa import events
    from proletarian_sa.run import Decision

LONGEST: Final = 1.0  # seconds that an exception may take to be made from its bytes, which nothing could end in a worker


class HandlerTraceback(Exception):  # noqa: N818 - the cause of an error, printed above it
    """The traceback of an error in the process in which it was raised."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class Carried:
    """An exception as bytes, or where it cannot be that, as its text."""

    pickled: bytes | None
    module: str
    name: str
    line: str
    text: str

    def restore(self) -> BaseException:
        """Return the exception, or one that looks like it, with its traceback as its cause."""
        if self.pickled is not None:
            try:
                return _with_cause(pickle.loads(self.pickled), self.text)  # noqa: S301 - from a process of ours
            except BaseException:  # noqa: BLE001, S110 - a class that this process does not have, or whose own code fails
                pass
        return _with_cause(type(self.name, (Exception,), {"__module__": self.module})(self.line), self.text)


def _with_cause(error: Any, text: str) -> BaseException:
    if not isinstance(error, BaseException):
        raise TypeError(f"What is to be raised must be an exception, not {error!r}.")
    error.__cause__ = HandlerTraceback(text)
    return error


def carry(error: BaseException) -> Carried:
    """Return an exception so that it can be sent. Never raises, whatever the exception's own code does."""
    pickled: bytes | None = None
    began = time.monotonic()
    try:
        pickled = pickle.dumps(error)
        _with_cause(pickle.loads(pickled), "")  # noqa: S301 - our own bytes
    except BaseException:  # noqa: BLE001 - whatever it holds
        pickled = None
    if time.monotonic() - began > LONGEST:
        pickled = None
    kind = type(error)
    line = error_line(error).partition(": ")[2]
    return Carried(pickled, kind.__module__, kind.__qualname__, line, _traceback(error))


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - the exception's own code; shortened, cleaned, or replaced by its type
        return error_text(error)


def pack(event: events.Event) -> Any:
    """Return an event so that it can be sent."""
    exception: Any = getattr(event, "exception", None)
    return event if exception is None else replace(event, exception=carry(exception))  # type: ignore[call-arg]


def unpack(event: Any) -> events.Event:
    """Return the event that was sent."""
    exception = getattr(event, "exception", None)
    return replace(event, exception=exception.restore()) if isinstance(exception, Carried) else event  # type: ignore[no-any-return]


def pack_decision(decision: Decision) -> Any:
    """Return a decision so that it can be sent: without the payload, which the receiver has."""
    exception: Any = None if decision.exception is None else carry(decision.exception)
    return replace(decision, payload=None, exception=exception, said=tuple(pack(event) for event in decision.said))


def unpack_decision(decision: Any, payload: Any) -> Decision:
    """Return the decision that was sent."""
    exception = decision.exception.restore() if isinstance(decision.exception, Carried) else None
    return replace(decision, payload=payload, exception=exception, said=tuple(unpack(event) for event in decision.said))  # type: ignore[no-any-return]
