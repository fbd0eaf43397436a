"""Roles for real: what `proletarian-sa grants` prints, run as an administrator would, and the engines of those roles."""

from contextlib import closing

import sqlalchemy as sa
from click.testing import CliRunner

from proletarian_sa.cli import main
from tests.servers.database import ROLE_PASSWORD, Database


def printed(*arguments: str) -> str:
    """Return what the command prints."""
    result = CliRunner().invoke(main, ["grants", *arguments])
    assert 0 == result.exit_code, result.output
    return result.output


def refused(*arguments: str) -> str:
    """Return what the command says when it refuses its arguments: code 2, and nothing printed."""
    result = CliRunner().invoke(main, ["grants", *arguments])
    assert (2, "") == (result.exit_code, result.stdout)
    return result.stderr


def run(database: Database, text: str, role: sa.Engine | None = None) -> None:
    """Run a text of several statements, unchanged, as the administrator in the database, or as the role of an engine."""
    options: dict[str, object] = {}
    if database.url.get_backend_name() != "postgresql":
        from pymysql.constants import CLIENT  # noqa: PLC0415 - not everybody has it

        options["connect_args"] = {"client_flag": CLIENT.MULTI_STATEMENTS}
    user = database.url if role is None else role.url
    engine = sa.create_engine(user, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT", **options)
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute(text)
        while cursor.nextset():
            pass
    engine.dispose()


def set_password(database: Database, role: str) -> None:
    """Give a role its password, as the printed comment advises."""
    engine = database.create_engine()
    with engine.begin() as connection:
        quoted = connection.dialect.identifier_preparer.quote_identifier(role)
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"ALTER ROLE {quoted} PASSWORD '{ROLE_PASSWORD}'")
        else:
            connection.exec_driver_sql(f"ALTER USER {quoted}@'%%' IDENTIFIED BY '{ROLE_PASSWORD}' ACCOUNT UNLOCK")


def role_with(database: Database, option: str, *arguments: str, **engine_options: object) -> sa.Engine:
    """Make a role with the rights that the option (`--role` or `--enqueue-role`) stands for, and return an engine that is it."""
    role = database.new_role()
    run(database, printed("--url", database.url_text, "--create-role", option, role, *arguments))
    set_password(database, role)
    return database.create_engine_as(role, **engine_options)


def bare_role(database: Database, *statements: str) -> sa.Engine:
    """Make a role without rights, run the statements, in which `{role}` is its name, and return an engine that is it."""
    role = database.new_role()
    engine = database.create_engine()
    account = role if engine.dialect.name == "postgresql" else f"{role}@'%%'"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN" if account == role else f"CREATE USER {account}")
        for statement in statements:
            connection.exec_driver_sql(statement.format(role=account))
    set_password(database, role)
    return database.create_engine_as(role)


def quoted(engine: sa.Engine, table: sa.Table) -> str:
    """Return the table's name for a statement of text."""
    preparer = engine.dialect.identifier_preparer
    return preparer.format_table(table, use_schema=engine.dialect.name == "postgresql")


def account(engine: sa.Engine) -> str:
    """Return the name of the engine's user for a statement of text."""
    return f"{engine.url.username}@'%%'" if engine.dialect.name != "postgresql" else str(engine.url.username)
