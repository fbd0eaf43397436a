"""`claim="held"`: one transaction from the claim to the finish, as few round trips as it takes, and nothing left open between."""

import threading

import pytest
import sqlalchemy as sa

from proletarian_sa import JobInterrupted, RetryStrategy, default_tables, events, process_next_job
from proletarian_sa.dialects import statements_for
from proletarian_sa.dialects.held import HeldStatements
from tests.helpers import wait_until
from tests.observing import PATIENCE, Gate, Recorder, add, change, session_id, transactions
from tests.plans import MIXES, QUEUE, QUEUE_INDEX, analyze, capture, explain, faults_of_claim, fill, forget_statistics, replay
from tests.queue_contents import User, archived, left, queued
from tests.test_row_locks import count_locks


class Sent:
    """What a worker's connections send: statements, and ends of transactions."""

    def __init__(self, engine):
        self.log: list[str] = []
        sa.event.listen(engine, "before_cursor_execute", self._execute)
        sa.event.listen(engine, "commit", lambda _connection: self.log.append("COMMIT"))
        sa.event.listen(engine, "rollback", lambda _connection: self.log.append("ROLLBACK"))

    def _execute(self, _connection, _cursor, statement, *_):
        self.log.append(statement)

    def brief(self):
        """Return a word for each: `set` for what the planner is told, `claim`, the verb of what else is about jobs."""
        return [brief(entry) for entry in self.log]


def brief(entry):
    """Return one word for what was sent."""
    if "SKIP LOCKED" in entry:
        return "claim"
    if "set_config" in entry or entry.startswith(("SET SESSION", "SHOW SESSION")):
        return "set"
    first = entry.split()[0]
    return {"WITH": "INSERT", "SET": "SET CONSTRAINTS"}.get(first, first)


SETTLE = {"postgresql": ["set"]}
DATABASE = {"postgresql": ["INSERT"]}
RETRY = {"postgresql": ["UPDATE", "UPDATE"]}
TO_ARCHIVE = ["INSERT", "DELETE"]


def run_one(engine, handler, **options):
    """Run a job on a connection that is set up, and return what was sent from its claim on."""
    sent = Sent(engine)
    outcome = process_next_job(engine, handler, handler_mode="advanced", claim="held", **options)
    words = sent.brief()
    first = words.index("claim")
    settle = SETTLE.get(engine.dialect.name, [])
    assert settle == words[first - len(settle) : first]
    end = len(words) - 1 - words[::-1].index("COMMIT") if "COMMIT" in words[first:] else len(words)
    # The MySQL family's time-outs are restored, and committed, when the connection is given back.
    return outcome, [word for word in words[first : end + 1] if word != "set"]


def fail(_job):
    """Be a handler that fails."""
    raise ValueError


def interrupt(job):
    """Be a handler that is asked to stop and does."""
    job._stop.set()
    raise JobInterrupted


def test_what_a_job_sends(database, queue_engine):
    """One transaction per job: the claim, then the finish, each as few statements as the database allows, one COMMIT."""
    database.require("row_locks")
    process_next_job(queue_engine, fail, claim="held", handler_mode="advanced")  # the start-up probe has been done
    name = queue_engine.dialect.name
    archive, repeat = DATABASE.get(name, TO_ARCHIVE), RETRY.get(name, ["UPDATE", "UPDATE"])
    expected = {
        "no-op": (lambda _job: None, {}, "succeeded", [*archive]),
        "failure": (fail, {}, "failed", [*archive]),
        "retry": (fail, {"retry": RetryStrategy(retries=1, delays=[3600])}, "retrying", repeat),
    }
    for case, (handler, options, status, finish) in expected.items():
        add(queue_engine, case)
        outcome, words = run_one(queue_engine, handler, **options)

        assert (case, status) == (case, outcome.status)
        assert (case, ["claim", *finish, "COMMIT"]) == (case, words[: len(finish) + 2])


def test_a_job_with_a_session_is_one_transaction(database, queue_engine):
    """`job.session` joins the claim's transaction by a savepoint: no other BEGIN, no other COMMIT."""
    database.require("row_locks")
    process_next_job(queue_engine, fail, claim="held", handler_mode="advanced")
    add(queue_engine)
    _, words = run_one(queue_engine, lambda job: job.session.execute(sa.text("SELECT 1 AS mine")))
    constraints = ["SET CONSTRAINTS"] if queue_engine.dialect.name == "postgresql" else []
    archive = DATABASE.get(queue_engine.dialect.name, TO_ARCHIVE)
    expected = ["claim", "SAVEPOINT", "SELECT", *constraints, "RELEASE", *archive, "COMMIT"]

    assert expected == words[: len(expected)]


