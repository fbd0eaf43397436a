"""Autogenerate beside the application's own: filters, hooks, other tables, and mistakes in env.py."""

from __future__ import annotations

import ast

import pytest
import sqlalchemy as sa
from alembic.util import CommandError

from proletarian_sa import create_all
from tests import autogenerating
from tests.autogenerating import MODELS, REGISTERED, SETTINGS, Project, of_the_app, operations, version_of

pytestmark = pytest.mark.long

app = autogenerating.app  # a fixture

INSIDE = """
class Job(JobMixin, Base):
    note = mapped_column(sa.String(50), sort_order=90, index=True)

class ArchivedJob(ArchivedJobMixin, Base):
    note = mapped_column(sa.String(50), sort_order=90)

tables = JobTables(job=Job, archived_job=ArchivedJob)
target_metadata = register(Base.metadata, tables=tables)
"""
OURS = ("job", "archived_job")
FILTERS = {
    "names": f"options |= {{'include_name': lambda name, kind, parents: kind != 'table' or name not in {OURS}}}",
    "names of the models": """
def known(name, kind, parents):
    return kind != "table" or parents["schema_qualified_table_name"] in target_metadata.tables
options |= {"include_name": known}
""",
    "schemas": "options |= {'include_schemas': True, 'include_name': lambda name, kind, parents: kind != 'schema' or name is None}",
    "objects": f"options |= {{'include_object': lambda item, name, kind, reflected, other: kind != 'table' or name not in {OURS}}}",
    "models": f"""
def include_object(item, name, kind, reflected, other):
    return kind != "table" or reflected or name not in {OURS}
options |= {{"include_object": include_object}}
""",
    "reflected": f"""
def include_object(item, name, kind, reflected, other):
    return kind != "table" or not reflected or name not in {OURS}
options |= {{"include_object": include_object}}
""",
}
"""Filters with which an application has hidden our tables, or half of them."""


@pytest.mark.parametrize("hidden", FILTERS)
@pytest.mark.parametrize("models", [REGISTERED, INSIDE], ids=["outside", "inside"])
def test_filters_of_the_applications_own(app: Project, hidden: str, models: str) -> None:
    """Half-filtered autogenerate: whichever side a filter hides our tables on, they are installed once, and then left alone."""
    app.configure(MODELS, models, FILTERS[hidden])
    app.upgraded()

    assert 1 == version_of(app.engine)
    assert app.is_quiet()


def test_hooks_of_the_applications_own(app: Project) -> None:
    """A project that drops empty revisions gets none; its `render_item` and `user_module_prefix` still have their say."""
    app.configure(
        MODELS,
        """
        class Text(sa.types.UserDefinedType):
            cache_ok = True

            def get_col_spec(self):
                return "VARCHAR(9)"

        class Code(sa.types.TypeDecorator):
            impl = sa.String(7)

        class Thing(Base):
            __tablename__ = "thing"
            id = mapped_column(sa.Integer, primary_key=True)
            text = mapped_column(Text())
            code = mapped_column(Code())

        def render_item(kind, item, context):
            return "sa.String(7)" if kind == "type" and isinstance(item, Code) else False

        def drop_empty(context, revision, directives):
            if directives[0].upgrade_ops.is_empty():
                directives[:] = []

        options |= {
            "render_item": render_item, "user_module_prefix": "types.", "process_revision_directives": drop_empty
        }
        """,
        REGISTERED,
    )
    path = app.autogenerate()
    upgrade = "\n".join(operations(path)[0])
    path.unlink()

    assert "sa.Column('text', types.Text(), nullable=True)" in upgrade
    assert "sa.Column('code', sa.String(7), nullable=True)" in upgrade
    assert "op.create_table('job'" in upgrade
    of_the_app(app)
    create_all(app.engine)
    app.configure(
        MODELS,
        REGISTERED,
        """
        def drop_empty(context, revision, directives):
            if directives[0].upgrade_ops.is_empty():
                directives[:] = []

        options |= {"process_revision_directives": drop_empty}
        """,
        SETTINGS["schemas"],
    )
    before = set(app.versions.glob("*.py"))
    app.run("revision", "auto", autogenerate=True)
    assert before == set(app.versions.glob("*.py"))


def test_a_rewriter_of_the_applications_own(app: Project) -> None:
    """Alembic's Rewriter goes through the operations, ours included."""
    app.configure(
        MODELS,
        """
        from alembic.autogenerate.rewriter import Rewriter
        from alembic.operations import ops

        writer = Rewriter()

        @writer.rewrites(ops.CreateTableOp)
        def create_table(context, revision, op):
            return [ops.ExecuteSQLOp("SELECT 1"), op]

        options |= {"process_revision_directives": writer}
        """,
        REGISTERED,
    )
    upgrade, _ = operations(app.upgraded())

    assert "op.execute('SELECT 1')" in upgrade
    assert 1 == version_of(app.engine)
    assert app.is_quiet()


@pytest.mark.parametrize("settings", ["plain", "all"])
def test_other_tables_are_compared_as_always(app: Project, settings: str) -> None:
    """Autogenerate drops the queue's tables never, but those of removed models, and such as the application never had."""
    of_the_app(app)
    create_all(app.engine)
    with app.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE foreign_table (id INTEGER NOT NULL, PRIMARY KEY (id))"))
    without = MODELS.replace("class Customer(Base):", "class Customer:")
    app.configure(without, REGISTERED, SETTINGS[settings])
    upgrade, downgrade = app.proposed()
    dropped = {text.partition("'")[2].partition("'")[0] for text in upgrade if text.startswith("op.drop_table(")}

    assert {"customer", "foreign_table"} == dropped
    assert "job" not in "".join(upgrade + downgrade)
    app.configure(without, f"options |= {{'include_name': lambda name, kind, parents: name not in {OURS}}}")
    assert {text for text in upgrade if "drop_table" in text} == {text for text in app.proposed()[0] if "drop_table" in text}


