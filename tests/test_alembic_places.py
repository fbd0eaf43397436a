"""Where the revision goes: heads and branches, folders of versions, and the project's settings, wherever they are."""

# ruff: noqa: F811 - fixtures are imported

import configparser
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from tests.alembic_projects import FILE, HAS_TOML, MAKES_FOLDERS, Project, init, project, revise  # noqa: F401 - a fixture among them

pytestmark = pytest.mark.long


def needs_folders() -> None:
    """Skip the test if Alembic writes only into folders that are there."""
    if not MAKES_FOLDERS:
        pytest.skip("no folders made by Alembic")


def test_folders_by_date(project: Project):
    """With recursive_version_locations a file_template of folders works; without it Alembic would pass over the file: refused."""
    needs_folders()
    project.set("file_template", "%%(year)d/%%(month).2d/%%(rev)s")
    refused = project.refused()
    project.set("recursive_version_locations", "true")
    path = project.write()
    project.installs()

    assert "Then set recursive_version_locations = true." in refused
    assert project.folder / "migrations" / "versions" == path.parent.parent.parent
    assert "there is nothing to write" in project.refused()


def test_several_heads(project: Project):
    """Without --head the heads are listed; with one of them, or a branch label, the revision follows it and breaks no other."""
    project.revision("aaa")
    project.revision("bbb", label="billing")
    refused = project.refused()
    result = revise("--head", "billing@head")
    directory = ScriptDirectory.from_config(project.config())
    project.installs()

    assert "has several heads. Say which gets the tables, --head REVISION: aaa (aaa.py), bbb (bbb.py)." in refused
    assert "then run: alembic upgrade heads\n" in result.output
    assert 2 == len(directory.get_heads())
    (ours,) = set(directory.get_heads()) - {"aaa"}
    assert "bbb" == directory.get_revision(ours).down_revision


def test_a_head_by_its_beginning_and_all_heads(project: Project):
    """--head takes what Alembic takes: the beginning of an id, and `heads`, which joins them."""
    project.revision("aaa111")
    project.revision("bbb222")
    project.write("--head", "aaa")
    project.write("--head", "heads", "--job-table", "a", "--archived-job-table", "b")

    assert 1 == len(ScriptDirectory.from_config(project.config()).get_heads())
    project.installs()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("nosuch", "--head nosuch: Can't locate revision identified by 'nosuch'. The project's heads: bbb (bbb.py)."),
        ("aaa", "--head aaa is no head: other revisions follow. The project's heads: bbb (bbb.py)."),
        ("shop@head", "Can't locate revision identified by 'shop'. The project's heads: bbb (bbb.py)."),
    ],
)
def test_wrong_heads(project: Project, head: str, message: str):
    """What is no head is refused with the heads that there are."""
    project.revision("aaa")
    project.revision("bbb", down="aaa")

    assert message in project.refused("--head", head).replace(
        "No such branch: 'shop'", "Can't locate revision identified by 'shop'"
    )


def test_an_empty_head(project: Project):
    """--head with nothing in it, as of a shell variable that is not set, is as if it were not given."""
    project.revision("aaa")
    project.write("--head", "")
    project.installs()


def test_a_branch_of_its_own(project: Project):
    """`--head base` starts a second line of revisions, and the command says that `heads` is what to upgrade to then."""
    project.revision("aaa")
    result = revise("--head", "base")
    project.installs()

    assert "then run: alembic upgrade heads\n" in result.output


def test_several_folders_of_versions(project: Project):
    """The revision goes where its head is, or into the folder that --version-path names; another one is refused."""
    project.set("version_locations", "%(here)s/migrations/versions %(here)s/migrations/more")
    project.replace(project.ini, "path_separator = os", "path_separator = space")
    first = project.refused()
    project.revision("aaa", folder="more")
    by_head = project.write()
    elsewhere = project.refused("--version-path", "migrations/other", "--job-table", "a", "--archived-job-table", "b")
    chosen = project.write("--version-path", "migrations/versions", "--job-table", "a", "--archived-job-table", "b")
    project.installs()

    assert "Multiple version locations present, please specify --version-path" in first
    assert "more" == by_head.parent.name
    assert "Path migrations/other is not represented in current version locations" in elsewhere
    assert "versions" == chosen.parent.name


def test_the_advice_names_env_py_wherever_the_versions_are(project: Project):
    """What to add to env.py is said until it is there, with the file's right place, in whatever encoding that is."""
    project.set("version_locations", "%(here)s/elsewhere")
    project.env.write_bytes(project.env.read_bytes() + "# é\n".encode("latin-1"))
    plain = revise().output
    named = revise("--schema", "", "-m", "second").output
    project.env.write_bytes(b"from alembic_ext.proletarian_sa import register\n" + project.env.read_bytes())
    silent = revise("--schema", "q").output

    assert f"add to {project.env}, below target_metadata:\n    from alembic_ext.proletarian_sa import register\n" in plain
    assert "    register(target_metadata)\n" in plain
    assert "    register(target_metadata, tables=tables)\nwhere tables is the application's JobTables.\n" in named
    assert 1 == silent.count("\n")


