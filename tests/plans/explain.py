"""A plan in words that are the same for every database."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tests.plans.capture import Captured

TID = "where it lies"
"""What stands for an index where rows are fetched from their places."""


@dataclass(frozen=True)
class Access:
    """One way into a table.

    Attributes:
        table: Its name, without a schema.
        index: The index that is searched; None where the table is read from end to end.
        condition: By what the index is searched, in the database's words; empty where all of it is read.
        rows: How many rows were read, where the plan was executed.
    """

    table: str
    index: str | None
    condition: str
    rows: float | None = None


@dataclass(frozen=True)
class Plan:
    """How one statement is executed."""

    statement: str
    accesses: list[Access]
    sorts: bool
    text: str
    compiled: bool = False
    """The server compiles the plan first, which takes longer than all of the rest."""


def explain(connection: sa.Connection, captured: Captured) -> Plan:
    """Return the plan of a statement; on PostgreSQL it is executed, too."""
    return _EXPLAIN[connection.dialect.name](connection, captured)


def _postgresql(connection: sa.Connection, captured: Captured) -> Plan:
    prefix = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    (answer,) = connection.exec_driver_sql(prefix + captured.statement, captured.parameters).scalar_one()
    nodes = list(_nodes(answer["Plan"]))
    accesses = [
        Access(
            node["Relation Name"],
            TID if node["Node Type"] == "Tid Scan" else node.get("Index Name"),
            node.get("TID Cond", node.get("Index Cond", "")),
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"],
        )
        for node in nodes
        if node["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan"}
    ]
    sorts = any("Sort" in node["Node Type"] for node in nodes)
    return Plan(captured.statement, accesses, sorts, "\n".join(_outline(answer["Plan"])), compiled="JIT" in answer)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from _nodes(below)


_TOLD = (
    "Relation Name",
    "CTE Name",
    "Index Name",
    "Index Cond",
    "TID Cond",
    "Filter",
    "Join Filter",
    "Plan Rows",
    "Actual Rows",
    "Actual Loops",
)


def _outline(node: dict[str, Any], depth: int = 0) -> Iterator[str]:
    told = (f"{name}: {node[name]}" for name in _TOLD if name in node)
    yield "  " * depth + ", ".join([node["Node Type"], *told])
    for below in node.get("Plans", ()):
        yield from _outline(below, depth + 1)


_LOOKED_UP = ("no matching row in const table", "Impossible WHERE noticed after reading const tables")


def _mysql(connection: sa.Connection, captured: Captured) -> Plan:
    rows = connection.exec_driver_sql("EXPLAIN FORMAT=TRADITIONAL " + captured.statement, captured.parameters).mappings().all()
    accesses = []
    for row in rows:
        if any(words in (row["Extra"] or "") for words in _LOOKED_UP):
            # found out by searching a unique index while the plan was made
            accesses.append(Access("", "PRIMARY", "const"))
        if row["table"] is None or row["type"] is None or row["select_type"] == "INSERT":
            continue
        searched = row["type"] in {"const", "eq_ref", "ref", "range"}
        table = row["table"].removesuffix("_1")  # SQLAlchemy's alias of a table with a schema
        accesses.append(Access(table, row["key"], f"{row['type']} {row['key_len']}" if searched else ""))
    sorts = any("filesort" in (row["Extra"] or "") or "temporary" in (row["Extra"] or "") for row in rows)
    return Plan(captured.statement, accesses, sorts, "\n".join(str(dict(row)) for row in rows))


def _sqlite(connection: sa.Connection, captured: Captured) -> Plan:
    answer = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + captured.statement, captured.parameters)
    lines = [row.detail for row in answer]
    accesses = []
    for line in lines:
        found = re.fullmatch(r"(SCAN|SEARCH) (\w+?)(?:_1)?(?: USING (?:COVERING )?INDEX (\w+)(?: \((.*)\))?)?", line)
        if found and found[2] in {"job", "archived_job"}:
            accesses.append(Access(found[2], found[3], found[4] or ""))
    return Plan(captured.statement, accesses, any("TEMP B-TREE" in line for line in lines), "\n".join(lines))


_EXPLAIN = {"postgresql": _postgresql, "mysql": _mysql, "mariadb": _mysql, "sqlite": _sqlite}
