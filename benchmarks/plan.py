"""What is run, and with which settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from benchmarks.floors import PGBENCH
from benchmarks.measure import Run
from benchmarks.sizes import FORMS, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

POSTGRESQL: Final = "postgresql"
OTHERS: Final = ("mysql", "mariadb", "sqlite")
CLIENTS: Final = {"quick": (2,), "full": (1, 2, 4)}

TOGETHER: Final = (
    ("drain, held*", "bare psycopg loop"),
    ("drain*", "pgbench*"),
    ("enqueue_many", "bulk*"),
    ("session.add*",),
    ("pick-up*", "bare NOTIFY*"),
)
"""Names of runs that come one after the other."""

Settings = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another library: what it can do here, and its settings, the best first; the full form tries all of them.

    `jobs` is how many jobs it is given to drain, as a share of what we are given: about as much time.
    """

    name: str
    environment: str
    database: str
    drain: Settings
    jobs: float
    bulk: Settings = ()

    def function(self, name: str) -> str:
        """Name one of its functions."""
        return f"benchmarks.peers.{self.environment.replace('-', '_')}:{name}"


PEERS: Final = (
    Peer(
        name="PgQueuer, asyncpg",
        environment="pgqueuer",
        database=POSTGRESQL,
        drain=[{"driver": "asyncpg", "batch": batch} for batch in (500, 100, 200, 1000)],
        bulk=[{"driver": "asyncpg", "batch": batch} for batch in (5000, 1000, 20_000)],
        jobs=0.25,
    ),
    Peer(
        name="PgQueuer, psycopg",
        environment="pgqueuer",
        database=POSTGRESQL,
        drain=[{"driver": "psycopg", "batch": batch} for batch in (500, 100, 200, 1000)],
        bulk=[{"driver": "psycopg", "batch": batch} for batch in (5000, 1000, 20_000)],
        jobs=0.25,
    ),
    Peer(
        name="Oban",
        environment="oban",
        database=POSTGRESQL,
        drain=[{"limit": limit} for limit in (500, 20, 100)],
        bulk=[{"batch": batch} for batch in (5000, 1000)],
        jobs=0.05,
    ),
    Peer(
        name="procrastinate",
        environment="procrastinate",
        database=POSTGRESQL,
        drain=[{"concurrency": concurrency} for concurrency in (10, 1, 4, 50)],
        bulk=[{"batch": batch} for batch in (5000, 1000)],
        jobs=0.02,
    ),
    Peer(
        name="DBOS",
        environment="dbos",
        database=POSTGRESQL,
        drain=[{"worker_concurrency": limit, "polling": 0.01} for limit in (100, None, 20)],
        jobs=0.01,
    ),
    Peer(name="huey", environment="huey", database="sqlite", drain=[{"workers": workers} for workers in (1, 4)], jobs=1.0),
    Peer(
        name="Alchemical Queues",
        environment="alchemical-queues",
        database="sqlite",
        drain=[{"workers": workers} for workers in (1, 4)],
        jobs=0.3,
    ),
    Peer(
        name="dbworker",
        environment="dbworker",
        database="sqlite",
        drain=[{"concurrency": workers} for workers in (2, 1, 4)],
        jobs=0.3,
    ),
)


def plan(form: str, databases: Iterable[str]) -> list[Run]:
    """List what is run in this form on these kinds of databases."""
    sizes, wanted = FORMS[form], set(databases)
    runs = chain(drains(sizes), enqueues(sizes), single(sizes), burdens(sizes), floors(form, sizes), peers(sizes))
    return sorted((run for run in runs if run.database in wanted), key=topic)


def topic(run: Run) -> tuple[int, int]:
    """Say when a run's turn is: what is compared comes close together, so that both sides have the same weather."""
    topics = (place for place, patterns in enumerate(TOGETHER) if any(fnmatch(run.name, f"*: {pattern}") for pattern in patterns))
    return next(topics, len(TOGETHER)), (POSTGRESQL, *OTHERS).index(run.database)


def ours(name: str, database: str, function: str, repeats: int, **options: Any) -> Run:
    """Describe a run of ours."""
    return Run(
        name=f"{database}: {name}",
        environment="ours",
        function=f"benchmarks.{function}",
        database=database,
        options=options,
        repeats=repeats,
    )


def drains(sizes: Sizes) -> Iterator[Run]:
    """Full queues."""
    drain = "scenarios.drain:drain"
    for threads in (1, 4, 16):
        name = f"drain, leased, {threads} threads"
        yield ours(name, POSTGRESQL, drain, sizes.repeats, jobs=sizes.drain, threads=threads)
    name, drain_async = "drain, async, leased, 100 at once, asyncpg", "scenarios.drain_async:drain"
    yield ours(name, POSTGRESQL, drain_async, sizes.repeats, jobs=sizes.drain, driver="asyncpg", concurrency=100)
    name = "drain, leased, 4 threads, 2 processes"
    yield ours(name, POSTGRESQL, drain, sizes.repeats, jobs=sizes.drain, threads=4, processes=2)
    for threads in (1, 4, 16):
        name = f"drain, held, {threads} threads"
        yield ours(name, POSTGRESQL, drain, sizes.repeats, jobs=sizes.held, threads=threads, claim="held")
    name = "drain, held, 4 threads, 2 processes"
    yield ours(name, POSTGRESQL, drain, sizes.repeats, jobs=sizes.held, threads=4, processes=2, claim="held")
    for database in OTHERS:
        for threads in (1, 4):
            name = f"drain, leased, {threads} threads"
            yield ours(name, database, drain, sizes.repeats_others, jobs=sizes.others, threads=threads)
        if database != "sqlite":
            name = "drain, held, 4 threads"
            yield ours(name, database, drain, sizes.repeats_others, jobs=sizes.held, threads=4, claim="held")


