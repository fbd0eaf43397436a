"""What can happen to a queue whose workers have leased claims, one step at a time, without threads, beside a model of it."""

import datetime as dt
import threading
import time
from dataclasses import replace

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy.orm import Session

from proletarian_sa import ManualClock, enqueue, enqueue_many
from proletarian_sa.finish import Recording
from proletarian_sa.step import claim_leased, run_in_hand
from tests.queue_contents import User
from tests.queue_model import Behaviour, QueueModel, Verdict
from tests.queue_workers import COMMON, QUEUES, RARE, Environment, Finished, Hand, LeasedWorker, behave, claims_beside, compare

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
MICROSECOND = dt.timedelta(microseconds=1)
BOTH = (COMMON, RARE)
LEASED_WORKERS = [("same", QUEUES, BOTH), ("same", QUEUES[:1], (COMMON,)), ("other", QUEUES[::-1], (COMMON,))]

any_one = st.integers(0, 5)
faults = st.sampled_from([None, None, None, "refused", "unanswered", "refused, outage", "unanswered, outage"])
session_faults = st.sampled_from([None, None, "refused", "unanswered"])
ends = st.sampled_from(["succeed", "succeed", "fail", "fail", "interrupt"])
behaviours = st.builds(Behaviour, ends=ends, writes=st.booleans(), fault=session_faults, stopping=st.booleans())
delays = st.sampled_from([0, 0, 0, -3600, 30, 1800])


