"""Ask a server for its version, which shows that it answers at all."""

import sqlalchemy as sa
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
