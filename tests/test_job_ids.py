"""Job ids that the application makes: unique, of the standard library's type, and in order where that is promised."""

import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest

from proletarian_sa.job_ids import UUIDv4, UUIDv7

KINDS = [(UUIDv7(), 7), (UUIDv4(), 4)]

FORKS = """
import os
from proletarian_sa.job_ids import UUIDv4, UUIDv7
for ids in (UUIDv4(), UUIDv7()):
    ids.new()
    reader, writer = os.pipe()
    for child in range(4):
        if os.fork() == 0:
            os.write(writer, b"".join(ids.new().bytes for _ in range(50)))
            os._exit(0)
    for child in range(4):
        os.wait()
    written = os.read(reader, 65536)
    print(len({written[at : at + 16] for at in range(0, len(written), 16)}))
"""


@pytest.mark.parametrize(("ids", "version"), KINDS)
def test_ids_are_uuids_of_the_standard_library(ids, version):
    """An id is exactly a uuid.UUID, of the version in the class's name."""
    job_id = ids.new()

    assert UUID is type(job_id)
    assert version == job_id.version
    assert RFC_4122 == job_id.variant
    assert job_id == UUID(str(job_id))


@pytest.mark.parametrize("ids", [ids for ids, _ in KINDS])
def test_ids_of_several_threads_differ(ids):
    """No two ids are equal, whichever thread they come from."""
    made = []

    def make():
        made.extend([ids.new() for _ in range(5000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert 20_000 == len(set(made))


def test_uuid7_sorts_by_the_order_of_making():
    """Within a process, each UUIDv7 is greater than the one before, as number, as text and as bytes."""
    ids = UUIDv7()
    made = [ids.new() for _ in range(20_000)]

    assert sorted(made) == made
    assert sorted(map(str, made)) == list(map(str, made))
    assert sorted(job_id.bytes for job_id in made) == [job_id.bytes for job_id in made]


def test_uuid7_begins_with_the_time():
    """The first 48 bits of a UUIDv7 are the milliseconds since 1970 (RFC 9562, section 5.7)."""
    before = datetime.now(UTC)
    made = datetime.fromtimestamp((UUIDv7().new().int >> 80) / 1000, UTC)

    assert timedelta(seconds=-1) < made - before < timedelta(seconds=10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_ids_differ_after_a_fork():
    """Forked children do not repeat each other's ids, although they inherit one random generator."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60)

    assert ["200", "200"] == done.stdout.split()
