"""The code of the README and of docs/ runs, each document from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from sybil import Document, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    document = Sybil(parsers=[PythonCodeBlockParser()], path=str(ROOT)).parse(path)
    run(document)


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
    document = Sybil(parsers=[PythonCodeBlockParser()], path=str(ROOT)).parse(ROOT / "README.md")
    run(document, 1)

    assert "welcome, ada@example.com\n" == capsys.readouterr().out
