"""The database of a run: open it, put the tables into it, take away what the run has made."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.orm import Session

import proletarian_sa
from examples.demo.app import Base, User
from proletarian_sa import ArchivedJob, Job, ProletarianError, TablesForeign, TablesMissing

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
    inspector = sa.inspect(engine)
    schema = DEFAULT_SCHEMA
    # elsewhere there are no schemas inside a database
    new_schema = engine.dialect.name == "postgresql" and not inspector.has_schema(schema)
    try:
        _check_users(inspector)
        new_users, new_jobs = not inspector.has_table(User.__tablename__), _are_missing(engine)
        install(engine)
    except (ProletarianError, exc.SQLAlchemyError) as error:
        place = engine.url.render_as_string()
        raise CannotRunError(f"{place} cannot be used: {brief(error)}. {_advice(engine.url.get_backend_name())}") from None
    try:
        yield
    finally:
        remove_rows(engine, people)
        if new_jobs and _are_empty(engine, Job, ArchivedJob):
            proletarian_sa.drop_all(engine)
            if new_schema and not sa.inspect(engine).get_table_names(schema):
                with engine.begin() as connection:
                    connection.execute(sa.schema.DropSchema(schema))
        if new_users and _are_empty(engine, User):
            Base.metadata.drop_all(engine)


def install(engine: sa.Engine) -> None:
    """Create the queue's tables and the application's, each unless it is there."""
    proletarian_sa.create_all(engine)
    Base.metadata.create_all(engine)


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


def _check_users(inspector: sa.Inspector) -> None:
    name, needed = User.__tablename__, {column.name for column in User.__table__.c}
    if inspector.has_table(name) and {column["name"] for column in inspector.get_columns(name)} != needed:
        raise TablesForeign(f"its table {name} is not the demo's")


def _are_missing(engine: sa.Engine) -> bool:
    try:
        proletarian_sa.check_tables(engine)
    except TablesMissing:
        return True
    return False


def _are_empty(engine: sa.Engine, *models: type) -> bool:
    with Session(engine) as session:
        return not any(session.scalar(sa.select(sa.literal(1)).select_from(model).limit(1)) for model in models)


def brief(error: Exception) -> str:
    """Return the first line of what the driver says, without the statement."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def _advice(kind: str = "postgresql") -> str:
    return f"Type: make demo DATABASE_URL={EXAMPLES[kind]}" if kind in EXAMPLES else "Type: make demo"
