"""What storage settings of the job table do on PostgreSQL: `python -m benchmarks.storage` prints a table."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from benchmarks.scenarios.queue import fill, full_name, new_queue, settle
from benchmarks.servers import start
from proletarian_sa import default_tables
from proletarian_sa.finish import Recorder, Recording
from proletarian_sa.floor import Floor
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.run import Decision
from proletarian_sa.runtime import Runtime, build_runtime, prepare
from proletarian_sa.step import claim_leased

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.measure import Numbers

BATCH: Final = 100
"""Jobs claimed by one statement, and finished by one."""
AHEAD: Final = 5
"""Batches that are claimed before the first of them is finished, as by a worker that is busy."""
FILLFACTORS: Final = (100, 70, 50, 35)
VACUUM: Final[dict[str, dict[str, float]]] = {
    "as the server": {},
    "scale 0.01, no delay": {"autovacuum_vacuum_scale_factor": 0.01, "autovacuum_vacuum_cost_delay": 0},
    "every 1000, no delay": {
        "autovacuum_vacuum_scale_factor": 0,
        "autovacuum_vacuum_threshold": 1000,
        "autovacuum_vacuum_cost_delay": 0,
    },
    "no insert vacuum": {"autovacuum_vacuum_insert_threshold": -1},
}
FACTS: Final = sa.text(
    "SELECT n_tup_upd, n_tup_hot_upd, autovacuum_count, pg_relation_size(relid) / 8192, pg_indexes_size(relid) / 8192"
    " FROM pg_stat_user_tables WHERE relid = CAST(:place AS regclass)"
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured.

    Attributes:
        settings: Storage parameters of the job table.
        waiting: Jobs that are in the queue at the beginning.
        passing: Jobs that are enqueued meanwhile, as fast as others are finished.
        snapshot: Whether somebody's transaction keeps an old snapshot open.
    """

    name: str
    settings: dict[str, float]
    waiting: int
    passing: int = 0
    snapshot: bool = False


def cases(jobs: int, which: str) -> Iterator[Case]:
    """List the cases of one table."""
    if which == "vacuum":
        for name, settings in VACUUM.items():
            yield Case(name=name, settings=settings, waiting=jobs, passing=2 * jobs)
        return
    for fillfactor in FILLFACTORS:
        yield Case(
            name=f"fillfactor {fillfactor}",
            settings={"fillfactor": fillfactor},
            waiting=BATCH * AHEAD if which == "passing" else jobs,
            passing=jobs if which == "passing" else 0,
            snapshot=which == "snapshot",
        )


def measure(url: str, case: Case) -> Numbers:
    """Run one case on a new database: seconds in claims, in finishes and in enqueueing, and what the server counted."""
    engine = new_queue(url, threads=2)
    place = full_name(engine)(default_tables.job)
    with engine.begin() as connection:
        for name, value in case.settings.items():
            connection.exec_driver_sql(f"ALTER TABLE {place} SET ({name} = {value})")
    fill(engine, case.waiting)
    settle(engine)
    runtime = prepare(build_runtime(engine, lambda *_: None, queue="default", on_event=lambda _: None))
    before = used(engine)
    with ExitStack() as stack:
        if case.snapshot:
            connection = stack.enter_context(engine.connect().execution_options(isolation_level="REPEATABLE READ"))
            connection.exec_driver_sql("SELECT count(*) FROM proletarian.archived_job")
        numbers = work(runtime, case)
    seconds, log = (now - then for now, then in zip(used(engine), before, strict=True))
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(1.2)")  # the statistics of other sessions come that late
        updates, hot, vacuums, table, indexes = connection.execute(FACTS, {"place": place}).one()
    engine.dispose()
    return {
        **numbers,
        "server CPU µs/job": seconds / (case.waiting + case.passing) * 1e6,
        "WAL bytes/job": log / (case.waiting + case.passing),
        "HOT %": 100 * hot / updates,
        "table pages": float(table),
        "index pages": float(indexes),
        "autovacuums": float(vacuums),
    }