@pytest.mark.parametrize("by", ["option", "environment"])
def test_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str):
    """With -c or ALEMBIC_CONFIG the project is found from elsewhere: %(here)s and prepend_sys_path are the project's."""
    project = init(tmp_path / "deep" / "app", "generic", FILE)
    (project.folder / "src").mkdir()
    (project.folder / "src" / "app_of_here.py").touch()
    project.set("prepend_sys_path", "%(here)s/src")
    project.set("script_location", "%(here)s/migrations")
    project.replace(project.mako, "from alembic import op", "from alembic import op\nimport app_of_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    relative = "deep/app/alembic.ini"
    if by == "environment":
        monkeypatch.setenv("ALEMBIC_CONFIG", relative)
    result = revise(*(["-c", relative] if by == "option" else []))
    project.installs()

    assert 0 == result.exit_code, result.output
    command = f"alembic -c {relative} upgrade head" if by == "option" else "alembic upgrade head"
    assert f"Review it, then run: {command}\n" in result.output


def test_another_section(project: Project):
    """-n reads another section, and what to run then has it, too."""
    settings = configparser.RawConfigParser()
    settings.read(project.ini, encoding="utf-8")
    settings["tenants"] = {**settings["alembic"], "file_template": "tenants_%%(rev)s"}
    with project.ini.open("w", encoding="utf-8") as file:
        settings.write(file)
    output = revise("-n", "tenants").output
    wrong = project.refused("-n", "nosuch")

    assert "tenants_" in output
    assert "then run: alembic -n tenants upgrade head\n" in output
    assert "alembic.ini has no script_location in a section [nosuch]. Another section: -n NAME." in wrong


def test_a_project_described_in_pyproject_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without an alembic.ini, pyproject.toml is enough: here, from elsewhere, and with its file_template."""
    project = init(tmp_path / "app", "pyproject")
    project.ini.unlink()
    project.set("file_template", "toml_%%(rev)s")
    monkeypatch.chdir(project.folder)
    here = project.write()
    monkeypatch.chdir(tmp_path)
    there = project.write("-c", "app/pyproject.toml", "--job-table", "a", "--archived-job-table", "b")
    no_function = project.refused("-c", "app/pyproject.toml", "--database", "engine1")
    (project.folder / "pyproject.toml").write_text("[tool", encoding="utf-8")

    assert ["toml", "toml"] == [here.name.split("_")[0], there.name.split("_")[0]]
    assert "Has the project one database? Then leave out --database." in no_function
    assert "app/pyproject.toml is no TOML: " in project.refused("-c", "app/pyproject.toml")


def test_a_pyproject_that_is_found_by_its_own_name_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With -c alembic.ini from elsewhere Alembic does not look into the pyproject.toml beside it: the message says so."""
    project = init(tmp_path / "app", "pyproject")
    monkeypatch.chdir(tmp_path)

    assert "A project that is described in pyproject.toml: -c PATH/pyproject.toml" in project.refused("-c", "app/alembic.ini")


def test_a_pyproject_that_alembic_does_not_read(project: Project):
    """An Alembic that knows no pyproject.toml is told apart from a wrong path."""
    if HAS_TOML:
        pytest.skip("no Alembic without pyproject.toml")
    Path("pyproject.toml").touch()

    assert "does not read pyproject.toml: give -c alembic.ini, or upgrade it to 1.16." in project.refused("-c", "pyproject.toml")


@pytest.mark.parametrize("given", ["nosuch.ini", "migrations", "nosuch/pyproject.toml"])
@pytest.mark.parametrize("by", ["option", "environment"])
def test_settings_that_are_not_there(project: Project, monkeypatch: pytest.MonkeyPatch, given: str, by: str):
    """A path to settings that is wrong is refused, although there is a project here."""
    if "toml" in given and not HAS_TOML:
        pytest.skip("no pyproject templates")
    if by == "environment":
        monkeypatch.setenv("ALEMBIC_CONFIG", given)
    output = project.refused(*(["-c", given] if by == "option" else []))

    assert (
        f"There is no file {given}. By -c PATH, or ALEMBIC_CONFIG, say where the project's alembic.ini or pyproject.toml is."
        in output
    )


def test_settings_in_another_encoding(project: Project):
    """An alembic.ini that is no text is a short error."""
    project.ini.write_bytes(project.ini.read_bytes() + "# é\n".encode("latin-1"))

    assert "alembic.ini is no text in the encoding of this system: " in project.refused()


def test_a_folder_that_cannot_be_written(project: Project):
    """A folder of versions that takes no file is the system's error, with the path."""
    versions = project.folder / "migrations" / "versions"
    versions.rmdir()
    versions.symlink_to("/proc/self/fdinfo")  # where even an administrator cannot make a file
    output = revise().output

    assert output.startswith("Error: Nothing is written: [Errno ")
    assert "migrations/versions/" in output


def test_a_folder_of_versions_that_is_not_there(project: Project):
    """The folder that a checkout of a repository does not have as long as it is empty is made, as by Alembic."""
    needs_folders()
    (project.folder / "migrations" / "versions").rmdir()
    project.write()
    project.installs()
