"""One step of a worker as a function: claim, run, finish."""

from __future__ import annotations

import datetime as dt
import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import exc

from proletarian_sa import events
from proletarian_sa.finish import Recorder, Recording, record_until
from proletarian_sa.floor import EARLIEST
from proletarian_sa.heartbeat import Heartbeats
from proletarian_sa.held import HeldClaims, HeldWatch
from proletarian_sa.held_check import check_held_once
from proletarian_sa.install import check_tables
from proletarian_sa.log import log_event
from proletarian_sa.models import DEFAULT_QUEUE, JobTables, default_tables
from proletarian_sa.own_connection import OwnConnection
from proletarian_sa.run import Decision, run, start
from proletarian_sa.runtime import DEFAULT_MAX_CRASHES, Claim, FailedJob, Runtime, build_runtime, prepare
from proletarian_sa.spread import Spread
from proletarian_sa.trouble import CLAIMING

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy.engine import Engine
    from sqlalchemy.orm import Session

    from proletarian_sa.claimed import ClaimedJob
    from proletarian_sa.floor import Floor
    from proletarian_sa.handlers import HandlerMode, Retry
    from proletarian_sa.heartbeat import InHand
    from proletarian_sa.outcomes import Outcome
    from proletarian_sa.running import RunningJob

MOST_RACES: Final = 5  # that one call of process_next_job may lose against claims on other nodes of a cluster


def process_next_job(
    engine: Engine,
    handler: Any,
    *,
    queue: str | Sequence[str] = DEFAULT_QUEUE,
    tables: JobTables = default_tables,
    claim: Claim = "leased",
    lease: dt.timedelta | float = 60.0,
    retry: Retry = None,
    handler_mode: HandlerMode = "default",
    session_factory: Callable[[], Session] | None = None,
    max_crashes: int = DEFAULT_MAX_CRASHES,
    failed_job: FailedJob | None = None,
    held_warning: dt.timedelta | float = 60.0,
    worker_id: str | None = None,
    on_event: events.Sink = log_event,
) -> Outcome | None:
    """Run the oldest due job of a queue in this thread, and record what became of it.

    For tests, cron and programs with a loop of their own; `QueueWorker` does the same with threads.

    Args:
        engine: The application's engine; connections of our own are taken from its pool.
        handler: A `JobRegistry`, or a function of `(job_type, payload)`.
        queue: Which queue, or several in strict order: a job of a later one is run when none of the earlier ones is due.
        tables: Which pair of tables; the same as for `enqueue`.
        claim: `leased` or `held`; see `QueueWorker`.
        lease: How long the job is ours without a sign of life, seconds or timedelta; it is prolonged while the handler runs.
        retry: The strategy for job types without one of their own, or a function `(job, exception) -> RetryStrategy | None`.
        handler_mode: How to call a plain function: `default`, `(job_type, payload)`; `advanced`, `(job)`.
        session_factory: Makes the Session behind `job.session`, for one's own subclass or binds.
        max_crashes: How many runs of a job may be lost with their worker before it is archived as failure.
        failed_job: Called with `(job, exception)` when a job has failed for good; see `QueueWorker`.
        held_warning: After how long a held job is warned about, seconds or timedelta; 60 s by default.
        worker_id: A name for logs and for `claimed_by`; `proletarian[queue]` by default.
        on_event: Is given every event; standard logging by default.

    Returns:
        What became of the run, or None when no job was due.

    Raises:
        TypeError: An option has the wrong type.
        ValueError: An option has a value out of bounds.
        TablesMissing: The tables are not there; the message says what to type.
        DatabaseNotSupported: The server is too old, the SQLite database is in memory, or the database cannot hold claims.
        SQLAlchemyError: The claim failed: no job was touched.
        KeyboardInterrupt: Ctrl-C in the main thread; the job is put back.

    **Transaction:** its own: one for the claim, that of `job.session` if the handler uses it, one for the finish; held: one.
    """
    runtime = prepare(
        build_runtime(
            engine,
            handler,
            queue=queue,
            tables=tables,
            claim=claim,
            lease=lease,
            retry=retry,
            handler_mode=handler_mode,
            session_factory=session_factory,
            max_crashes=max_crashes,
            failed_job=failed_job,
            held_warning=held_warning,
            worker_id=worker_id,
            on_event=on_event,
        )
    )
    return _process_held(runtime) if runtime.claim == "held" else _process_leased(runtime)


def _process_held(runtime: Runtime) -> Outcome | None:
    watch = HeldWatch(runtime, keep_connection=False)
    held = HeldClaims(runtime, watch, keep_connection=False)
    try:
        check_held_once(runtime)
        watch.start()
        claimed = held.claim()
        return None if claimed is None else held.run(claimed)
    except exc.DBAPIError as error:
        _explain(runtime, error)
        raise
    finally:
        watch.stop()
        held.close()


