"""Ask a server for its version, which shows that it answers at all."""

import sqlalchemy as sa

# Several threads ask at once, and SQLAlchemy's look-up of a dialect fails while another thread is importing it.
from sqlalchemy.dialects import mysql, postgresql, sqlite  # noqa: F401
from sqlalchemy.pool import NullPool


def ask_version(url: str) -> str:
    """Connect once and return the server's own words for its version.

    Raises:
        sqlalchemy.exc.DBAPIError: It does not answer.
    """
    engine = sa.create_engine(url, poolclass=NullPool)
    questions = {"postgresql": "SHOW server_version", "sqlite": "SELECT sqlite_version()"}
    with engine.connect() as connection:
        return str(connection.scalar(sa.text(questions.get(engine.dialect.name, "SELECT version()"))))
