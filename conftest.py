"""Run the code of the README."""

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser


@pytest.fixture(scope="module")
def in_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Let a document's files fall into a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("document"))
        yield


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"], fixtures=["in_temporary_folder"]
).pytest()
