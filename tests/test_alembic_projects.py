"""The user's project in all its styles: file names, settings, templates, hooks, encodings, messages. Files, and one SQLite file."""

# ruff: noqa: F811 - fixtures are imported

import re
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from proletarian_sa import versions
from tests.alembic_projects import Project, project, revise  # noqa: F401 - a fixture among them
from tests.second_version import second_version  # noqa: F401 - a fixture

pytestmark = pytest.mark.long

HOOK = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.write_text(path.read_text().replace("from sqlalchemy.dialects import mysql", "from sqlalchemy.dialects import mysql, sqlite"))
pathlib.Path("hooked").write_text(path.name)
"""


@pytest.mark.parametrize(
    ("file_template", "name"),
    [
        ("%%(year)d_%%(month).2d-%%(rev)s_%%(slug)s", r"\d{4}_\d\d-\w{12}_install_the_tables_of_.*\.py"),
        ("%%(epoch)s", r"\d+\.py"),
        ("%%(slug)s", "install_the_tables_of_proletarian_sa.py"),
    ],
)
def test_file_names_of_the_projects_own(project: Project, file_template: str, name: str):
    """The file is named as the project's file_template says, and found again by what stands in it."""
    project.set("file_template", file_template)
    path = project.write()
    project.installs()

    assert re.fullmatch(name, path.name)
    assert f"by {path.name}: there is nothing to write. Run: alembic upgrade head." in project.refused()


def test_a_file_name_that_is_taken(project: Project):
    """A file_template that gives the name of a revision that is there does not overwrite it."""
    project.set("file_template", "%%(slug)s")
    path = project.write()
    output = project.refused("--job-table", "a", "--archived-job-table", "b")

    assert f"gives the new revision the name of {path}, which is there. Give another -m MESSAGE." in output
    assert "second.py" == project.write("--job-table", "a", "--archived-job-table", "b", "-m", "second").name


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("file_template", "%%(nope)s", "KeyError: 'nope'. Look at the project's script.py.mako and file_template"),
        ("file_template", "%(rev)s", "Raw value: '%(rev)s'. A percent sign is written %% there."),
        ("timezone", "Mars/Base", "Can't locate timezone: Mars/Base"),
        ("script_location", "nowhere", "Path doesn't exist"),
        ("script_location", "", "alembic.ini has no script_location in a section [alembic]."),
        ("truncate_slug_length", "many", "invalid literal for int() with base 10: 'many'"),
    ],
)
def test_wrong_settings(project: Project, name: str, value: str, message: str):
    """A setting that cannot be is a short error, and nothing is left behind."""
    project.set(name, value)

    assert message in project.refused()


def test_a_time_zone(project: Project):
    """The date in the file is in the project's time zone."""
    project.set("timezone", "UTC")

    assert re.search(r"^Create Date: .*\+00:00$", project.write().read_text(encoding="utf-8"), re.MULTILINE)


def test_text_of_the_projects_own_in_its_template(project: Project):
    """What the project has put into script.py.mako stands in the revision."""
    project.replace(project.mako, "from alembic import op", "# Copyright: the company\nfrom alembic import op\nimport app_types")
    project.replace(project.mako, "def downgrade() -> None:", "def data_upgrade():\n    pass\n\n\ndef downgrade() -> None:")
    Path("app_types.py").touch()
    project.set("prepend_sys_path", "%(here)s")
    text = project.write().read_text(encoding="utf-8")
    project.installs()

    assert "# Copyright: the company\n" in text
    assert "def data_upgrade():\n    pass\n" in text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('${imports if imports else ""}', "", "has no ${imports}, for `from sqlalchemy.dialects import mysql`: put it below"),
        ('${upgrades if upgrades else "pass"}', "pass", "has no ${upgrades} in its upgrade(): see `alembic init`"),
        ("import sqlalchemy as sa", "import sqlalchemy", "does not say `import sqlalchemy as sa`: put it at its top."),
        ("from alembic import op", "import alembic", "does not say `from alembic import op`: put it at its top."),
        ("    ${upgrades", "  pass\n  ${upgrades", "is not Python: unindent does not match"),
        ('"""${message}', '# ${message}\n"""', "is not Python: invalid syntax"),
        (
            "import sqlalchemy as sa",
            "import sqlalchemy as sa\nimport nothing_such",
            "ModuleNotFoundError: No module named 'nothing_such'",
        ),
        ("${create_date}", "${owner.name}", "Template rendering failed; see "),
        ("revision: str = ", "number: str = ", "does not say `revision = ${repr(up_revision)}`: put it at its top."),
    ],
)
def test_templates_without_what_is_needed(project: Project, old: str, new: str, message: str):
    """A script.py.mako of which no working revision comes is an error that names what it lacks; nothing is left behind."""
    project.set("file_template", "%%(rev)s")  # from which Alembic would take the id
    project.replace(project.mako, old, new)

    assert message in project.refused("-m", "two\nmore lines").replace("unexpected indent", "unindent does not match")


def test_a_template_that_has_no_downgrade(project: Project):
    """A project that never goes back may say so in its template."""
    project.replace(project.mako, '${downgrades if downgrades else "pass"}', "raise NotImplementedError")
    project.write()
    project.installs()


def test_hooks_run_on_the_file(project: Project):
    """The project's post_write_hooks run; that one has put the imports differently is no error."""
    Path("hook.py").write_text(HOOK, encoding="utf-8")
    hooks(project, f"{sys.executable}")
    path = project.write()
    project.installs()

    assert path.name == Path("hooked").read_text(encoding="utf-8")


