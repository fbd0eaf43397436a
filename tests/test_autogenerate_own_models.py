"""Autogenerate with models of the application's own base: our half is left alone, theirs compared as Alembic does."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests import autogenerating
from tests.autogenerating import MODELS, SETTINGS, Project, operations, version_of
from tests.second_version import second_version  # noqa: F401 - a fixture

pytestmark = pytest.mark.long

app = autogenerating.app  # a fixture

PLAIN = """
class Job(JobMixin, Base):
    __tablename__ = "job"
    {job}

class ArchivedJob(ArchivedJobMixin, Base):
    __tablename__ = "archived_job"
    {archived}

tables = JobTables(job=Job, archived_job=ArchivedJob)
target_metadata = register(Base.metadata, tables=tables)
"""
NOTE = "note = mapped_column(sa.String(50), sort_order=90)"

RICH = """
class Job(JobMixin, Base):
    __job_schema__ = SCHEMA
    customer_id = mapped_column(sa.ForeignKey("customer.id"), nullable=False, index=True, sort_order=90)
    note = mapped_column(sa.String(50), unique=True, sort_order=91)
    reference = mapped_column(sa.String(50), sort_order=92)
    parent = mapped_column(sa.ForeignKey(PREFIX + "job.job_id"), sort_order=93)
    level = mapped_column(sa.Integer, server_default="3", nullable=False, sort_order=94)
    address = mapped_column(sa.String(50).with_variant(postgresql.INET(), "postgresql"), sort_order=95)
    __table_args__ = (
        sa.CheckConstraint("level > 0", name="positive"),
        sa.UniqueConstraint("reference", "level", name="one_reference"),
        sa.Index("job_reference", "reference"),
    )

class ArchivedJob(ArchivedJobMixin, Base):
    __job_schema__ = SCHEMA
    customer_id = mapped_column(sa.Integer, index=True, sort_order=90)

class Invoice(Base):
    __tablename__ = "aa_invoice"
    id = mapped_column(sa.Integer, primary_key=True)
    job_id = mapped_column(sa.ForeignKey(Job.job_id), index=INDEXED)
    item_id = mapped_column(sa.ForeignKey("zz_item.id"), index=INDEXED)

class Item(Base):
    __tablename__ = "zz_item"
    id = mapped_column(sa.Integer, primary_key=True)
    job_id = mapped_column(sa.ForeignKey(PREFIX + "job.job_id"))
    address = mapped_column(sa.String(50).with_variant(postgresql.INET(), "postgresql"))