def _process_leased(runtime: Runtime) -> Outcome | None:
    own = OwnConnection(runtime.engine)
    try:
        sent_at = time.monotonic()
        claimed = _claim_or_explain(runtime, own)
        if not claimed:
            return None
        own.close()  # the handler may need the pool's only connection; likewise nothing is kept below
        heartbeats = Heartbeats(runtime, keep_connection=False)
        (in_hand,) = heartbeats.add(claimed, sent_at)
        recorder = Recorder(runtime, keep_connection=False)
        heartbeats.start()
        try:
            decision = run_in_hand(runtime, in_hand)
            in_hand.finishing = True
            return record(runtime, recorder, in_hand, decision)
        except KeyboardInterrupt as interruption:
            recorder.record([Recording(Decision(claimed=in_hand.claimed, verdict="release", exception=interruption))])
            raise
        finally:
            heartbeats.remove(in_hand)
            heartbeats.stop()
    finally:
        own.close()


def _claim_or_explain(runtime: Runtime, own: OwnConnection) -> list[ClaimedJob]:
    spread = Spread()
    for _ in range(MOST_RACES):
        try:
            return claim_leased(runtime, own, limit=1, spread=spread)
        except exc.DBAPIError as error:
            lost = error
        if not runtime.statements.is_lost_race(lost):
            break
        spread.lost()
    _explain(runtime, lost)
    raise lost


def _explain(runtime: Runtime, error: exc.DBAPIError) -> None:
    if runtime.statements.is_missing_table(error):
        check_tables(runtime.engine, tables=runtime.tables)


def claim_leased(
    runtime: Runtime,
    own: OwnConnection,
    *,
    limit: int,
    spread: Spread | None = None,
    floors: Mapping[str, Floor] | None = None,
) -> list[ClaimedJob]:
    """Claim up to `limit` jobs: ours when this returns. Jobs of a later queue only if the earlier ones have too few.

    Args:
        runtime: The worker's.
        own: The connection of its claims.
        limit: At most so many.
        spread: The worker's, where claims on other nodes of a cluster may undo its own.
        floors: The worker's, by queue; without them all claims are full.

    **Transaction:** its own, one for each queue, committed.
    """
    taken: list[ClaimedJob] = []
    for queue in runtime.queues:
        floor = None if floors is None else floors[queue]
        since, began = EARLIEST if floor is None else floor.since(), time.monotonic()
        try:
            with own.transaction() as connection:
                claimed = runtime.statements.claim(
                    connection,
                    queue=queue,
                    token=runtime.tokens.new(),
                    lease=runtime.lease,
                    limit=limit - len(taken),
                    spread=spread,
                    since=since,
                )
        except Exception as error:  # becomes an event; what does not pass meets the next claim
            if not taken:
                raise
            # What is ours already must not be forgotten: it would lapse, and count as lost with its worker.
            runtime.emit(
                events.TransientErrorMet(
                    worker_id=runtime.worker_id,
                    activity=CLAIMING,
                    exception=error,
                    retry_in=dt.timedelta(),
                    consecutive=1,
                    news=runtime.vigil.news(CLAIMING, error, dt.timedelta()),
                )
            )
            break
        if floor is not None:
            floor.claimed(since, began, claimed)
        if claimed:
            runtime.emit(events.JobsClaimed(worker_id=runtime.worker_id, queue=queue, count=len(claimed)))
        taken += claimed
        if len(taken) >= limit or any(job.crashes for job in claimed):  # those are claimed alone
            break
    return taken


def run_in_hand(
    runtime: Runtime,
    in_hand: InHand,
    stopping: threading.Event | None = None,
    elsewhere: Callable[[InHand, RunningJob], Decision] | None = None,
) -> Decision:
    """Run a job in hand, unless its lease is no longer ours.

    `stopping`: the worker's own flag, looked at once more. `elsewhere`: runs it in another process.

    **Transaction:** that of `job.session`, if the handler uses it.
    """
    started = start_in_hand(runtime, in_hand, stopping)
    if isinstance(started, Decision):
        return started
    return run(runtime, in_hand.claimed, started) if elsewhere is None else elsewhere(in_hand, started)


def start_in_hand(runtime: Runtime, in_hand: InHand, stopping: threading.Event | None = None) -> RunningJob | Decision:
    """Return a job in hand for its handler, or the decision where it cannot be run, or its lease is no longer ours.

    **Transaction:** nothing.
    """
    if in_hand.lost or in_hand.valid_until <= time.monotonic():
        return Decision(claimed=in_hand.claimed, verdict="release")
    started = start(runtime, in_hand.claimed)
    if isinstance(started, Decision):
        return started
    in_hand.running = started
    if in_hand.lost or (stopping is not None and stopping.is_set()):  # since the caller looked
        started._stop.set()
    return started


def record(runtime: Runtime, recorder: Recorder, in_hand: InHand, decision: Decision) -> Outcome:
    """Record the decision, trying again while the lease is prolonged, or for as long as one lasts."""
    first = time.monotonic()
    return record_until(
        runtime, recorder, Recording(decision), lambda: max(in_hand.valid_until, first + runtime.lease.total_seconds())
    )