def used(engine: sa.Engine) -> tuple[float, float]:
    """Return the processor seconds of the server and all its processes until now, ended ones too, and the bytes of its log."""
    with engine.connect() as connection:
        pid, log = connection.exec_driver_sql("SELECT pg_backend_pid(), pg_current_wal_lsn() - '0/0'::pg_lsn").one()
    processes = {int(path.parent.name): path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")}
    server = processes[pid][1]  # the parent
    ticks = sum(int(count) for count in processes[int(server)][11:15])
    ticks += sum(int(count) for fields in processes.values() if fields[1] == server for count in fields[11:13])
    return ticks / os.sysconf("SC_CLK_TCK"), float(log)


def work(runtime: Runtime, case: Case) -> Numbers:
    """Claim and finish all jobs in one thread, some batches ahead; as long as jobs come, a batch for each that is finished."""
    own, recorder, floors = OwnConnection(runtime.engine), Recorder(runtime), {"default": Floor()}
    spent, passing = {"claim": 0.0, "finish": 0.0}, case.passing
    in_hand: deque[Any] = deque()
    while True:
        while len(in_hand) < AHEAD:
            begun = time.perf_counter()
            claimed = claim_leased(runtime, own, limit=BATCH, floors=floors)
            spent["claim"] += time.perf_counter() - begun
            if not claimed:
                break
            in_hand.append(claimed)
        if not in_hand:
            break
        recordings = [Recording(Decision(claimed=job, verdict="success")) for job in in_hand.popleft()]
        begun = time.perf_counter()
        recorder.record(recordings)
        spent["finish"] += time.perf_counter() - begun
        if passing > 0:
            fill(runtime.engine, BATCH)
            passing -= BATCH
    own.close()
    recorder.close()
    jobs = case.waiting + case.passing
    return {
        "claim µs/job": spent["claim"] / jobs * 1e6,
        "finish µs/job": spent["finish"] / jobs * 1e6,
        "jobs/s": jobs / (spent["claim"] + spent["finish"]),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure in turn, several times, and print medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=TABLES, action="append")
    asked = parser.parse_args(arguments)
    with start(["postgresql"]) as place:
        sys.stdout.write(f"PostgreSQL {place.versions['postgresql']}, {asked.jobs} jobs, batches of {BATCH}, durable\n")
        for which in asked.only or TABLES:
            naptime = "1s" if which == "vacuum" else "1min"  # the server's own is as long as a run
            for statement in (f"ALTER SYSTEM SET autovacuum_naptime = '{naptime}'", "SELECT pg_reload_conf()"):
                place.administrators["postgresql"].execute(statement)
            found: dict[str, list[Numbers]] = {}
            for _ in range(asked.repeats):
                for case in cases(asked.jobs, which):
                    with place.database("postgresql") as url:
                        found.setdefault(case.name, []).append(measure(url, case))
            show(TABLES[which], found)
    return 0


TABLES: Final = {
    "drain": "A full queue is emptied",
    "snapshot": "A full queue is emptied, beside an old snapshot",
    "passing": "A short queue, jobs come as fast as they go",
    "vacuum": "A full queue, jobs come as fast as they go",
}


def show(title: str, found: dict[str, list[Numbers]]) -> None:
    """Print one table of medians; rates beside the first row's."""
    medians = {name: {key: statistics.median(one[key] for one in runs) for key in runs[0]} for name, runs in found.items()}
    first = next(iter(medians.values()))
    columns = list(first)
    sys.stdout.write(f"\n{title}\n\n| | {' | '.join(columns)} | ratio |\n|---|{'---:|' * (len(columns) + 1)}\n")
    for name, row in medians.items():
        cells = [f"{row[column]:,.1f}".replace(",", " ") for column in columns]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} | {row['server CPU µs/job'] / first['server CPU µs/job']:.2f} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