tables = JobTables(job=Job, archived_job=ArchivedJob)
target_metadata = register(Base.metadata, tables=tables)
"""
CONVENTIONS: dict[str, dict[str, str]] = {
    "none": {},
    "usual": {
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    },
    "labels": {  # which hold the schema
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(column_0_label)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(column_0_label)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    },
}


def rich(schema: str | None, convention: str, *, indexed: bool = True) -> list[str]:
    """Return the models of an application that has added all there is, with a naming convention."""
    head = MODELS.replace("sa.MetaData()", f"sa.MetaData(naming_convention={CONVENTIONS[convention]!r})")
    prefix = "" if schema is None else f"{schema}."
    said = f"from sqlalchemy.dialects import postgresql\nSCHEMA = {schema!r}\nPREFIX = {prefix!r}\nINDEXED = {indexed}"
    return [head, said, RICH]


def of_the_app(engine: sa.Engine, schema: str | None) -> Any:
    """Return names of columns, indexes and constraints, as the database has them."""
    place = schema if engine.dialect.name == "postgresql" else None
    inspector = sa.inspect(engine)
    return {
        table: (
            [column["name"] for column in inspector.get_columns(table, schema=where)],
            sorted(str(index["name"]) for index in inspector.get_indexes(table, schema=where)),
            sorted(str(key["name"]) for key in inspector.get_unique_constraints(table, schema=where)),
            sorted((str(key["name"]), key["referred_table"]) for key in inspector.get_foreign_keys(table, schema=where)),
            sorted(str(check["name"]) for check in inspector.get_check_constraints(table, schema=where)),
        )
        for table, where in {"job": place, "archived_job": place, "aa_invoice": None, "zz_item": None}.items()
    }


@pytest.mark.parametrize(
    ("schema", "convention", "settings"),
    [("proletarian", "none", "plain"), ("proletarian", "labels", "all"), (None, "usual", "types")],
)
def test_all_that_an_application_may_add(app: Project, schema: str | None, convention: str, settings: str) -> None:
    """Columns, indexes, constraints, foreign keys both ways: one revision makes them all, and then all is quiet."""
    app.configure(*rich(schema, convention), SETTINGS[settings])
    app.upgraded()

    assert app.is_quiet()


@pytest.mark.parametrize("convention", ["usual", "labels"])
def test_tables_that_no_revision_has_made(app: Project, database: Any, convention: str) -> None:
    """The revision makes what `create_all` would, by the same names, and of that, too, nothing is proposed."""
    schema = "proletarian" if database.schemas else None  # on SQLite, SQLAlchemy leaves out a foreign key between schemas
    app.configure(*rich(schema, convention), SETTINGS["types"])
    app.upgraded()
    by_revision = of_the_app(app.engine, schema)
    metadata = app.metadata()
    metadata.drop_all(app.engine)
    metadata.create_all(app.engine)

    assert of_the_app(app.engine, schema) == by_revision
    assert app.is_quiet()


def test_downgrade_and_up_again(app: Project) -> None:
    """The way back drops what the way up has made, in an order that foreign keys permit; then up again."""
    # Alembic itself drops an index of another table's foreign key before that, which MySQL refuses.
    app.configure(*rich("proletarian", "usual", indexed=False))
    app.upgraded()
    before = of_the_app(app.engine, "proletarian")
    app.run("downgrade", "base")
    assert ["alembic_version"] == sa.inspect(app.engine).get_table_names()
    app.run("upgrade", "head")

    assert before == of_the_app(app.engine, "proletarian")
    assert app.is_quiet()


@pytest.mark.parametrize("settings", ["plain", "schemas"])
def test_a_column_of_the_applications_own(app: Project, settings: str) -> None:
    """A column added to a model is `add_column`, one removed `drop_column`, and nothing else."""
    app.configure(MODELS, PLAIN.format(job="pass", archived="pass"), SETTINGS[settings])
    app.upgraded()
    app.configure(MODELS, PLAIN.format(job=NOTE, archived="pass"), SETTINGS[settings])
    path = app.autogenerate()
    text = path.read_text(encoding="utf-8")
    upgrade, downgrade = operations(path)

    assert [1, 1] == [len(upgrade), len(downgrade)]
    assert upgrade[0].startswith("op.add_column('job', sa.Column('note', sa.String(length=50), nullable=True)")
    assert downgrade[0].startswith("op.drop_column('job', 'note'")
    assert "dialects" not in text
    app.run("upgrade", "head")
    assert app.is_quiet()
    app.configure(MODELS, PLAIN.format(job="pass", archived="pass"), SETTINGS[settings])
    back, forth = app.proposed()
    assert [1, 1] == [len(back), len(forth)]
    assert back[0].startswith("op.drop_column('job', 'note'")
    assert forth[0].startswith("op.add_column('job', sa.Column('note',")


def test_a_column_in_a_batch(app: Project) -> None:
    """Likewise with `render_as_batch`, and what the batch does leaves our table as it was."""
    app.configure(MODELS, PLAIN.format(job=NOTE, archived="pass"), SETTINGS["all"])
    app.upgraded()
    app.configure(MODELS, PLAIN.format(job="pass", archived="pass"), SETTINGS["all"])
    upgrade, _ = operations(app.upgraded())

    assert 1 == len(upgrade)
    assert "batch_op.drop_column('note')" in upgrade[0]
    assert 1 == version_of(app.engine)
    assert app.is_quiet()


def test_an_older_version(app: Project, request: pytest.FixtureRequest) -> None:
    """The upgrade is what the command writes, beside what the application adds at the same time."""
    app.configure(MODELS, PLAIN.format(job="pass", archived="pass"), SETTINGS["types"])
    app.upgraded()
    request.getfixturevalue("second_version")
    command, _ = app.commanded()
    own = NOTE.replace("note", "own")
    app.configure(MODELS, PLAIN.format(job=f"{NOTE}\n    {own}", archived=NOTE), SETTINGS["types"])
    upgrade, downgrade = operations(app.upgraded())

    assert command == upgrade[:-1]
    assert upgrade[-1].startswith("op.add_column('job', sa.Column('own',")
    assert downgrade[0].startswith("op.drop_column('job', 'own'")
    assert 2 == version_of(app.engine)


def test_a_model_in_one_of_several_metadata(app: Project) -> None:
    """The models may stand in any of a list of MetaData, and be registered with another of them."""
    app.configure(
        MODELS,
        "class Other(DeclarativeBase):\n    metadata = sa.MetaData()",
        PLAIN.format(job=NOTE, archived="pass").replace("Mixin, Base)", "Mixin, Other)"),
        "target_metadata = [Base.metadata, Other.metadata]",
        SETTINGS["types"],
    )
    upgrade, _ = operations(app.upgraded())

    assert "sa.Column('note', sa.String(length=50), nullable=True)" in "\n".join(upgrade)
    assert app.is_quiet()


def test_our_names_are_final_under_any_convention(app: Project) -> None:
    """A convention that would rename named indexes does so with the application's, not with ours."""
    convention = {"ix": "ix_%(table_name)s_%(constraint_name)s"}
    head = MODELS.replace("sa.MetaData()", f"sa.MetaData(naming_convention={convention!r})")
    own = f'{NOTE}\n    __table_args__ = (sa.Index("note", "note"),)'
    app.configure(head, PLAIN.format(job=own, archived="pass"))
    app.upgraded()
    names = set(of_the_indexes(app))

    assert {"job_queue_process_at", "job_unique_key", "ix_job_note"} == names
    assert app.is_quiet()
    app.metadata().drop_all(app.engine)
    app.metadata().create_all(app.engine)
    assert names == set(of_the_indexes(app))


