"""The queue in memory: what the database must hold after each step, and what each step must answer."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from proletarian_sa import RetryStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proletarian_sa import ManualClock
    from proletarian_sa.claimed import ClaimedJob

LEASE = dt.timedelta(hours=1)
MAX_CRASHES = 2
RETRY = RetryStrategy(retries=2, delays=[0, 900])
NOW = dt.timedelta()
SECOND = dt.timedelta(seconds=1)
GRACE = dt.timedelta(minutes=10)
LONGEST_DELAY = dt.timedelta(minutes=1)


@dataclass(kw_only=True)
class Queued:
    """A row of the job table; `error` is what `last_error` has in it, `put_back` what it says of an undeliverable job."""

    queue: str
    job_type: str
    enqueued_at: dt.datetime
    process_at: dt.datetime
    attempts: int = 0
    crashes: int = 0
    owner: str | None = None
    lease_until: dt.datetime | None = None
    error: str | None = None
    put_back: tuple[int, dt.datetime] | None = None
    held: bool = False

    def facts(self) -> tuple[Any, ...]:
        """Return what the row must say, the error apart."""
        owned = (self.attempts, self.crashes or None, self.owner)
        return self.queue, self.job_type, self.enqueued_at, self.process_at, *owned, self.lease_until

    def free(self) -> None:
        """Take the job from its owner."""
        self.owner = self.lease_until = None


@dataclass(frozen=True, kw_only=True)
class Archived:
    """A row of the archive."""

    job: Queued
    status: str
    token: str
    finished_at: dt.datetime

    @property
    def error(self) -> str | None:
        """What `last_error` has in it."""
        return self.job.error

    def facts(self) -> tuple[Any, ...]:
        """Return what the row must say, the error apart."""
        return *self.job.facts()[:6], self.token, self.status, self.finished_at


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What a claim has in hand; `before`: of a held one, attempts and owner in the row."""

    job_id: Any
    number: int
    job_type: str
    token: str
    attempts: int
    crashes: int
    before: tuple[int, str | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a run must come to."""

    kind: str
    delay: dt.timedelta = NOW
    error: str | None = None
    recorded: bool = False
    uncertain: bool = False


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a handler does: `writes` through `job.session`; `ends`: succeed, fail or interrupt; `fault`: in its commit.

    A fault is `refused`, where nothing was committed, or `unanswered`, where all was.
    """

    ends: str
    writes: bool = False
    fault: str | None = None
    stopping: bool = False


@dataclass
class QueueModel:
    """All that was ever enqueued, in exactly one of `queued`, `archived` and `cancelled`."""

    clock: ManualClock
    queued: dict[Any, Queued] = field(default_factory=dict)
    archived: dict[Any, Archived] = field(default_factory=dict)
    cancelled: set[Any] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    effects: list[int] = field(default_factory=list)

    @property
    def now(self) -> dt.datetime:
        """What time it is."""
        return self.clock.now()

    def is_held(self, job_id: Any) -> bool:
        """Return whether somebody has the job's row locked."""
        return job_id in self.queued and self.queued[job_id].held

    def enqueue(self, job_id: Any, queue: str, job_type: str, process_at: dt.datetime) -> None:
        """Add a job that was committed."""
        assert job_id not in self.queued.keys() | self.archived.keys() | self.cancelled
        self.queued[job_id] = Queued(queue=queue, job_type=job_type, enqueued_at=self.now, process_at=max(self.now, process_at))

    def cancel(self, job_id: Any, *, whoever_owns_it: bool) -> bool:
        """Delete a job as the application does; return whether it came in time."""
        if self.queued[job_id].owner is not None and not whoever_owns_it:
            return False
        del self.queued[job_id]
        self.cancelled.add(job_id)
        return True

    # Claim

    def due(self, queue: str) -> list[tuple[Any, Queued]]:
        """Return what a claim may take, oldest first: due, and not owned, or by a lease that has lapsed."""
        due = [
            (job_id, job)
            for job_id, job in self.queued.items()
            if job.queue == queue
            and job.process_at <= self.now
            and (job.lease_until is None or job.lease_until <= self.now)
            and not job.held
        ]
        return sorted(due, key=lambda one: one[1].process_at)

    def claim(self, queues: Sequence[str], limit: int, claimed: Sequence[ClaimedJob]) -> list[Claimed]:
        """Check what a leased claim has taken, of one queue after the other, and take it."""
        taken: list[Claimed] = []
        wanted = limit
        for queue in queues:
            part = [job for job in claimed if job.queue == queue]
            if wanted > 0:
                self._check_claim(self.due(queue), wanted, part)
            else:
                assert [] == part
            self._check_token({job.token for job in part})
            taken += [self._take(job) for job in part]
            wanted = 0 if any(job.crashes for job in part) else wanted - len(part)
        assert [job.job_id for job in claimed] == [job.job_id for job in taken], "not in the order of the queues"
        return taken

    def _check_claim(self, due: list[tuple[Any, Queued]], limit: int, claimed: Sequence[ClaimedJob]) -> None:
        """Check one queue's: the oldest jobs that nobody owns, or one whose lease has lapsed, alone, if it is the oldest of all.

        Nothing is promised among jobs that are due at the same time.
        """
        jobs, ids = dict(due), [job.job_id for job in claimed]
        assert set(ids) <= jobs.keys(), "claimed what is not due, or somebody else's"
        assert len(set(ids)) == len(ids) <= limit
        assert bool(due) == bool(ids), f"of {len(due)} due jobs {len(ids)} were claimed"
        if not due:
            return
        oldest = {job_id for job_id, job in due if job.process_at == due[0][1].process_at}
        if any(jobs[job_id].owner for job_id in ids):
            assert len(ids) == 1, "a lapsed job in a batch"
            assert set(ids) <= oldest, "a lapsed job before older ones"
            return
        last = due[min(limit, len(due)) - 1][1].process_at
        surely = {job_id for job_id, job in due if job.owner is None and (job.process_at < last or len(due) <= limit)}
        assert oldest & {job_id for job_id, job in due if job.owner is None}, "the oldest is a lapsed job and was not taken"
        assert surely <= set(ids), "an older job was left out"
        assert all(jobs[job_id].process_at <= last for job_id in ids)
        assert sorted(times := [jobs[job_id].process_at for job_id in ids]) == times

    def _check_token(self, tokens: set[str]) -> None:
        assert len(tokens) <= 1
        assert not tokens & self.tokens, "a token was used again"
        self.tokens |= tokens

    def _take(self, claimed: ClaimedJob) -> Claimed:
        job = self.queued[claimed.job_id]
        if job.owner is None:
            job.attempts += 1
        else:
            job.crashes += 1
        job.owner, job.lease_until = claimed.token, self.now + LEASE
        return self._same(claimed, job, job.attempts, job.crashes)

    def hold(self, queues: Sequence[str], claimed: ClaimedJob | None) -> Claimed | None:
        """Check what a held claim has locked: one of the oldest due jobs of the first queue that has one. Nothing is written."""
        due = next(filter(None, map(self.due, queues)), [])
        assert bool(due) == (claimed is not None)
        if claimed is None:
            return None
        job = self.queued[claimed.job_id]
        assert claimed.job_id in {job_id for job_id, job in due if job.process_at == due[0][1].process_at}
        self._check_token({claimed.token})
        job.held, lapsed = True, job.owner is not None
        taken = self._same(claimed, job, job.attempts + (not lapsed), job.crashes + lapsed)
        return replace(taken, before=(job.attempts, job.owner))

    @staticmethod
    def _same(claimed: ClaimedJob, job: Queued, attempts: int, crashes: int) -> Claimed:
        expected = (job.job_type, job.enqueued_at, job.process_at, attempts, crashes)
        assert expected == (claimed.job_type, claimed.enqueued_at, claimed.process_at, claimed.attempts, claimed.crashes)
        return Claimed(
            job_id=claimed.job_id,
            number=int(claimed.payload_text),
            job_type=claimed.job_type,
            token=claimed.token,
            attempts=attempts,
            crashes=crashes,
        )

    # Ownership

    def owns(self, claim: Claimed) -> bool:
        """Return whether what the claim writes counts: its token is in the row; or the row says what it said when it was held."""
        job = self.queued.get(claim.job_id)
        if job is None:
            return False
        return job.owner == claim.token if claim.before is None else (job.attempts, job.owner) == claim.before

    def prolong(self, claim: Claimed) -> bool:
        """Prolong the lease, if it is the claim's and nobody has the row locked; return whether it was."""
        if not self.owns(claim) or self.is_held(claim.job_id):
            return False
        self.queued[claim.job_id].lease_until = self.now + LEASE
        return True

    # Run

    def run(self, claim: Claimed, does: Behaviour, *, known: bool, fenced_first: bool = False, cut_off: bool = False) -> Verdict:
        """Return what a run must come to, and do what it commits by itself.

        `known`: the worker has a handler for the type. `fenced_first`: opening `job.session` looks whose job it is. `cut_off`:
        the connection of a held claim is dead.
        """
        if claim.crashes > MAX_CRASHES:
            return Verdict(kind="failure", error="WorkerLost")
        if not known:
            return Verdict(kind="undeliverable", error="UnknownJobType")
        if does.writes and cut_off:
            return Verdict(kind="retry", delay=SECOND, error="Error")
        if does.writes and fenced_first and not self.owns(claim):
            return Verdict(kind="lost")
        if does.ends == "interrupt":
            return Verdict(kind="release", delay=NOW if does.stopping else SECOND)
        if does.ends == "fail":
            return self._failed(claim, f"LookupError: attempt {claim.attempts} of {claim.number}")
        if not does.writes:
            return Verdict(kind="success")
        if not self.owns(claim):
            return Verdict(kind="lost")
        if does.fault != "refused":
            self._archive(claim, "success")
            self.effects.append(claim.number)
        return replace(self._failed(claim, "injected"), uncertain=True) if does.fault else Verdict(kind="success", recorded=True)

    @staticmethod
    def _failed(claim: Claimed, error: str) -> Verdict:
        if claim.attempts > RETRY.retries:
            return Verdict(kind="failure", error=error)
        return Verdict(kind="retry", error=error, delay=RETRY.delays[min(claim.attempts, len(RETRY.delays)) - 1])

    # Finish

    def record(self, claim: Claimed, verdict: Verdict, *, repeated: bool = False) -> str:
        """Write what a run came to, and return the outcome that must be told: `lost` where the job is not the claim's any more."""
        owns, archived = self.owns(claim), self.archived.get(claim.job_id)
        is_archived = archived is not None and archived.token == claim.token
        if verdict.recorded:
            return "succeeded"
        if verdict.uncertain and not owns and is_archived:
            return "succeeded" if archived.status == "success" else "failed"
        may_repeat = repeated and not verdict.uncertain
        match verdict.kind:
            case "success" | "failure" if owns or (is_archived and not verdict.uncertain):
                if owns:
                    self._archive(claim, verdict.kind, verdict.error)
                return "succeeded" if verdict.kind == "success" else "failed"
            case "retry" if owns or may_repeat:
                if owns:
                    self._retry(claim, verdict)
                return "retrying"
            case "release" if owns or may_repeat:
                if owns:
                    self._release(claim, verdict.delay)
                return "interrupted"
            case "undeliverable" if owns:
                return self._put_back(claim, verdict)
        return "lost"

    def _written(self, claim: Claimed) -> Queued:
        """Return the job as the claim has changed it: a held one writes only when it finishes."""
        job = self.queued[claim.job_id]
        job.attempts, job.crashes, job.owner, job.held = claim.attempts, claim.crashes, claim.token, False
        return job

    def _archive(self, claim: Claimed, status: str, error: str | None = None) -> None:
        job = self._written(claim)
        del self.queued[claim.job_id]
        job.error = error or job.error
        self.archived[claim.job_id] = Archived(job=job, status=status, token=claim.token, finished_at=self.now)

    def _retry(self, claim: Claimed, verdict: Verdict) -> None:
        job = self._written(claim)
        job.process_at, job.error, job.put_back = self.now + verdict.delay, verdict.error, None
        job.free()

    def _release(self, claim: Claimed, delay: dt.timedelta) -> Queued:
        job = self._written(claim)
        job.attempts -= 1
        if delay:
            job.process_at = self.now + delay
        job.free()
        return job

    def _put_back(self, claim: Claimed, verdict: Verdict) -> str:
        times, since = self.queued[claim.job_id].put_back or (0, self.now)
        if self.now - since >= GRACE:
            self._archive(claim, "failure", verdict.error)
            return "failed"
        job = self._release(claim, min(SECOND * 2**times, LONGEST_DELAY))
        job.put_back = (times + 1, since)
        job.error = f"Put back {times + 1} times since {since.isoformat()}: {verdict.error}"
        return "retrying"
