"""Rows that nobody can decode, among good ones: they follow the policy for what cannot be run, and hold up nobody."""

import collections
import datetime as dt

import pytest

from proletarian_sa import JobRegistry, ManualClock, RetryStrategy, create_all, events
from proletarian_sa.models import JobTables
from tests.helpers import wait_until
from tests.observing import PATIENCE, add, change, clocked_tables
from tests.queue_contents import archived, queued

pytestmark = pytest.mark.usefixtures("claim")

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
GOOD = 100
BAD = {
    "cut off": '{"to": "a@b',
    "empty": "",
    "unknown tag": '{"$no-such-type": [1, 2]}',
    "wrong tag": '{"$datetime": "yesterday"}',
    "unregistered type": '{"$type": ["money", 5]}',
    "two values": "{}{}",
    "too deep": "[" * 50_000,
    "too long a number": "9" * 50_000,
    "NaN": "NaN",
}
"""Texts that somebody has written by hand, or that another version has."""

WRONG_SHAPE = '["valid JSON", "but no dict"]'


def test_undecodable_payloads_among_good_jobs(queue_engine, work):
    """Undecodable payloads: good jobs behind them all run, they wait, are tried ever more rarely, and end with their raw text."""
    tables = clocked_tables(clock := ManualClock(START))
    jobs, ran = JobRegistry(), []
    jobs.handler("mail", retry=RetryStrategy(retries=2, delays=[0]))(lambda payload: ran.append(payload["number"]))
    texts = {add(queue_engine, "mail", {}, tables=tables): text for text in [*BAD.values(), WRONG_SHAPE]}
    for job_id, text in texts.items():
        change(queue_engine, job_id, tables, payload=text)
    for number in range(GOOD):
        add(queue_engine, "mail", {"number": number}, tables=tables)
    worker, seen = work(jobs, tables=tables, worker_threads=2)
    worker.start()
    wait_until(lambda: len(ran) == GOOD, timeout=PATIENCE)
    seen.wait_for(events.JobFailed)  # of the wrong shape, a failure like any other
    seen.wait_for(events.JobUndeliverable, count=len(BAD))
    met = [event.job_id for event in seen.of(events.JobUndeliverable)]

    assert sorted(range(GOOD)) == sorted(ran)
    assert len(set(met)) == len(met) == len(BAD)
    assert {0} == {row.attempts for row in queued(queue_engine, tables)}

    for _ in range(11):
        clock.tick(61)
        wait_until(lambda: not any(row.process_at <= clock.now() for row in queued(queue_engine, tables)), timeout=PATIENCE)
    assert worker.is_running
    worker.stop()
    rows = {row.job_id: row for row in archived(queue_engine, tables) if row.job_id in texts}
    tries = collections.Counter(event.job_id for event in seen.of(events.JobUndeliverable))

    assert [] == queued(queue_engine, tables)
    assert texts == {job_id: row.payload for job_id, row in rows.items()}
    assert {"failure"} == {row.status for row in rows.values()}
    assert sorted([3] + [1] * len(BAD)) == sorted(row.attempts for row in rows.values())
    assert max(tries.values()) <= 11
    assert len(texts) == len(seen.of(events.JobFailed))
    assert all("Error" in row.last_error for row in rows.values())


class Latin:
    """A serializer of the application's own that complains in words no database can store."""

    def encode(self, value):
        return str(value)

    def decode(self, text):
        raise UnicodeDecodeError("latin", text.encode(), 0, 1, "a\0b \ud800")


def test_whatever_a_decoder_says_the_job_is_put_back(queue_engine, work):
    """NUL characters, lone surrogates: also in what a decoder of the application's own says of a payload: the job is put back."""
    tables = JobTables(schema=None, job_table="latin_job", archived_job_table="latin_archived_job", serializer=Latin())
    create_all(queue_engine, tables=tables)
    add(queue_engine, "mail", "x", tables=tables)
    worker, seen = work(lambda _job: None, tables=tables)
    worker.start()
    seen.wait_for(events.JobUndeliverable)
    worker.stop()

    (row,) = queued(queue_engine, tables)
    assert ("x", 0, None) == (row.payload, row.attempts, row.claimed_by)
    assert "\N{SYMBOL FOR NULL}" in row.last_error