def enqueues(sizes: Sizes) -> Iterator[Run]:
    """Enqueueing, many at once and by `session.add`."""
    for database in (POSTGRESQL, *OTHERS):
        bulk, repeats = "scenarios.enqueue:bulk", sizes.repeats if database == POSTGRESQL else sizes.repeats_others
        yield ours("enqueue_many", database, bulk, repeats, jobs=sizes.bulk, batch=sizes.bulk_batch)
        for per_commit in (1, 100):
            rows = sizes.commits * (1 if per_commit == 1 else 10)
            yield ours(
                f"session.add, {per_commit} a commit",
                database,
                "scenarios.add:add",
                repeats,
                rows=rows,
                per_commit=per_commit,
                block=10 if per_commit == 1 else 2,
            )


def single(sizes: Sizes) -> Iterator[Run]:
    """What is about one job: latency, retries, idleness."""
    for database in (POSTGRESQL, *OTHERS):
        jobs = sizes.latency if database == POSTGRESQL else sizes.latency // 2
        pick_up = "scenarios.latency:pick_up"
        repeats = sizes.repeats if database == POSTGRESQL else sizes.repeats_others
        yield ours("pick-up, worker in another process", database, pick_up, repeats, jobs=jobs)
        yield ours("pick-up, worker in the same process", database, pick_up, repeats, jobs=jobs, process=False)
        retried = sizes.drain // 16 if database == POSTGRESQL else sizes.others // 2
        yield ours("retries", database, "scenarios.retries:retries", repeats, jobs=retried)
        yield ours("idle, 16 threads", database, "scenarios.idle:idle", 1, seconds=sizes.idle_seconds)
    yield ours("idle, 16 threads, NOTIFY", POSTGRESQL, "scenarios.idle:idle", 1, seconds=sizes.idle_seconds, notify=True)


def burdens(sizes: Sizes) -> Iterator[Run]:
    """What could slow a worker down: much to do later, old snapshots, many jobs."""
    for database in (POSTGRESQL, *OTHERS):
        first = database == POSTGRESQL
        repeats = sizes.heavy_repeats_first if first else sizes.heavy_repeats
        far = sizes.far if first else sizes.far_others
        near = sizes.near if first else max(sizes.near // (8 if database == "sqlite" else 25), 1)
        for name, queued, scheduled in (("near", near, 0), ("far queued", far, 0), ("far scheduled", near, far)):
            yield ours(
                f"backlog, {name}",
                database,
                "scenarios.backlog:backlog",
                repeats,
                queued=queued,
                scheduled=scheduled,
                window=near,
            )
        if database != "sqlite":  # where one that reads stops nobody from reusing rows of the table
            jobs = sizes.snapshot if first else sizes.snapshot_others
            for held_open in (False, True):
                name = "old snapshot" if held_open else "no old snapshot"
                yield ours(name, database, "scenarios.snapshot:snapshot", repeats, jobs=jobs, held_open=held_open)
    yield ours("memory", POSTGRESQL, "scenarios.memory:memory", sizes.heavy_repeats, jobs=sizes.memory)


def floors(form: str, sizes: Sizes) -> Iterator[Run]:
    """The same SQL without us."""
    yield ours("bare psycopg loop", POSTGRESQL, "floors.bare_loop:drain", sizes.repeats, jobs=sizes.held)
    yield ours("bare NOTIFY and claim", POSTGRESQL, "floors.listener:pick_up", sizes.repeats, jobs=sizes.latency)
    for clients in CLIENTS["full" if form == "full" else "quick"]:
        yield ours(
            f"pgbench, batches of 100, {clients} clients",
            POSTGRESQL,
            "floors.pgbench:drain",
            sizes.repeats,
            jobs=max(sizes.drain, 1000),
            batch=100,
            clients=clients,
            program=PGBENCH,
        )


def peers(sizes: Sizes) -> Iterator[Run]:
    """The others."""
    for peer in PEERS:
        ours_drain = sizes.drain if peer.database == POSTGRESQL else sizes.others
        jobs = max(round(ours_drain * peer.jobs), 20)
        for what, settings, amount in (("drain", peer.drain, jobs), ("bulk", peer.bulk, sizes.bulk // 2)):
            for options in settings if sizes.sweep else settings[:1]:
                spelt = ", ".join(f"{name} {value}" for name, value in options.items() if name != "driver")
                yield Run(
                    name=f"{peer.database}: {what}, {peer.name}, {spelt}",
                    environment=peer.environment,
                    function=peer.function(what),
                    database=peer.database,
                    options={"jobs": amount, **options},
                    repeats=sizes.repeats if peer.database == POSTGRESQL else sizes.repeats_others,
                )