def of_the_indexes(app: Project) -> list[Any]:
    """Return the names of the indexes of the job table."""
    schema = "proletarian" if app.engine.dialect.name == "postgresql" else None
    return [index["name"] for index in sa.inspect(app.engine).get_indexes("job", schema=schema)]


def test_a_table_that_comes_between_ours(app: Project) -> None:
    """Both tables are made at one place: what refers to them comes after, with its indexes, though Alembic sorts it between."""
    own = (
        PLAIN.replace('"job"', '"aa_job"')
        .replace('"archived_job"', '"zz_done"')
        .format(
            job="__job_schema__ = None",
            archived="__job_schema__ = None\n    customer_id = mapped_column(sa.ForeignKey('mm_owner.id'))",
        )
    )
    between = """
    class Invoice(Base):
        __tablename__ = "mm_invoice"
        id = mapped_column(sa.Integer, primary_key=True)
        job_id = mapped_column(sa.ForeignKey("aa_job.job_id"))
        __table_args__ = (sa.Index("mm_invoice_id", "id"),)

    class Owner(Base):
        __tablename__ = "mm_owner"
        id = mapped_column(sa.Integer, primary_key=True)
        __table_args__ = (sa.Index("mm_owner_id", "id"),)
    """
    app.configure(MODELS, own, between)
    upgrade, _ = operations(app.upgraded())
    first = [
        next(place for place, text in enumerate(upgrade) if f"'{name}'" in text) for name in ("mm_owner", "zz_done", "mm_invoice")
    ]

    assert sorted(first) == first
    assert app.is_quiet()
