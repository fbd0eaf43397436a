"""What each version of the tables has added: names only, so that a database can be asked which version it has.

A version is frozen once it is released: it does not follow the models. The operations that make it stand in
`alembic_ext.proletarian_sa.history`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Version:
    """What the version before had not.

    Attributes:
        columns: Names of columns, by table: `job` or `archived_job`, whatever those are called.
        indexes: Likewise names of indexes, without the table's, as `index_name` takes them.
    """

    columns: Mapping[str, frozenset[str]]
    indexes: Mapping[str, frozenset[str]] = field(default_factory=dict)


ORIGINAL: Final = Version(
    {
        "job": frozenset({"job_id", "queue", "job_type", "payload", "attempts", "enqueued_at", "process_at"}),
        "archived_job": frozenset(
            {"job_id", "queue", "job_type", "payload", "attempts", "enqueued_at", "process_at", "status", "finished_at"}
        ),
    }
)
"""The tables of Proletarian, the Clojure library."""

VERSIONS: Final[dict[int, Version]] = {
    1: Version(
        {
            "job": ORIGINAL.columns["job"] | {"claimed_by", "lease_until", "crashes", "last_error", "unique_key", "headers"},
            "archived_job": ORIGINAL.columns["archived_job"] | {"claimed_by", "crashes", "last_error", "unique_key", "headers"},
        },
        {"job": frozenset({"queue_process_at", "unique_key"}), "archived_job": frozenset({"finished_at"})},
    )
}
"""Number to version. The last is what this release needs."""


def latest() -> int:
    """Return the number of the version that this release needs."""
    return max(VERSIONS)
