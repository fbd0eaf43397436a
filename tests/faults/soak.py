"""A soak: producers, workers, databases, and whatever can die dies again and again.

    python -m tests.faults.soak --minutes 30 [--database postgresql …] [--seed 42]

All databases at the same time, each on a server of the soak's own. At the end a line for each: what happened, and whether the
invariant holds: no job is lost, none is there whose transaction was rolled back, each run beyond the first is explained, and what
jobs have written through their sessions equals the archive. Where it does not hold, the history of the jobs in question.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from proletarian_sa import create_all, default_tables
from tests.faults.own_server import OwnServer, OwnServers
from tests.faults.scene import Nursery
from tests.faults.soak_chaos import Chaos, in_threads
from tests.faults.soak_check import Facts, jobs_left, violations
from tests.servers.errors import ServerMissingError
from tests.stress import tables

KINDS = ("postgresql", "mysql", "mariadb", "sqlite")
PROGRESS = 30.0
"""Seconds between lines that tell how far it is."""
MOST_SHOWN = 5
"""Jobs whose history is shown."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class LockedNursery(Nursery):
    """One that several threads may use."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Start a process."""
        with self._lock:
            return super().run(*arguments, **options)


@contextmanager
def new_database(kind: str, servers: OwnServers, folder: Path) -> Iterator[tuple[str, OwnServer | None]]:
    """Make an empty database, and return its URL and its server, if it has one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'soak.db'}", None
        return
    server = servers.get(kind)
    with server.new_database() as database:
        yield database.url.render_as_string(hide_password=False), server


def is_empty(engine: sa.Engine) -> bool:
    """Return whether no job is queued or running."""
    return not jobs_left(engine)


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a file; its last may have been cut off by a kill."""
    whole = file.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def facts_of(chaos: Chaos) -> Facts:
    """Return all that is known of a database in the end."""
    return Facts(
        ledger=[line for start in chaos.producers for line in read_lines(start.log)],
        logs={start.number: read_lines(start.log) for start in chaos.workers},
        killed={start.number for start in chaos.workers if start.killed},
    ).read(chaos.engine)


def history(facts: Facts, job_id: str, chaos: Chaos) -> list[str]:
    """Return all that is known of a job, in the order of time, with the blows that fell meanwhile."""
    said = [
        (line["at"], f"worker {number}, process {line['process']}: {line['name']} {line['text']}")
        for number, log in facts.logs.items()
        for line in log
        if line["job_id"] == job_id
    ]
    blows = [one for one in chaos.history if said and min(said)[0] - 10 < one[0] < max(said)[0] + 10]
    rows = [f"{row}" for row in (*facts.queued, *facts.archive) if str(row.job_id) == job_id]
    return [*(f"{at:.3f} {text}" for at, text in sorted([*said, *blows])), *rows]


def report(chaos: Chaos) -> bool:
    """Print a database's line, and what is wrong; return whether the invariant holds."""
    facts = facts_of(chaos)
    wrong = violations(facts)
    holds = not wrong and not chaos.troubles
    rolled_back = list(facts.outcomes().values()).count("rolled back")
    did = ", ".join(f"{count} {what}" for what, count in sorted(chaos.did.items()))
    counts = f"{len(facts.archive)} jobs, {sum(facts.runs().values())} runs, {rolled_back} transactions rolled back; {did}"
    say(f"{chaos.kind}: {counts}; the invariant {'holds' if holds else 'DOES NOT HOLD'}")
    for trouble in chaos.troubles:
        say(f"  {trouble}")
    for what, job_id in wrong[: 10 * MOST_SHOWN]:
        say(f"  {job_id or ''} {what}")
    for job_id in list(dict.fromkeys(job_id for _, job_id in wrong if job_id))[:MOST_SHOWN]:
        say("\n    ".join([f"  history of {job_id}:", *history(facts, job_id, chaos)]))
    return holds


def progress(chaos: Chaos) -> str:
    """Return how far a database is."""
    try:
        with chaos.engine.connect() as connection:
            counts = [
                connection.scalar(sa.select(sa.func.count()).select_from(table))
                for table in (default_tables.archived_job, default_tables.job)
            ]
    except sa.exc.DBAPIError:
        return f"{chaos.kind} is away"
    return f"{chaos.kind} {counts[0]} done, {counts[1]} queued, {sum(chaos.did.values())} blows"


def soak(seconds: float, kinds: Sequence[str], seed: int, folder: Path) -> bool:
    """Run it, print what came of it, and return whether the invariant holds on all databases."""
    say(f"soak of {seconds:g} s on {', '.join(kinds)}, seed {seed}; logs in {folder}")
    with ExitStack() as ends:
        servers = OwnServers()
        ends.callback(servers.close)
        nursery = LockedNursery()
        ends.callback(nursery.close)
        chaoses: list[Chaos] = []
        for kind in kinds:
            place = folder / kind
            place.mkdir()
            try:
                url, server = ends.enter_context(new_database(kind, servers, place))
            except ServerMissingError as error:
                say(f"{kind}: left out: {error}")
                continue
            chaoses.append(Chaos(kind, url, server, nursery=nursery, folder=place, seed=f"{seed} {kind}"))
            create_all(chaoses[-1].engine)
            tables.metadata.create_all(chaoses[-1].engine)
        in_threads(chaoses, lambda one: one.start())
        began = time.monotonic()
        over = threading.Event()
        teller = threading.Thread(target=tell, args=(chaoses, began, over))
        teller.start()
        in_threads(chaoses, lambda one: one.run(lambda: time.monotonic() - began >= seconds))
        in_threads(chaoses, lambda one: one.finish(lambda: is_empty(one.engine)))
        over.set()
        teller.join()
        held = [report(one) for one in chaoses]
        return all(held)


def tell(chaoses: list[Chaos], began: float, over: threading.Event) -> None:
    """Print a line now and then."""
    while not over.wait(PROGRESS):
        say(f"{time.monotonic() - began:.0f} s: {'; '.join(map(progress, chaoses))}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak that the command line asks for, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description="Let everything die, and count the jobs.")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long, without start and end (30)")
    parser.add_argument("--database", action="append", choices=(*KINDS, "postgresql-oldest"), help="only there; may be repeated")
    parser.add_argument("--seed", type=int, default=None, help="of all random choices; printed at the start")
    parser.add_argument("--folder", type=Path, default=None, help="where the logs stay; by default they are removed if all is well")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="proletarian-soak-"))
    folder.mkdir(exist_ok=True)
    return 0 if soak(given.minutes * 60, given.database or KINDS, seed, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
