"""Names are matched exactly and payloads are kept whole, or refused with the same words on every database."""

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from proletarian_sa import Job, JobTables, PayloadTooLarge, create_all, enqueue, enqueue_many, process_next_job
from tests.queue_contents import User, archived, queued, run_due

CAP = 4 * 2**20
"""Bytes of an encoded payload that are allowed by default."""

NFC = unicodedata.normalize("NFC", "maïl")
NAMES = [
    "mail",
    "Mail",
    "MAIL",
    "ma\N{LATIN SMALL LETTER DOTLESS I}l",
    NFC,
    unicodedata.normalize("NFD", NFC),
    "ma il",
    "mail.",
    "\N{FULLWIDTH LATIN SMALL LETTER M}ail",
    "ß",
    "ss",
    "🐞",
    "🐛",
]
"""Names of which the usual collations take many for the same."""

REFUSED_NAMES: list[tuple[Any, type[Exception], str]] = [
    ("mail ", ValueError, r"'mail ' has white space at an end, which not every database compares\. Give 'mail'\."),
    (" mail", ValueError, "white space at an end"),
    ("mail\t", ValueError, "white space at an end"),
    ("mail\N{NO-BREAK SPACE}", ValueError, "white space at an end"),
    ("", ValueError, r"must have 1 to 255 characters; '' has 0\."),
    (" ", ValueError, "white space at an end"),
    ("x" * 256, ValueError, r"must have 1 to 255 characters; 'x{40}' has 256\."),
    ("ma\0il", ValueError, "has a NUL or a lone surrogate, which databases cannot store"),
    ("ma\ud800il", ValueError, "has a NUL or a lone surrogate, which databases cannot store"),
    (b"mail", TypeError, r"must be a string, not b'mail' \(bytes\)\."),
    (None, TypeError, "must be a string, not None"),
]

TEXTS: list[Any] = [
    "a\0b",
    ["\0"],
    {"\0": 1},
    "\0",
    "🐞 жук \N{COMBINING ACUTE ACCENT}",
    NFC,
    unicodedata.normalize("NFD", NFC),
    "\ud800",
    ["a\udfffb", {"\udc80": None}],
    "\ud83d\udc1e",
    10**30,
    -(10**30),
    "back\\slash \\0 \\' \" '' %s %(x)s :x ? `",
    "line\r\nline\u2028\ufeff\ufffe",
    "trailing ",
    "",
]
"""Payloads that some driver or column would refuse, cut or change."""


def test_queues_are_matched_exactly(queue_engine: sa.Engine):
    """A worker takes jobs of its own queue only: case, accents, their composition and width all count."""
    with Session(queue_engine) as session, session.begin():
        for name in NAMES:
            enqueue(session, "tick", name, queue=name)

    for name in NAMES:
        assert [(name, name)] == [(job.queue, job.payload) for job in run_due(queue_engine, queue=name)]


def test_job_types_are_matched_exactly(queue_engine: sa.Engine):
    """Queries by job type find that type only, and the handler and the archive get it unchanged."""
    with Session(queue_engine) as session, session.begin():
        enqueue_many(session, [{"job_type": name, "payload": name} for name in NAMES])
    with Session(queue_engine) as session:
        for name in NAMES:
            assert [name] == [job.payload for job in session.scalars(sa.select(Job).where(Job.job_type == name))]
        assert len(NAMES) == session.scalar(sa.select(sa.func.count(sa.distinct(Job.job_type))))

    assert NAMES == [job.job_type for job in run_due(queue_engine)]
    assert NAMES == [row.job_type for row in archived(queue_engine)]


def test_the_longest_name_is_kept(queue_engine: sa.Engine):
    """255 characters of any kind are a name, four bytes each or one."""
    for character in ("x", "🐞"):
        longest = character * 255
        with queue_engine.begin() as connection:
            enqueue(connection, longest, queue=longest)
        assert [(longest, longest)] == [(job.job_type, job.queue) for job in run_due(queue_engine, queue=longest)]


@pytest.mark.parametrize("place", ["queue", "job_type"])
def test_refused_names_are_refused_alike(app_engine: sa.Engine, place: str):
    """NUL characters, lone surrogates: a name that databases treat differently is refused by the call; the session stays usable."""
    with Session(app_engine) as session:
        for number, (name, error, message) in enumerate(REFUSED_NAMES):
            names = {"job_type": "tick", place: name}
            with pytest.raises(error, match=f"^{place} .*{message}"):
                enqueue(session, **names)
            with pytest.raises(error, match=f"^{place} "):
                Job(**names)
            with pytest.raises(error, match=rf"^rows\[1\]: {place} .*{message}"):
                enqueue_many(session, [{"job_type": "tick"}, names])
            with pytest.raises(error, match=rf"^rows\[1\]: {place} .*{message}"):
                enqueue_many(session, iter([{"job_type": "tick"}, names]))
            session.add(User(id=number + 1, name="after a refusal"))
            session.flush()
        session.commit()
        assert len(REFUSED_NAMES) == session.scalar(sa.select(sa.func.count()).select_from(User))

    assert [] == queued(app_engine)


def test_a_worker_refuses_the_names_that_enqueue_refuses(queue_engine: sa.Engine):
    """A worker cannot be given a queue that no job can be in."""
    for name, error, message in REFUSED_NAMES:
        with pytest.raises(error, match=message):
            process_next_job(queue_engine, print, queue=name)