class LeasedMachine(RuleBasedStateMachine):
    """Workers with leased claims, two of them with the same name, on two queues."""

    environment: Environment
    clock: ManualClock

    def __init__(self):
        super().__init__()
        self.clock.set(START)
        self.tables, self.engine = self.environment.tables, self.environment.engine
        with self.engine.begin() as connection:
            for table in (self.tables.job, self.tables.archived_job, User.__table__):
                connection.execute(sa.delete(table))
        self.model = QueueModel(self.clock)
        self.numbers = 0
        self.workers = [LeasedWorker(lambda made=made: self.environment.runtime(*made, "leased")) for made in LEASED_WORKERS]
        self.holders = []

    def teardown(self):
        for worker in [*self.workers, *self.holders]:
            worker.close()

    # The application

    @initialize(first=st.integers(1, 4), second=st.integers(0, 2))
    def fill(self, first, second):
        """There are jobs in both queues, of both types."""
        self.enqueue_several(first, 0, streams=False, delay=0)
        self.enqueue_several(second, 1, streams=False, delay=30)
        self.enqueue_one(1, rare=True, delay=0, at=False, commits=True)

    def rows(self, count, queue, rare, delay):
        """Return jobs to enqueue, as `enqueue_many` takes them, each with a number of its own."""
        numbers = range(self.numbers, self.numbers + count)
        self.numbers += count
        job_type = RARE if rare else COMMON
        return [{"job_type": job_type, "payload": number, "queue": QUEUES[queue], "process_in": delay} for number in numbers]

    def enqueued(self, ids, row):
        """Note jobs that are there now; of many with one due time each is due a microsecond after the one before."""
        for place, job_id in enumerate(ids):
            due = self.clock.now() + dt.timedelta(seconds=row["process_in"])
            self.model.enqueue(job_id, row["queue"], row["job_type"], max(due, self.clock.now()) + place * MICROSECOND)
        self.clock.tick(MICROSECOND)

    @rule(queue=st.integers(0, 1), rare=st.booleans(), delay=delays, at=st.booleans(), commits=st.sampled_from([True, True, False]))
    def enqueue_one(self, queue, rare, delay, at, commits):
        """A job is there if and only if the transaction was committed; due now, later, or at a past time, which is now."""
        (row,) = self.rows(1, queue, rare, delay)
        due = {"process_at": self.clock.now() + dt.timedelta(seconds=delay)} if at else {"process_in": delay}
        with self.engine.connect() as connection:
            options = {"queue": row["queue"], "tables": self.tables}
            job_id = enqueue(connection, row["job_type"], row["payload"], **due, **options)
            if commits:
                connection.commit()
                self.enqueued([job_id], row)

    @rule(count=st.integers(2, 4), queue=st.integers(0, 1), streams=st.booleans(), delay=delays)
    def enqueue_several(self, count, queue, streams, delay):
        """Several at once, from a list or in a stream."""
        rows = self.rows(count, queue, rare=False, delay=delay)
        with self.engine.begin() as connection:
            found = enqueue_many(connection, iter(rows) if streams else rows, tables=self.tables)
            if streams:
                numbers, columns = [str(row["payload"]) for row in rows], self.tables.job.c
                query = sa.select(columns.job_id).where(columns.payload.in_(numbers)).order_by(columns.process_at)
                found = list(connection.scalars(query))
        self.enqueued(found, rows[0] if rows else None)

    @rule(queue=st.integers(0, 1), keeps=st.booleans(), commits=st.booleans())
    def enqueue_in_a_session(self, queue, keeps, commits):
        """Of two jobs the second is enqueued in a savepoint: each is there if and only if what surrounds it was committed."""
        rows = self.rows(2, queue, rare=False, delay=0)
        with Session(self.engine) as session:
            ids = [enqueue(session, COMMON, rows[0]["payload"], queue=rows[0]["queue"], tables=self.tables)]
            session.flush()
            with session.begin_nested() as savepoint:
                inner = enqueue(session, COMMON, rows[1]["payload"], queue=rows[1]["queue"], tables=self.tables)
                session.flush()
                if not keeps:
                    savepoint.rollback()
            if commits:
                session.commit()
                for job_id in [*ids, *([inner] if keeps else [])]:
                    self.model.enqueue(job_id, rows[0]["queue"], COMMON, self.clock.now())
        self.clock.tick(MICROSECOND)

    @precondition(lambda self: self.free_jobs())
    @rule(pick=any_one, whoever_owns_it=st.booleans())
    def cancel(self, pick, whoever_owns_it):
        """The application deletes a job: one that nobody has taken, as documented; or whoever owns it."""
        job_id, columns = self.chosen(self.free_jobs(), pick), self.tables.job.c
        nobody = sa.true() if whoever_owns_it else columns.claimed_by.is_(None)
        with self.engine.begin() as connection:
            deleted = connection.execute(sa.delete(self.tables.job).where(columns.job_id == job_id, nobody)).rowcount
        assert self.model.cancel(job_id, whoever_owns_it=whoever_owns_it) == (deleted == 1)

    def free_jobs(self):
        """Return the ids of the queued jobs that nobody has locked: nothing here may wait for a lock, in one thread."""
        return [job_id for job_id in self.model.queued if not self.model.is_held(job_id)]

    @staticmethod
    def chosen(things, pick):
        """Return one of them."""
        return things[pick % len(things)]

    # Time

    @rule(seconds=st.sampled_from([1, 30, 600, 1800, 3600, 5400]))
    def pass_time(self, seconds):
        """Time passes, for the database and the workers; whoever does not beat meanwhile has stalled."""
        self.clock.tick(seconds)
        for worker in self.workers:
            for hand in worker.all_hands():
                hand.valid_for -= seconds
                hand.in_hand.valid_until -= seconds

    @rule(seconds=st.sampled_from([-7200, -1800, -30, 30, 1800, 7200]))
    def step_clock(self, seconds):
        """The database's clock is set; the workers' monotonic ones know nothing of it."""
        self.clock.tick(seconds)

    # Leased claims

    @rule(worker=st.integers(0, 2), limit=st.integers(1, 4), careful=st.booleans())
    def claim(self, worker, limit, careful):
        """A worker claims, after a beat if it is `careful`, as a crew is when a lease may have lapsed."""
        worker = self.workers[worker]
        if careful and worker.heartbeats.overdue():
            self.beat_of(worker)
        sent_at = time.monotonic()
        claimed = claim_leased(worker.runtime, worker.own, limit=limit)
        taken = self.model.claim(worker.runtime.queues, limit, claimed)
        for claim, in_hand in zip(taken, worker.heartbeats.add(claimed, sent_at), strict=True):
            for earlier in worker.hands:
                if earlier.claim.job_id == claim.job_id and not earlier.lost:
                    worker.heartbeats.lose(earlier.in_hand)
                    earlier.lost = True
            worker.hands.append(Hand(claim, in_hand))

    @rule(limit=st.integers(1, 4), kind=st.sampled_from(["refused", "unanswered"]))
    def claim_in_vain(self, limit, kind):
        """The commit of a claim fails: nobody has its jobs in hand, and if it was committed all the same they lapse."""
        worker = self.workers[1]
        with self.environment.faults.at(kind):
            try:
                claim_leased(worker.runtime, worker.own, limit=limit)
            except sa.exc.OperationalError:
                claimed = claims_beside(self.engine, self.tables, self.model.tokens)
            else:  # nothing was due, so there was nothing to commit
                claimed = []
        # Python's driver of SQLite begins no transaction for a statement that begins with WITH: it has committed itself.
        if claimed or kind == "unanswered":
            self.model.claim(worker.runtime.queues, limit, claimed)
        assert kind == "unanswered" or not (claimed and self.environment.row_locks)

    @rule(
        worker=st.integers(0, 2),
        idle=st.sampled_from([0, 0, 30, 1800, 3600]),
        new=st.integers(0, 3),
        limit=st.integers(1, 4),
        does=st.lists(behaviours, min_size=1, max_size=4),
        thief=st.sampled_from([None, None, 0, 1, 2]),
        fault=faults,
    )
    def work(self, *, worker, idle, new, limit, does, thief, fault):
        """Some time later there are new jobs; a worker claims, runs most of what it has got, and records it, if not too late."""
        self.pass_time(idle)
        self.enqueue_several(new, new % 2, streams=False, delay=0)
        one, careful = self.workers[worker], len(does) > 1
        self.claim(worker, limit, careful=careful)
        for hand, behaviour in zip(list(one.hands), does, strict=False):
            self.run_one(one, hand, behaviour)
        if thief is not None:
            self.overtake(thief)
        self.record_of(one, one.outbox, fault)

    @rule(pick=any_one, does=behaviours)
    def run(self, pick, does):
        """A handler is called, and its outcome handed over."""
        worker, hand = self.in_hand(pick)
        if hand is not None:
            self.run_one(worker, hand, does)

    @rule(pick=any_one, does=behaviours, thief=st.integers(0, 2), fault=faults)
    def run_overtaken(self, pick, does, thief, fault):
        """While a handler runs its lease lapses, and a worker claims what is due; the outcome is recorded late."""
        worker, hand = self.in_hand(pick)
        if hand is not None:
            self.run_one(worker, hand, does, lambda: self.overtake(thief))
            self.record_of(worker, worker.outbox[-1:], fault)

    def overtake(self, thief):
        """Let leases lapse, and a worker claim what is due."""
        self.step_clock(7200)
        for _ in range(3):
            self.claim(thief, 2, careful=False)

    def in_hand(self, pick):
        """Return one of the jobs that are in a worker's hands, claimed now if there is none; None if none is due either."""
        if not any(worker.hands for worker in self.workers):
            self.claim(pick % 3, 2, careful=False)
        return self.chosen([(worker, hand) for worker in self.workers for hand in worker.hands] or [(None, None)], pick)

    def run_one(self, worker, hand, does, meanwhile=None):
        """Run a job in hand, unless its lease is known to be lost."""
        if self.model.is_held(hand.claim.job_id):
            does = replace(does, writes=False)  # its commit would wait for the holder
        if meanwhile is not None or not does.writes or does.ends != "succeed":
            does = replace(does, fault=None)
        startable = not hand.lost and hand.valid_for > 0
        stopping = threading.Event()
        if does.stopping:
            stopping.set()
        sqlite = not self.environment.row_locks  # whose handlers' transactions begin with a write, and keep all others from writing
        self.environment.script = behave(does, meanwhile, first=sqlite) if startable else None
        with self.environment.faults.at(does.fault and f"{does.fault}, outage"):
            decision = run_in_hand(worker.runtime, hand.in_hand, stopping)
        self.environment.script = None
        does = replace(does, stopping=does.stopping or hand.lost)
        verdict = Verdict(kind="release")
        if startable:
            known = hand.claim.job_type in worker.runtime.handlers
            verdict = self.model.run(hand.claim, does, known=known, fenced_first=sqlite)
        assert (verdict.kind, verdict.recorded) == (decision.verdict, decision.recorded)
        assert verdict.kind == "lost" or verdict.uncertain == decision.uncertain
        worker.hand_over(hand, decision, verdict)

    @precondition(lambda self: any(worker.outbox for worker in self.workers))
    @rule(pick=any_one, count=st.integers(1, 4), fault=faults)
    def record(self, pick, count, fault):
        """A finisher records what has come to it, several in one transaction."""
        worker = self.chosen([worker for worker in self.workers if worker.outbox], pick)
        self.record_of(worker, worker.outbox[:count], fault)

    def record_of(self, worker, batch, fault):
        """Record outcomes whose rows nobody has locked; a fault may leave them to be tried again."""
        batch = [one for one in batch if not self.model.is_held(one.hand.claim.job_id)]
        worker.recorder._own.begin()  # its settings are committed too, and no fault is meant for them
        with self.environment.faults.at(fault):
            left = worker.recorder.record([one.recording for one in batch])
        struck = fault is not None and self.environment.faults.struck
        if struck:
            self.fail_commit([one for one in batch if not one.verdict.recorded], fault)
        alone = len([one for one in batch if not one.verdict.recorded]) == 1 or not worker.runtime.statements.row_locks
        again = struck and (alone or fault.endswith("outage"))  # where there is one writer, who waits for it waits with all
        for one in batch:
            if again and not one.verdict.recorded:
                assert one.recording in left
                continue
            self.expect(one)
            worker.heartbeats.remove(one.hand.in_hand)
            worker.outbox.remove(one)
            worker.done.append(one)

    def fail_commit(self, batch, fault):
        """Do in the model what was done in a transaction whose commit has failed."""
        for one in batch:
            if fault.startswith("unanswered"):
                self.model.record(one.hand.claim, one.verdict, repeated=one.repeated)
            one.repeated = True

    def expect(self, one):
        """Record an outcome in the model, and compare what was told."""
        assert self.model.record(one.hand.claim, one.verdict, repeated=one.repeated) == one.recording.outcome.status

    @precondition(lambda self: any(worker.done for worker in self.workers))
    @rule(pick=st.integers(0, 20), repeated=st.booleans(), uncertain=st.booleans())
    def record_again(self, pick, repeated, uncertain):
        """What was recorded is recorded once more, however late: nothing changes."""
        worker, one = self.chosen([(worker, one) for worker in self.workers for one in worker.done[-6:]], pick)
        if self.model.is_held(one.hand.claim.job_id):
            return
        recording = Recording(replace(one.recording.decision, uncertain=uncertain))
        recording.repeated = repeated
        again = Finished(one.hand, recording, replace(one.verdict, uncertain=uncertain), repeated)
        assert [] == worker.recorder.record([recording])
        self.expect(again)

    @rule(worker=st.integers(0, 2))
    def beat(self, worker):
        """A worker prolongs its leases, and hears which of them are lost."""
        self.beat_of(self.workers[worker])

    def beat_of(self, worker):
        kept_all, worker_kept = True, worker.heartbeats.beat()
        for hand in worker.all_hands():
            if hand.lost:
                continue
            if self.model.prolong(hand.claim):
                hand.valid_for = 3600.0
            elif not hand.finishing and self.model.owns(hand.claim):
                kept_all = False
            elif not hand.finishing:
                hand.lost = True
        assert kept_all == worker_kept
        assert [hand.lost for hand in worker.hands] == [hand.in_hand.lost for hand in worker.hands]

    @rule(worker=st.integers(0, 2))
    def crash(self, worker):
        """A worker forgets all that it has in hand, and starts anew under its name."""
        self.workers[worker].close()
        self.workers[worker].begin()

    # What must be true at any time

    @invariant()
    def the_database_says_what_the_model_says(self):
        """Each job is in exactly one place and as it should be, and the effects are those of the successes."""
        with self.engine.connect() as connection:
            queued = {row.job_id: row for row in connection.execute(sa.select(self.tables.job))}
            archived = {row.job_id: row for row in connection.execute(sa.select(self.tables.archived_job))}
            effects = sorted(int(name) for name in connection.scalars(sa.select(User.name)))
        assert not queued.keys() & archived.keys()
        columns = ("queue", "job_type", "enqueued_at", "process_at", "attempts", "crashes", "claimed_by")
        compare(self.model.queued, queued, (*columns, "lease_until"))
        compare(self.model.archived, archived, (*columns, "status", "finished_at"))
        assert sorted(self.model.effects) == effects
