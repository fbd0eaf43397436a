"""The code of the README and of docs/ runs, each document from top to bottom."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import shlex
import threading
from pathlib import Path

import alembic.command
import pytest
import sqlalchemy as sa
from sybil import Document, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import proletarian_sa
from proletarian_sa import QueueWorker, events
from proletarian_sa.cli import main
from proletarian_sa.log import QUIET
from tests.asgi import post, served
from tests.helpers import wait_until
from tests.observing import PATIENCE

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def parsed(path: Path) -> Document:
    """Return a document whose snippets run as those that somebody types."""
    document = Sybil(parsers=[PythonCodeBlockParser()], path=str(ROOT)).parse(path)
    document.namespace["__name__"] = "__main__"
    return document


def run(document: Document, examples: int | None = None) -> None:
    """Run a document's first snippets, or all, and close what they opened."""
    try:
        for example in list(document.examples())[:examples]:
            example.evaluate()
    finally:
        for value in document.namespace.values():
            if isinstance(value, sa.Engine):
                value.dispose()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_snippet_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who types the snippets in order, in an empty folder, gets no error."""
    monkeypatch.chdir(tmp_path)
    run(parsed(path))


def test_the_first_job_takes_twenty_lines() -> None:
    """The README's first snippet has at most twenty lines of code, and does what it says."""
    first = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    code = [line for line in first.splitlines() if line.strip() and not line.strip().startswith("#")]

    assert len(code) <= 20
    assert "enqueue(session" in first


def test_the_first_job_prints_its_welcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The README's first snippet runs the job that it enqueues."""
    monkeypatch.chdir(tmp_path)
    run(parsed(ROOT / "README.md"), 1)

    assert "welcome, ada@example.com\n" == capsys.readouterr().out


@pytest.mark.parametrize("name", ["starlette_app", "litestar_app"])
def test_a_web_application_runs_its_jobs(name: str) -> None:
    """The applications of docs/async.md enqueue in a request, and run the job while they are served; no thread is left."""
    document = parsed(ROOT / "docs" / "async.md")
    *examples, clean_up = document.examples()
    for example in examples:
        example.evaluate()
    app, engine = document.namespace[name], document.namespace["engine"]
    before = {thread.name for thread in threading.enumerate()}

    async def welcomed() -> list[str]:
        async with engine.connect() as connection:
            return list(await connection.scalars(sa.text("SELECT name FROM welcomed ORDER BY name")))

    async def serve() -> int:
        async with served(app):
            status = await post(app, "/people", "name=Grace")
            async with asyncio.timeout(PATIENCE):
                while await welcomed() != ["Ada", "Grace"]:  # noqa: ASYNC110 - the database is asked
                    await asyncio.sleep(0.01)
        return status

    try:
        assert 201 == asyncio.run(serve())
        wait_until(
            lambda: not [name for name in {thread.name for thread in threading.enumerate()} - before if "proletarian" in name]
        )
    finally:
        clean_up.evaluate()


COMMANDS = re.compile(r"^ {4}((?:proletarian-sa|alembic) [^|#\n]+)|`((?:proletarian-sa|alembic) [^`|…]+)`", re.MULTILINE)


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, *sorted((ROOT / "examples").rglob("README.md"))], ids=lambda path: path.parent.name + path.name
)
def test_every_command_is_known(path: Path) -> None:
    """The commands `proletarian-sa …` and `alembic …` of a document exist, with each option that stands there."""
    unknown = []
    for text in (line or span for line, span in COMMANDS.findall(path.read_text())):
        program, name, *words = shlex.split(re.sub(r"[\[\]]", " ", text))
        if program == "alembic":
            options = {"--sql", "--autogenerate"} if hasattr(alembic.command, name) else None
        else:
            command = main.commands.get(name)
            options = command and {option for parameter in command.params for option in parameter.opts} | {"--help"}
        if options is None or {word for word in words if word.startswith("-")} - options:
            unknown.append(text)

    assert [] == unknown


def rows(path: Path) -> list[list[str]]:
    """Return the cells of all rows of a document's tables."""
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def test_every_event_is_in_the_table() -> None:
    """The table of docs/operations.md has each event that can be told once, with levels of logging, and no other."""
    table = [row for row in rows(ROOT / "docs" / "operations.md") if re.fullmatch(r"`[A-Z]\w+`", row[0])]
    kinds = {name for name, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, events.Event)}
    levels = {level.strip() for row in table for level in row[1].split(",")}

    assert sorted(kinds - {"Event", "JobEvent"}) == sorted(row[0].strip("`") for row in table)
    assert levels <= set(logging.getLevelNamesMapping())
    assert {4} == {len(row) for row in table}
    assert {kind.__name__ for kind in QUIET} == {row[0].strip("`") for row in table if row[1] == "DEBUG"}


ORIGINAL_OPTIONS = (
    "process-at process-in queue job-table archived-job-table serializer job-id-strategy clock handler-fn-mode retry-strategy-fn "
    "failed-job-fn log queue-worker-id polling-interval-ms worker-threads on-polling-error await-termination-timeout-ms "
    "install-jvm-shutdown-hook? on-shutdown"
)
ORIGINAL_EVENTS = (
    "polling-for-jobs handling-job job-finished job-interrupted handle-job-exception handle-job-exception-with-interrupt retrying "
    "not-retrying sql-transient-exception worker-interrupted job-worker-error queue-worker-shutdown-error shutting-down "
    "completed-shutdown already-shut-down interrupted-while-shutting-down"
)


def test_who_knows_the_original_finds_everything() -> None:
    """Each option and event of the original stands in the first column of docs/proletarian.md."""
    text = " ".join(row[0] for row in rows(ROOT / "docs" / "proletarian.md"))

    assert [] == [name for name in ORIGINAL_OPTIONS.split() if f"`:{name}`" not in text]
    assert [] == [name for name in ORIGINAL_EVENTS.split() if f"`{name}`" not in text]


def test_what_the_comparison_names_is_there() -> None:
    """Each test file, public name, event and worker option that docs/proletarian.md names exists."""
    text = (ROOT / "docs" / "proletarian.md").read_text()
    options = set(inspect.signature(QueueWorker).parameters)
    names = set(re.findall(r"`([A-Z]\w+[a-z]\w*)\b", text))
    known = {*proletarian_sa.__all__, *dir(events), "InterruptedException", "BaseException"}

    assert [] == [name for name in re.findall(r"`(test_\w+)`", text) if not (ROOT / "tests" / f"{name}.py").exists()]
    assert set() == names - known - {"SQLTransientException"}
    assert set() == set(re.findall(r"`(\w+)=[^`]*`", text)) - options - {"retry_in", "tables"}