def test_an_empty_poll_is_one_claim(database, queue_engine, work):
    """A poll of an empty queue is one claim and the end of its transaction, on a connection that is kept, with its settings."""
    database.require("row_locks")
    sent = Sent(queue_engine)
    worker, _ = work(fail, queue_engine, claim="held")
    worker.start()
    wait_until(lambda: sent.brief().count("claim") > 6, PATIENCE)
    worker.stop()
    words = sent.brief()
    claims = [number for number, word in enumerate(words) if word == "claim"]
    poll = ["claim", "COMMIT"]

    # The first two are the start-up probe's.
    assert [poll] * 3 == [words[at - len(poll) + 2 : at + 2] for at in claims[3:6]]
    assert claims[5] - claims[3] == 2 * len(poll)


def test_nothing_is_written_before_the_finish(database, queue_engine):
    """While the handler runs, the row says what it said before: others read it and do not wait."""
    database.require("row_locks")
    add(queue_engine)
    before = queued(queue_engine)
    during = []
    process_next_job(queue_engine, lambda _job: during.extend(queued(queue_engine)), claim="held", handler_mode="advanced")

    assert before == during
    assert [("success", 1)] == [(row.status, row.attempts) for row in archived(queue_engine)]


def test_no_transaction_is_open_between_polls(database, queue_engine, work):
    """Idle transactions: an idle worker with held claims has no transaction open, after all of its threads had jobs."""
    database.require("row_locks")
    numbers: list[int] = []
    engine = database.create_engine(pool_size=10)

    @sa.event.listens_for(engine, "connect")
    def note(connection, _record):
        numbers.append(backend(connection, engine))

    worker, seen = work(lambda job: job.session, engine, claim="held", worker_threads=8, polling_interval=3600)
    for _ in range(20):
        add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=20)
    quiet = [[]] * 10
    # The last polls may be under way; then there are none for an hour.
    wait_until(lambda: [transactions(queue_engine, numbers) for _ in quiet] == quiet, PATIENCE)

    assert len(numbers) >= 2
    assert worker.is_running


def backend(connection, engine):
    """Return the server's number of a driver's connection."""
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()" if engine.dialect.name == "postgresql" else "SELECT connection_id()")
    number = cursor.fetchone()[0]
    cursor.close()
    connection.rollback()
    return number


def test_one_poller_for_eight_threads(database, queue_engine, work):
    """An idle worker asks once per interval, however many threads it has, after all of them had jobs too."""
    database.require("row_locks")
    barrier = threading.Barrier(8)
    sent = Sent(queue_engine)
    worker, seen = work(lambda _job: barrier.wait(PATIENCE), queue_engine, claim="held", worker_threads=8, polling_interval=3600)
    for _ in range(8):
        add(queue_engine)
    worker.start()
    seen.wait_for(events.JobSucceeded, count=8)
    claims = wait_until_still(lambda: sent.brief().count("claim"))

    # Two of the probe, one for each job, and of each thread at most one that came too late.
    assert 10 <= claims <= 18


def wait_until_still(count):
    """Return a number once it has stayed the same for a while."""
    seen = []

    def is_still():
        seen.append(count())
        return len(seen) > 40 and len(set(seen[-40:])) == 1

    wait_until(is_still, PATIENCE)
    return seen[-1]


def test_several_queues(database, queue_engine):
    """Each queue is polled in a transaction of its own, in their order, and the handler's settings are the application's."""
    database.require("row_locks")
    process_next_job(queue_engine, fail, claim="held", handler_mode="advanced")
    add(queue_engine, queue="third")
    settings = []

    def handler(job):
        if queue_engine.dialect.name == "postgresql":
            settings.extend(job.session.scalar(sa.text(f"SHOW {name}")) for name in ("enable_seqscan", "enable_sort"))

    outcome, words = run_one(queue_engine, handler, queue=["first", "second", "third"])

    assert "succeeded" == outcome.status
    claims = [number for number, word in enumerate(words) if word == "claim"]
    assert ["COMMIT"] * 2 == [words[number + 1] for number in claims[:2]]
    assert 3 == len(claims)
    assert {"on"} >= set(settings), settings


def held_of(engine) -> HeldStatements:
    """Return the statements of held claims."""
    held = statements_for(engine.dialect, default_tables).held
    assert held is not None
    return held


def claim(held, connection):
    """Claim a job of the filled queue."""
    held.begin(connection)
    return held.claim(connection, queue=QUEUE, token="x")  # noqa: S106 - names a claim


