"""What PostgreSQL's planner is told before our statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Mapping

# What our statements read is known beforehand: a few rows by their keys. The planner does not know it, because its statistics,
# and the plans that an idle worker has prepared, are older than the burst of jobs that comes next: it would read all of the table,
# once for each job in hand.
BY_KEY = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_custom_plan",
}
IN_ORDER = BY_KEY | {"enable_sort": "off"}  # the claim: due jobs are read in the order of the index


def settings(values: Mapping[str, str], *before: sa.ColumnElement[str]) -> sa.Select[Any]:
    """Return the statement that sets these until the end of the transaction, and returns first what was `before`.

    Args:
        values: By name; constants of ours, because they become part of the text.
        before: Expressions.
    """
    columns: list[Any] = [*before]
    columns += (sa.literal_column(f"set_config('{name}', '{value}', true)") for name, value in values.items())
    return sa.select(*columns)
