"""What is to be reached, each a ratio of two medians of one run, and whether it was."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.measure import Outcome

AS_GOOD_AS = 0.9


@dataclass(frozen=True, kw_only=True)
class Target:
    """A row of the table.

    Attributes:
        what: What is compared, for people.
        ours: Runs of ours, as a pattern; the best counts.
        against: What it is compared with, likewise; None: the number itself is the ratio.
        number: Which number of a run.
        against_number: Which number of the other, if it has another name.
        least: The ratio is to be at least this; more is better ...
        most: ... or at most this; less is better.
    """

    what: str
    ours: str
    against: str | None = None
    number: str = "jobs/s"
    against_number: str | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A target and what came of it; what is None could not be measured."""

    target: Target
    ours: float | None
    against: float | None

    @property
    def ratio(self) -> float | None:
        """Ours by theirs."""
        if self.target.against is None:
            return self.ours
        return None if self.ours is None or not self.against else self.ours / self.against

    @property
    def met(self) -> bool | None:
        """Whether the target was reached, as far as it was measured: by the three digits that are printed."""
        if self.ratio is None:
            return None
        ratio, least, most = float(f"{self.ratio:.3g}"), self.target.least, self.target.most
        return (least is None or ratio >= least) and (most is None or ratio <= most)


ADDED: Final = [
    Target(
        what=f"session.add(Job), {rows} a commit, {kind} time, against a plain model",
        ours=f"postgresql: session.add, {rows} a commit",
        against=f"postgresql: session.add, {rows} a commit",
        number=f"job {kind} µs/row",
        against_number=f"plain {kind} µs/row",
        most=1.15,
    )
    for rows in (1, 100)
    for kind in ("wall", "CPU")
]
LEASED: Final = "postgresql: drain, leased, * threads"
BURDENED: Final = [
    Target(
        what=f"{kind}: {name}",
        ours=f"{kind}: {ours}",
        against=f"{kind}: {against}",
        number=number,
        least=AS_GOOD_AS,
    )
    for kinds, name, ours, against, number in (
        (
            ("postgresql", "mysql", "mariadb"),
            "rate at the end with an old snapshot held open, against without",
            *("old snapshot", "no old snapshot", "jobs/s at the end"),
        ),
        (
            ("postgresql", "mysql", "mariadb", "sqlite"),
            "rate with a large backlog queued, against a small one",
            *("backlog, far queued", "backlog, near", "jobs/s"),
        ),
        (
            ("postgresql", "mysql", "mariadb", "sqlite"),
            "rate with a large backlog scheduled, against none",
            *("backlog, far scheduled", "backlog, near", "jobs/s"),
        ),
    )
    for kind in kinds
]
TARGETS: Final = [
    Target(what="leased, one process, against PgQueuer", ours=LEASED, against="postgresql: drain, PgQueuer*", least=3.0),
    Target(
        what="leased, async, against PgQueuer with asyncpg",
        ours="postgresql: drain, async, leased*",
        against="postgresql: drain, PgQueuer, asyncpg*",
        least=2.0,
    ),
    Target(what="leased, one process, against Oban", ours=LEASED, against="postgresql: drain, Oban*", least=20.0),
    Target(what="leased, one process, against procrastinate", ours=LEASED, against="postgresql: drain, procrastinate*", least=20.0),
    Target(what="leased, one process, against pgbench in batches of 100", ours=LEASED, against="postgresql: pgbench*", least=0.5),
    Target(
        what="held, one thread, against a bare psycopg loop",
        ours="postgresql: drain, held, 1 threads",
        against="postgresql: bare psycopg loop",
        least=0.85,
    ),
    Target(what="enqueue_many against PgQueuer", ours="postgresql: enqueue_many", against="postgresql: bulk, PgQueuer*", least=2.0),
    *ADDED,
    *(
        Target(
            what=f"pick-up latency, {number.removesuffix(' ms')}, against a bare NOTIFY and claim",
            ours="postgresql: pick-up, worker in another process",
            against="postgresql: bare NOTIFY and claim",
            number=number,
            most=2.0,
        )
        for number in ("median ms", "p99 ms")
    ),
    *BURDENED,
    Target(what="memory at the end by that when settled", ours="postgresql: memory", number="growth", most=1.05),
    *(
        Target(
            what=f"{kind}: statements about jobs of an idle worker with 16 threads, by polling intervals",
            ours=f"{kind}: idle, 16 threads",
            number="statements about jobs per interval",
            most=1.0,
        )
        for kind in ("postgresql", "mysql", "mariadb", "sqlite")
    ),
]


def judge(outcomes: Sequence[Outcome]) -> list[Row]:
    """Compare what was run with what is to be reached; a target none of whose runs was wanted gives no row."""
    rows = []
    for target in TARGETS:
        best = max if target.most is None else min
        ours = [outcome.median(target.number) for outcome in outcomes if fnmatch(outcome.run.name, target.ours)]
        if not ours:
            continue
        number = target.against_number or target.number
        against = [outcome.median(number) for outcome in outcomes if target.against and fnmatch(outcome.run.name, target.against)]
        rows.append(
            Row(
                target=target,
                ours=best((value for value in ours if value is not None), default=None),
                against=best((value for value in against if value is not None), default=None),
            )
        )
    return rows