def own(engine):
    """Return the engine as a worker uses it."""
    with engine.connect() as connection:
        return engine.execution_options(**statements_for(engine.dialect, default_tables).own_options(connection))


@pytest.mark.parametrize("rows", [20, 1000])
def test_a_claim_is_one_index_range_scan(database, queue_engine, rows):
    """SKIP LOCKED serialises: a held claim reads the index on queue and time from the oldest due job on, and sorts nothing."""
    database.require("row_locks")
    engine, held = own(queue_engine), held_of(queue_engine)
    with engine.begin() as connection:
        forget_statistics(connection)
    for due in MIXES.values():
        with engine.begin() as connection:
            connection.execute(sa.delete(default_tables.job))
            fill(connection, rows, due)
        for look in (None, analyze):
            with engine.begin() as connection:
                if look is not None:
                    look(connection)
            plans = plans_of_a_claim(engine, held)
            faults = [fault for plan in plans for fault in faults_of_claim(plan, engine.dialect.name, limit=1, all_due=due == 100)]

            assert [] == faults, "\n\n".join(faults)
            assert QUEUE_INDEX in {access.index for plan in plans for access in plan.accesses}


def plans_of_a_claim(engine, held):
    """Return the plans of the statements that a claim sends."""
    with engine.connect() as connection:
        with capture(engine) as captured:
            claim(held, connection)
        connection.rollback()
        return replay(connection, captured, explain)


@pytest.mark.parametrize("rows", [3, 1000])
def test_a_claim_locks_about_one_row(database, queue_engine, rows):
    """SKIP LOCKED serialises: a held claim locks the row it returns, and none that it looked at."""
    database.require("lock_table")
    engine, held = own(queue_engine), held_of(queue_engine)
    with engine.begin() as connection:
        forget_statistics(connection)
        fill(connection, rows, MIXES["all due"])
    with engine.connect() as first, engine.connect() as second:
        claims = [claim(held, connection) for connection in (first, second)]
        with engine.connect() as observer:
            locks = count_locks(observer, session_id(second))

        assert claims[0].job_id != claims[1].job_id
        assert locks <= 4  # rows of the index and of the table


def test_four_jobs_at_once(database, queue_engine, work):
    """SKIP LOCKED serialises: with ten due jobs four workers run four at the same time."""
    database.require("row_locks")
    gate = Gate()
    for _ in range(10):
        add(queue_engine)
    for _ in range(4):
        work(gate, database.create_engine(), claim="held")[0].start()
    running = {gate.begun.get(timeout=PATIENCE).job_id for _ in range(4)}
    gate.open.set()
    wait_until(lambda: len(archived(queue_engine)) == 10, PATIENCE)

    assert 4 == len(running)


def test_an_interrupted_job_is_as_if_it_had_not_begun(database, app_engine):
    """A handler that was asked to stop and does leaves the row untouched, and nothing of what it wrote."""
    database.require("row_locks")
    add(app_engine)
    before = queued(app_engine)

    def handler(job):
        job.session.add(User(id=3, name="half"))
        job.session.flush()
        interrupt(job)

    seen = Recorder()
    outcome = process_next_job(app_engine, handler, claim="held", handler_mode="advanced", on_event=seen)

    assert "interrupted" == outcome.status
    assert before == queued(app_engine)
    assert 1 == len(seen.of(events.JobReleased))
    assert "succeeded" == process_next_job(app_engine, lambda _job: None, claim="held", handler_mode="advanced").status


def test_a_row_that_is_deleted_from_outside_waits_for_the_claim(database, queue_engine):
    """Row changed from outside: whoever deletes the row of a running job waits for its end, and the job is done once."""
    database.require("row_locks")
    job_id = add(queue_engine)
    done = threading.Event()

    def delete():
        with queue_engine.begin() as connection:
            connection.execute(sa.delete(default_tables.job).where(default_tables.job.c.job_id == job_id))
        done.set()

    thread = threading.Thread(target=delete)

    def handler(_job):
        thread.start()
        assert not done.wait(0.1)

    outcome = process_next_job(queue_engine, handler, claim="held", handler_mode="advanced")
    thread.join(PATIENCE)

    assert "succeeded" == outcome.status
    assert done.is_set()
    assert ([], [("success", 1)]) == left(queue_engine)


def test_a_row_that_was_changed_between_polls(database, queue_engine):
    """A job that an operator has changed is claimed as it stands."""
    database.require("row_locks")
    job_id = add(queue_engine)
    change(queue_engine, job_id, attempts=3)
    outcome = process_next_job(queue_engine, lambda _job: None, claim="held", handler_mode="advanced")

    assert ("succeeded", 4) == (outcome.status, outcome.attempts)
