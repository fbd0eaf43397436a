"""The database of a run: open it, put the tables into it, take away what the run has made."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy import exc
from sqlalchemy.orm import Session

import proletarian_sa
from examples.demo.app import Base, User
from proletarian_sa import ArchivedJob, Job, ProletarianError, TablesForeign

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from examples.demo.people import People

EXAMPLES = {
    "postgresql": "postgresql+psycopg://user:password@localhost/name",
    "mysql": "mysql+pymysql://user:password@localhost/name",
    "mariadb": "mariadb+pymysql://user:password@localhost/name",
}

DEFAULT_SCHEMA = "proletarian"
"""Where the tables lie on PostgreSQL."""

VERSION_TABLE = "demo_alembic_version"
"""Alembic's, of the demo's own: the database may belong to an application that has one."""


class CannotRunError(Exception):
    """The demo cannot run there; the message is one line and says what to type."""


def open_database(text: str) -> sa.Engine:
    """Return an engine on a database that answers.

    Raises:
        CannotRunError: There is none.
    """
    try:
        url = sa.make_url(text)
        kind = url.get_backend_name()
    except (exc.ArgumentError, ValueError):  # the latter for a port that is no number
        raise CannotRunError(f"{text!r} is not a database URL. {_advice()}") from None
    place = url.render_as_string()
    if kind not in (*EXAMPLES, "sqlite"):
        raise CannotRunError(f"{place} is none of PostgreSQL, MySQL, MariaDB and SQLite. {_advice()}")
    if kind == "sqlite" and url.database in (None, "", ":memory:"):
        raise CannotRunError(f"{place} is in memory, where the worker's process cannot see it. Type: make demo")
    if kind in {"mysql", "mariadb"} and not url.database:
        raise CannotRunError(f"{place} names no database. {_advice(kind)}")
    try:
        engine = sa.create_engine(url)
    except (ImportError, exc.ArgumentError, TypeError) as error:  # no such driver, or no such option of it
        raise CannotRunError(f"{place}: {brief(error)}. {_advice(kind)}") from None
    if engine.dialect.is_async:
        raise CannotRunError(f"{place} has an asynchronous driver; the demo is not. {_advice(kind)}")
    try:
        engine.connect().close()
    except (exc.SQLAlchemyError, TypeError, ValueError) as error:
        engine.dispose()
        raise CannotRunError(f"{place} does not answer: {brief(error)}. {_advice(kind)}") from None
    return engine


@contextmanager
def installed(engine: sa.Engine, people: People) -> Iterator[None]:
    """Put the tables there, where they are not, and in the end take away what was put there, and the run's rows.

    Rows and tables that were there before stay; so do tables into which somebody else has put rows meanwhile.

    Raises:
        CannotRunError: A table of the same name is somebody else's, or the user may not create tables.
    """
    with _explained(engine):
        _forget_versions(engine)
        found = _look(engine)
    try:
        with _explained(engine):
            install(engine)
        try:
            yield
        finally:
            remove_rows(engine, people)
    finally:
        _take_away(engine, found)


@contextmanager
def _explained(engine: sa.Engine) -> Iterator[None]:
    """Say that the demo cannot run there, and what to type."""
    try:
        yield
    except (ProletarianError, exc.SQLAlchemyError) as error:
        place, advice = engine.url.render_as_string(), _advice(engine.url.get_backend_name())
        raise CannotRunError(f"{place} cannot be used: {brief(error)}. {advice}") from None


def install(engine: sa.Engine) -> None:
    """Create the application's table and the queue's, each unless it is there: `alembic upgrade head`."""
    config = Config(Path(__file__).with_name("alembic.ini"))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def remove_rows(engine: sa.Engine, people: People) -> None:
    """Delete what a run has written: row by row, so that nobody else's are locked on the way."""
    with Session(engine) as session, session.begin():
        for row in (*users(session, people), *queued(session, people), *archived(session, people)):
            session.delete(row)


def users(session: Session, people: People) -> Sequence[User]:
    """Read who of these people is in the database."""
    return session.scalars(sa.select(User).where(User.email.in_(people.emails))).all()


def queued(session: Session, people: People) -> Sequence[Job]:
    """Read which of their mails are still to be sent."""
    return session.scalars(sa.select(Job).where(Job.queue == people.queue)).all()


def archived(session: Session, people: People) -> Sequence[ArchivedJob]:
    """Read which of their mails have been dealt with."""
    return session.scalars(sa.select(ArchivedJob).where(ArchivedJob.job_id.in_(people.job_ids))).all()


class _Found(NamedTuple):
    """What is there before the demo begins."""

    users: bool
    jobs: bool
    schema: bool


def _look(engine: sa.Engine) -> _Found:
    """Return what is there, once it is clear that the demo can use it.

    Raises:
        ProletarianError: A table is somebody else's, or the queue's have not all that is needed.
    """
    inspector, there = sa.inspect(engine), _there(engine)
    found = _Found(User in there, Job in there or ArchivedJob in there, inspector.has_schema(DEFAULT_SCHEMA))
    name, needed = User.__tablename__, {column.name for column in User.__table__.c}
    if found.users and {column["name"] for column in inspector.get_columns(name)} != needed:
        raise TablesForeign(f"its table {name} is not the demo's")
    if found.jobs:
        proletarian_sa.check_tables(engine)
    return found


def _take_away(engine: sa.Engine, found: _Found) -> None:
    """Drop what has been put there, unless somebody else has put rows into it."""
    _forget_versions(engine)
    if not found.jobs and _are_empty(engine, Job, ArchivedJob):
        proletarian_sa.drop_all(engine)
        if not found.schema and _schema(engine) and not sa.inspect(engine).get_table_names(DEFAULT_SCHEMA):
            with engine.begin() as connection:
                connection.execute(sa.schema.DropSchema(DEFAULT_SCHEMA, if_exists=True))
    if not found.users and _are_empty(engine, User):
        Base.metadata.drop_all(engine)


def _forget_versions(engine: sa.Engine) -> None:
    """Drop Alembic's version table: what is there is looked up at each run, also after one that was killed."""
    sa.Table(VERSION_TABLE, sa.MetaData()).drop(engine, checkfirst=True)


def _there(engine: sa.Engine) -> set[type]:
    """Return which models have a table."""
    inspector = sa.inspect(engine)
    places = {User: None, Job: _schema(engine), ArchivedJob: _schema(engine)}
    return {model for model, schema in places.items() if inspector.has_table(model.__tablename__, schema=schema)}


def _schema(engine: sa.Engine) -> str | None:
    """Return where the queue's tables lie: only PostgreSQL has schemas inside a database."""
    return DEFAULT_SCHEMA if engine.dialect.name == "postgresql" else None


def _are_empty(engine: sa.Engine, *models: type) -> bool:
    there = _there(engine).intersection(models)
    with Session(engine) as session:
        return not any(session.scalar(sa.select(sa.literal(1)).select_from(model).limit(1)) for model in there)


def brief(error: Exception) -> str:
    """Return the first line of what the driver says, without the statement."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def _advice(kind: str = "postgresql") -> str:
    return f"Type: make demo DATABASE_URL={EXAMPLES[kind]}" if kind in EXAMPLES else "Type: make demo"