def test_a_new_model_beside_the_tables(app: Project) -> None:
    """What the application adds is proposed alone, and imports nothing of ours."""
    of_the_app(app)
    create_all(app.engine)
    new = "class New(Base):\n    __tablename__ = 'new'\n    id = mapped_column(sa.Integer, primary_key=True)"
    app.configure(MODELS, new, REGISTERED, SETTINGS["schemas"])
    path = app.upgraded()
    upgrade, downgrade = operations(path)

    assert 1 == len(upgrade)
    assert upgrade[0].startswith("op.create_table('new'")
    assert ["op.drop_table('new')"] == downgrade
    assert "dialects" not in path.read_text(encoding="utf-8")
    assert app.is_quiet()


@pytest.mark.parametrize("settings", ["plain", "all"])
def test_foreign_keys_to_our_tables(app: Project, settings: str) -> None:
    """The application's tables may refer to ours, which are in another MetaData: it is made after them, and then left alone."""
    of_the_app(app)
    app.configure(
        MODELS,
        """
        from proletarian_sa import default_tables

        class Invoice(Base):
            __tablename__ = "invoice"
            id = mapped_column(sa.Integer, primary_key=True)
            job_id = mapped_column(sa.ForeignKey(default_tables.job.c.job_id))
        """,
        REGISTERED,
        SETTINGS[settings],
    )
    app.upgraded()
    assert app.is_quiet()
    (key,) = sa.inspect(app.engine).get_foreign_keys("invoice")

    assert "job" == key["referred_table"]
    app.run("downgrade", "-2")
    assert {"alembic_version", "customer"} == set(sa.inspect(app.engine).get_table_names())


def test_without_registration_nothing_changes(app: Project) -> None:
    """In a project that has not registered the tables Alembic sees what it sees without us: tables that no model has."""
    of_the_app(app)
    create_all(app.engine)
    app.configure(MODELS, SETTINGS["schemas"])
    upgrade, _ = app.proposed()
    dropped = {text.partition("'")[2].partition("'")[0] for text in upgrade if text.startswith("op.drop_table(")}

    assert {"job", "archived_job"} == dropped


@pytest.mark.parametrize("given", ["None", "Base", "[Base.metadata]"])
def test_what_is_no_metadata_is_refused(app: Project, given: str) -> None:
    """register() says what it takes."""
    app.configure(MODELS, f"target_metadata = register({given})")

    with pytest.raises(TypeError, match=r"takes the project's MetaData, or one of them, not .*: target_metadata = register\(Base"):
        app.check()


def test_what_are_no_tables_is_refused(app: Project) -> None:
    """Likewise tables=."""
    app.configure(MODELS, "target_metadata = register(Base.metadata, tables=Base)")

    with pytest.raises(TypeError, match="tables must be a JobTables, not"):
        app.check()


@pytest.mark.parametrize("models", [REGISTERED, INSIDE], ids=["outside", "inside"])
def test_a_table_of_that_name_that_is_not_ours(app: Project, models: str) -> None:
    """Autogenerate fails as Alembic's commands do, with our message, and writes nothing."""
    with app.engine.begin() as connection:
        if app.engine.dialect.name == "postgresql":
            connection.execute(sa.schema.CreateSchema("proletarian"))
        place = "proletarian.job" if app.engine.dialect.name == "postgresql" else "job"
        connection.execute(sa.text(f"CREATE TABLE {place} (id INTEGER NOT NULL, PRIMARY KEY (id))"))
    app.configure(MODELS, models)

    with pytest.raises(CommandError, match=rf"The table {place} in .* is not a table of proletarian-sa: .* Rename ours"):
        app.autogenerate()
    assert [] == list(app.versions.glob("*.py"))


@pytest.mark.parametrize("own", ["id = mapped_column(sa.Integer, primary_key=True)", "mixin"])
def test_a_model_of_that_name_that_is_not_registered(app: Project, own: str) -> None:
    """A table of the application's in the place of ours is refused, and the message says how to register models of one's own."""
    model = f"class Task(Base):\n    __tablename__ = 'job'\n    {own}" if own != "mixin" else INSIDE.rpartition("\ntables")[0]
    app.configure(MODELS, model, "target_metadata = register(Base.metadata, tables=JobTables(schema=None))")
    if own == "mixin":
        app.configure(MODELS, model, REGISTERED)

    with pytest.raises(
        CommandError, match=r"has a table \S*job where one of proletarian-sa .* register\(metadata, tables=tables\)"
    ):
        app.autogenerate()
    assert [] == list(app.versions.glob("*.py"))


def test_what_is_written_is_correct_python(app: Project) -> None:
    """The file compiles, and every import is used."""
    app.configure(MODELS, INSIDE)
    tree = ast.parse(app.upgraded().read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name for item in tree.body if isinstance(item, ast.ImportFrom | ast.Import) for alias in item.names
    }
    used = {item.id for item in ast.walk(tree) if isinstance(item, ast.Name)}

    assert {"op", "sa", "mysql"} <= imported <= used