def test_payloads_of_any_text_come_back(queue_engine: sa.Engine):
    """NUL characters, lone surrogates: like emoji, quotes of any language and numbers of any size, they come back as they were."""
    with Session(queue_engine) as session, session.begin():
        for text in TEXTS:
            enqueue(session, "text", text)
            enqueue_many(session, [{"job_type": "text", "payload": text}])

    jobs = sorted(run_due(queue_engine), key=lambda job: job.job_id)
    assert [text for text in TEXTS for _ in range(2)] == [job.payload for job in jobs]


def test_the_archive_holds_the_same_text(queue_engine: sa.Engine):
    """NUL characters, lone surrogates: archiving changes no character of a payload."""
    with Session(queue_engine) as session, session.begin():
        enqueue_many(session, [{"job_type": "text", "payload": text} for text in TEXTS])
    before = [row.payload for row in queued(queue_engine)]
    run_due(queue_engine)

    assert before == [row.payload for row in archived(queue_engine)]


def test_an_error_of_any_text_is_stored(queue_engine: sa.Engine):
    """NUL characters, lone surrogates: an exception whose message no database could store ends its job like any other."""

    def handler(_job_type: str, _payload: Any) -> None:
        raise ValueError("a\0b \ud800 🐞 " + "x" * 200_000)

    with queue_engine.begin() as connection:
        enqueue(connection, "text")
    outcome = process_next_job(queue_engine, handler, on_event=lambda _event: None)

    (row,) = archived(queue_engine)
    assert outcome is not None
    assert ("failed", "failure") == (outcome.status, row.status)
    assert "ValueError: a" in row.last_error
    assert "🐞" in row.last_error


def test_a_payload_of_exactly_the_cap_passes(app_engine: sa.Engine):
    """Large payloads: 4 MiB encoded pass on every database, whole; one byte more is refused, and the session stays usable."""
    largest = "x" * (CAP - 2)
    with Session(app_engine) as session:
        enqueue(session, "large", largest)
        enqueue_many(session, [{"job_type": "large", "payload": largest}])
        for refuse in calls_with(session, largest + "x"):
            message = f"The payload has {CAP + 1} bytes encoded; at most {CAP} are allowed. Store it elsewhere"
            with pytest.raises(PayloadTooLarge, match=message):
                refuse()
            session.add(User(name="after a refusal"))
            session.flush()
        session.commit()
        assert 3 == session.scalar(sa.select(sa.func.count()).select_from(User))

    jobs = run_due(app_engine)
    assert 2 == len(jobs)
    assert all(largest == job.payload for job in jobs)
    with app_engine.connect() as connection:
        lengths = connection.scalars(sa.text(f"SELECT length(payload) FROM {archive_name(connection)}")).all()
    assert [CAP, CAP] == lengths


def calls_with(session: Session, payload: Any) -> list[Callable[[], Any]]:
    """Return one call for each way to enqueue a payload."""
    return [
        lambda: enqueue(session, "large", payload),
        lambda: enqueue_many(session, [{"job_type": "large"}, {"job_type": "large", "payload": payload}]),
        lambda: enqueue_many(session, iter([{"job_type": "large"}, {"job_type": "large", "payload": payload}])),
    ]


def archive_name(connection: sa.Connection) -> str:
    """Return the name of the archive in SQL text."""
    return "proletarian.archived_job" if connection.dialect.name == "postgresql" else "archived_job"


def test_a_lax_server_cuts_nothing(database: Any, queue_engine: sa.Engine):
    """Large payloads: those longer than MySQL's plain TEXT are stored whole also where the server would cut silently."""
    engine = database.create_engine()
    if engine.dialect.name in ("mysql", "mariadb"):
        sa.event.listen(engine, "connect", lambda raw, _record: raw.cursor().execute("SET SESSION sql_mode = ''"))
    payloads = ["x" * size for size in (60_000, 65_535, 70_000, 2**20)]
    with Session(engine) as session, session.begin():
        enqueue_many(session, [{"job_type": "large", "payload": payload} for payload in payloads])

    assert payloads == [job.payload for job in run_due(engine)]
    assert [len(payload) + 2 for payload in payloads] == [len(row.payload) for row in archived(engine)]


class Raw:
    """A serializer that stores text as it is."""

    def encode(self, value: Any) -> str:
        return str(value)

    def decode(self, text: str) -> Any:
        return text


def test_what_a_serializer_of_ones_own_writes_is_checked(app_engine: sa.Engine):
    """NUL characters, lone surrogates: text that some database cannot store is refused on all; the cap counts bytes."""
    tables = JobTables(schema=None, job_table="raw_job", archived_job_table="raw_archived_job", serializer=Raw(), max_payload=8)
    create_all(app_engine, tables=tables)
    refused = [
        ("a\0b", "returned text with a NUL"),
        ("\ud800", "returned text that is no Unicode"),
        ("🐞🐞x", "has 9 bytes encoded"),
    ]
    with Session(app_engine) as session:
        for payload, message in refused:
            with pytest.raises(ValueError, match=message):
                enqueue(session, "raw", payload, tables=tables)
            with pytest.raises(ValueError, match=rf"rows\[0\]: .*{message}"):
                enqueue_many(session, [{"job_type": "raw", "payload": payload}], tables=tables)
            session.add(User(name="after a refusal"))
            session.flush()
        enqueue(session, "raw", "🐞🐞", tables=tables)
        session.commit()

    assert ["🐞🐞"] == [job.payload for job in run_due(app_engine, tables=tables)]