def test_a_formatter_as_a_hook(project: Project):
    """A formatter leaves the revision what it is: found again, and installing the tables."""
    pytest.importorskip("ruff", reason="no formatter")
    hooks(project, sys.executable, "-m ruff format --line-length 79")
    project.write()
    project.installs()

    assert "there is nothing to write" in project.refused()


def test_a_hook_that_is_not_there(project: Project):
    """A hook that cannot run is Alembic's message, and the file is taken back."""
    hooks(project, "no-such-program")

    assert "Nothing is written: [Errno 2] No such file or directory: 'no-such-program'" in project.refused()


def hooks(project: Project, program: str, options: str = "hook.py") -> None:
    """Let a program run on new revisions."""
    text = f"mine.type = exec\nmine.executable = {program}\nmine.options = {options} REVISION_SCRIPT_FILENAME"
    project.replace(project.ini, "[post_write_hooks]\n", f"[post_write_hooks]\nhooks = mine\n{text}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_such\n", "old.py cannot be imported: ModuleNotFoundError: No module named 'nothing_such'."),
        ("def (\n", "old.py cannot be imported: SyntaxError: "),
        ("raise ValueError('not set')\n", "old.py cannot be imported: ValueError: not set."),
        ("revision = 'a'\ndown_revision = 'gone'\n", "revisions cannot be imported: KeyError: 'gone'."),
    ],
)
@pytest.mark.filterwarnings("ignore:Revision gone referenced:UserWarning")
def test_revisions_that_cannot_be_imported(project: Project, text: str, message: str):
    """Where the project itself does not work the command says which file and why, and what must work first."""
    (project.folder / "migrations" / "versions" / "old.py").write_text(text, encoding="utf-8")
    output = project.refused()

    assert message in output
    assert "First this must work: alembic history" in output


@pytest.mark.parametrize("head", ["# -*- coding: latin-1 -*-\n", ""], ids=["declared", "undeclared"])
def test_revisions_in_another_encoding(project: Project, head: str):
    """A revision that Python reads is no obstacle, whatever its encoding."""
    text = f"{head}# é\nrevision = 'a'\ndown_revision = None\n\ndef upgrade(): pass\n"
    (project.folder / "migrations" / "versions" / "old.py").write_bytes(text.encode("latin-1"))
    project.write()
    project.installs()


def test_a_template_that_is_not_there(project: Project):
    """A project without script.py.mako is the system's error, with the path."""
    project.mako.unlink()

    assert f"Nothing is written: [Errno 2] No such file or directory: '{project.mako}'" in project.refused()


def squash(path: Path) -> None:
    """Take our line out of a revision."""
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join(line for line in lines if "# proletarian-sa:" not in line), encoding="utf-8")


def test_a_history_that_was_squashed(project: Project):
    """Without our line in any revision, the command installs once more, which changes nothing where the tables are."""
    path = project.write()
    project.installs()
    squash(path)
    project.write("-m", "once more")
    project.installs()


@pytest.mark.usefixtures("second_version")
def test_the_version_after_a_history_that_was_squashed(project: Project, monkeypatch: pytest.MonkeyPatch):
    """With --from the next version is written as if our line were there: the way back keeps the tables."""
    with monkeypatch.context() as patch:
        patch.delitem(versions.VERSIONS, 2)
        squash(project.write())
        project.installs()
    nothing = project.refused("--from", "2")
    text = project.write("--from", "1").read_text(encoding="utf-8")
    project.alembic("upgrade", "head")
    project.alembic("downgrade", "-1")
    with monkeypatch.context() as patch:
        patch.delitem(versions.VERSIONS, 2)
        project.installs()

    assert "from version 1 to version 2" in text
    assert "upgrade the tables of proletarian-sa to version 2" in text
    assert "There is nothing between version 2 and version 2 of the tables." in nothing


@pytest.mark.parametrize(
    "message",
    ['say "hi"', '"""', "it's", "two\nlines", "C:\\new\\Users \\N{", "Очередь: ñ €", "50% $x ${y} <%", '\\"', "", " ", "x" * 300],
)
def test_messages(project: Project, message: str):
    """Whatever the message is, it is the revision's, word by word."""
    project.write("-m", message)
    (script,) = ScriptDirectory.from_config(project.config()).walk_revisions()
    project.installs()

    assert (message or "install the tables of proletarian-sa") == script.module.__doc__.split("\n\nRevision ID")[0]


def test_a_message_that_is_no_text(project: Project):
    """A message with a byte that is no character is refused."""
    assert r"The message 'a\udcff' is not text: a byte of it is of another encoding." in project.refused("-m", "a\udcff")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--job-table", "archived_job"], "job_table and archived_job_table are both 'archived_job'."),
        (["--job-table", ""], "job_table must have 1 to 255 characters; '' has 0."),
        (["--schema", "a "], "schema 'a ' has white space at an end"),
        (["--adopt", "--job-ids", "database"], "The tables of Proletarian have UUIDs"),
        (["--adopt", "--from", "1"], "to adopt those of Proletarian give none."),
        (["--from", "7"], "There is no version 7 of the tables: 0 is none, 1 the last."),
        (["--from", "-1"], "-1 is not in the range x>=0."),
        (["message"], "Got unexpected extra argument (message)"),
        (["--job-ids", "uuid7"], "'uuid7' is not one of 'uuid', 'database'"),
    ],
)
def test_other_wrong_words(project: Project, options: list[str], message: str):
    """Names and options that cannot be are refused with what is wrong with them."""
    assert message in project.refused(*options)
