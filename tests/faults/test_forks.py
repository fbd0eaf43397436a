"""Forks: of a process that has connections or a worker, and of a handler."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from proletarian_sa import create_all
from tests.faults import invariants
from tests.faults.scene import PATIENCE, Nursery, Worker
from tests.helpers import wait_until
from tests.observing import add
from tests.programs.preloading import CHILDREN, JOBS
from tests.queue_contents import queued
from tests.servers.database import Database, new_file
from tests.stress import tables

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")]

IN_CHILDREN = ["returns", "raises", "exits", "exits with words", "uses the session", "leaves"]


@pytest.fixture
def marked_engine(queue_engine: sa.Engine) -> sa.Engine:
    """Return an engine on a database with tables for the marks of runs and effects."""
    tables.metadata.create_all(queue_engine)
    return queue_engine


def check_forking(nursery: Nursery, database: Database, engine: sa.Engine, folder: Path, **environment: str) -> None:
    """Let a worker's handlers fork; check what they have done, and what was said."""
    ids = [add(engine, "fork", way) for way in IN_CHILDREN]
    ids += [add(engine, name) for name in ("multiprocessing", "subprocess")]
    environment["APP_URL"] = database.url_text
    worker = nursery.run(folder / "output", "worker", "tests.programs.forking:make_worker", environment=environment)
    wait_until(lambda: queued(engine) == [] or worker.ended.is_set(), PATIENCE, pause=0.02)
    assert 0 == worker.stop(), worker.text()
    said = worker.text()
    effects = sorted(invariants.marks(engine, tables.effects).elements())

    assert [] == queued(engine), said
    assert sorted(map(str, ids)) == effects
    assert [f"child {way}" for way in IN_CHILDREN] == [line for line in said.splitlines() if line.startswith("child ")]
    assert 1 == said.count("LookupError: the child's own reason")
    assert 1 == said.splitlines().count("the child's last words")
    assert 1 == said.count("SessionNotYours: job.session belongs to the process that runs the job, and this is a forked child")
    assert not [line for line in worker.lines() if " INFO " not in line]


def test_a_handler_that_forks(nursery: Nursery, database: Database, marked_engine: sa.Engine, claim: str, tmp_path: Path) -> None:
    """Forks: a child of a handler that returns, raises, exits or leaves ends there; the job has its effect and its outcome once."""
    if claim == "held":
        database.require("row_locks")
    check_forking(nursery, database, marked_engine, tmp_path, APP_CLAIM=claim)


def test_a_handler_that_forks_in_a_process_of_its_own(nursery: Nursery, tmp_path: Path) -> None:
    """Forks: the same where handlers run in processes, whatever the database."""
    with new_file("sqlite", "", tmp_path) as database:
        engine = database.create_engine()
        create_all(engine)
        tables.metadata.create_all(engine)
        check_forking(nursery, database, engine, tmp_path, APP_CLAIM="leased", APP_EXECUTOR="process")


def secured(database: Database) -> dict[str, Any]:
    """Return options of an engine that encrypts; skip where the server does not."""
    database.require("server")
    postgresql = database.url.get_backend_name() == "postgresql"
    options = {"sslmode": "require"} if postgresql else {"ssl": {"verify_mode": "none", "check_hostname": False}}
    try:
        with database.create_engine(connect_args=options).connect() as connection:
            cipher = postgresql or connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()[1]
    except sa.exc.DBAPIError:
        cipher = None
    if not cipher:
        pytest.skip("no TLS")
    return {"connect_args": options}


def facts(server: Worker) -> list[dict[str, Any]]:
    """Return what the processes of a server have told."""
    return [json.loads(line) for line in server.text().splitlines() if line.startswith("{")]


@pytest.mark.parametrize("way", ["engine", "worker", "engine with TLS"])
def test_a_preloading_server(nursery: Nursery, database: Database, marked_engine: sa.Engine, way: str, tmp_path: Path) -> None:
    """Several workers from one web app, engine used before fork, worker started before the fork: each job runs once, in all."""
    options = secured(database) if "TLS" in way else {}
    sign = tmp_path / "sign"
    arguments = [database.url_text, way.partition(" ")[0], json.dumps(options), str(sign)]
    server = nursery.run(tmp_path / "output", *arguments, module="tests.programs.preloading")
    wait_until(lambda: server.ended.is_set() or len(facts(server)) == CHILDREN + 1, PATIENCE, pause=0.02)
    wait_until(lambda: server.ended.is_set() or queued(marked_engine) == [], PATIENCE, pause=0.02)
    sign.touch()
    code = server.wait()
    (ids,) = [line["ids"] for line in facts(server) if "ids" in line]

    assert (0, []) == (code, [line for line in server.text().splitlines() if "rror" in line]), server.text()
    assert CHILDREN == len({line["pid"] for line in facts(server) if "pid" in line})
    assert CHILDREN + (way == "worker") + JOBS == len(ids)
    invariants.check(marked_engine, map(uuid.UUID, ids), [])
