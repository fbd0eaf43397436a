"""Payloads: encoded within the cap, decoded on an instance, and in a query an error that says what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, overload

from proletarian_sa.errors import PayloadTooLarge
from proletarian_sa.serializers import TaggedJSON

if TYPE_CHECKING:
    from proletarian_sa.models import _Columns
    from proletarian_sa.serializers import Serializer


def encode(payload: Any, serializer: Serializer, max_payload: int) -> str:
    """Return a payload as the text to store; see `JobTables.encode`."""
    text = serializer.encode(payload)
    size = len(text) if type(serializer) is TaggedJSON else _size(text, serializer)  # of which it is ASCII, without NUL
    if size > max_payload:
        raise PayloadTooLarge(
            f"The payload has {size} bytes encoded; at most {max_payload} are allowed. Store it elsewhere and enqueue "
            "its key, or raise JobTables(max_payload=…)."
        )
    return text


def _size(text: str, serializer: Serializer) -> int:
    """Return how many bytes the text has, once it is one that every database stores."""
    if not isinstance(text, str):
        raise TypeError(f"{type(serializer).__name__}.encode returned {type(text).__name__}, not str. Return text.")
    if "\0" in text:
        raise ValueError("The serializer returned text with a NUL, which PostgreSQL cannot store. Escape it.")
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"The serializer returned text that is no Unicode: {error}. Escape it.") from error


class PayloadAttribute:
    """The payload, decoded anew at each access.

    `payload_text` is what is stored. It can be read, and queried as text, even where it cannot be decoded.
    """

    @overload
    def __get__(self, job: None, model: type[_Columns]) -> PayloadInQuery: ...
    @overload
    def __get__(self, job: _Columns, model: type[_Columns]) -> Any: ...
    def __get__(self, job: _Columns | None, model: type[_Columns]) -> Any:
        """Decode.

        Raises:
            PayloadError: The stored text cannot be decoded.
        """
        if job is None:
            return PayloadInQuery(model.__name__)
        return job.job_tables.serializer.decode(job.payload_text)

    def __set__(self, job: _Columns, value: object) -> NoReturn:
        """Refuse: the payload is a snapshot."""
        raise AttributeError(
            "payload is a snapshot, taken when the job was made. To correct a queued job, encode the new one: "
            "job.payload_text = job.job_tables.encode(…)."
        )


class PayloadInQuery:
    """What `Job.payload` is: no expression, because equal values may be stored as different texts."""

    __slots__ = ("_model",)

    def __init__(self, model: str) -> None:
        self._model = model

    def __repr__(self) -> str:
        return f"{self._model}.payload (no column: query {self._model}.payload_text, the encoded text)"

    def _refuse(self, *_others: object) -> NoReturn:
        raise TypeError(self._instead())

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __contains__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._instead())

    def _instead(self) -> str:
        return (
            f"{self._model}.payload is stored as encoded text, and SQL does not know its value. Query the text, "
            f"select({self._model}).where({self._model}.payload_text.contains(…)), or compare job.payload of what you have loaded."
        )
