"""The queue against a model of it in memory: whatever is done in whatever order, the database says what the model says.

`PROLETARIAN_TEST_SCALE` gives a longer run, at random; without it the suite is the same each time.
"""

import threading
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from proletarian_sa import ManualClock
from tests.helpers import scaled
from tests.observing import clocked_tables, end_session
from tests.queue_contents import Base
from tests.queue_machine import BOTH, START, LeasedMachine, behaviours
from tests.queue_workers import COMMON, QUEUES, Environment, HeldWorker, behave

pytestmark = pytest.mark.long

HOLDERS = [("holder", QUEUES, BOTH), ("holder", QUEUES[::-1], (COMMON,))]
EXAMPLES, STEPS = 20, 40


class MixedMachine(LeasedMachine):
    """Beside workers with leased claims two with held ones."""

    def __init__(self):
        super().__init__()
        self.holders = [HeldWorker(lambda made=made: self.environment.runtime(*made, "held")) for made in HOLDERS]

    @rule(holder=st.integers(0, 1))
    def hold(self, holder):
        """A holder claims, and keeps the transaction open."""
        holder = self.holders[holder]
        if holder.claim is None:
            holder.claimed = holder.held.claim()
            holder.claim = self.model.hold(holder.runtime.queues, holder.claimed)

    def holding(self):
        """Return who has a job that nobody else has locked: one that has lost its connection may have lost its job too."""
        return [one for one in self.holders if one.claim and not (one.dead and self.model.is_held(one.claim.job_id))]

    @rule(pick=st.integers(0, 1), does=behaviours)
    def run_held(self, pick, does):
        """A holder runs its job and records the outcome, even where its connection is gone or a commit fails."""
        if not self.holding():
            self.hold(pick)
        holder = self.chosen(self.holding() or [None], pick)
        if holder is None:
            return
        claim, fault = holder.claim, None if holder.dead else does.fault
        self.let_go(holder)
        stop = threading.Event()
        if does.stopping:
            stop.set()
        self.environment.script = None if does.stopping else behave(does)
        with self.environment.faults.at(fault and f"{fault}, outage"):
            outcome = holder.held.run(holder.claimed, stop)
        self.environment.script = None
        if does.stopping:
            expected = "interrupted"
        else:
            in_session = does.writes and does.ends == "succeed"
            known = claim.job_type in holder.runtime.handlers
            verdict = self.model.run(claim, replace(does, fault=fault if in_session else None), known=known, cut_off=holder.dead)
            repeats = fault is not None and self.environment.faults.struck and not verdict.uncertain
            if repeats and fault == "unanswered":
                self.model.record(claim, verdict)
            expected = self.model.record(claim, verdict, repeated=repeats)
        holder.claim, holder.dead = None, False
        assert expected == outcome.status

    @rule(does=st.lists(behaviours, min_size=1, max_size=4))
    def work_held(self, does):
        """The holders do as they should: each claims, runs and records."""
        for place, one in enumerate(does):
            self.hold(place % 2)
            self.run_held(place % 2, one)

    @rule(holder=st.integers(0, 1), does=behaviours, thief=st.integers(0, 2))
    def overtake_held(self, holder, does, thief):
        """A holder's connection ends, a worker claims what is due, and the holder's outcome comes late."""
        self.hold(holder)
        if self.holders[holder].claim and not self.holders[holder].dead:
            self.cut_off_one(self.holders[holder])
            self.claim(thief, 4, careful=False)
            self.run_held(holder, does)

    def let_go(self, holder):
        """Note that the row is not locked any more, or will not be when the next rule looks."""
        if not holder.dead:
            self.model.queued[holder.claim.job_id].held = False

    @precondition(lambda self: any(holder.claim for holder in self.holders))
    @rule(pick=st.integers(0, 1))
    def crash_holder(self, pick):
        """A holder dies: its transaction is rolled back, and its job due again, as if nothing had been."""
        holder = self.chosen([holder for holder in self.holders if holder.claim], pick)
        self.let_go(holder)
        holder.close()
        holder.begin()

    @precondition(lambda self: any(holder.claim and not holder.dead for holder in self.holders))
    @rule(pick=st.integers(0, 1))
    def cut_off(self, pick):
        """The server ends a holder's connection: the job is due again, while its handler goes on."""
        self.cut_off_one(self.chosen([holder for holder in self.holders if holder.claim and not holder.dead], pick))

    def cut_off_one(self, holder):
        end_session(self.engine, holder.claimed.row.backend)
        self.let_go(holder)
        holder.dead = True


def run_machine(machine, database):
    """Run a state machine on this database."""
    engine = database.create_engine(pool_size=30)
    clock = ManualClock(START)
    tables = clocked_tables(clock)
    Base.metadata.create_all(engine)
    environment = Environment(engine, tables, row_locks=database.row_locks)
    made = type(machine.__name__, (machine,), {"environment": environment, "clock": clock})
    scale = scaled(1)
    run_state_machine_as_test(
        made,
        settings=settings(
            derandomize=scale == 1,
            database=None,
            deadline=None,
            max_examples=scale * EXAMPLES,
            stateful_step_count=STEPS,
            print_blob=True,
        ),
    )


def test_leased_claims(database, queue_engine):
    """Workers with leased claims, in any order of events: jobs, attempts, crashes, owners, outcomes and effects are the model's."""
    run_machine(LeasedMachine, database)


def test_leased_and_held_claims(database, queue_engine):
    """The same with held claims on the same queues."""
    database.require("row_locks")
    run_machine(MixedMachine, database)
