"""What is public: these names, each with words of its own."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import proletarian_sa

PUBLIC = [
    "ArchivedJob",
    "ArchivedJobMixin",
    "AsyncQueueWorker",
    "AsyncRunningJob",
    "Backoff",
    "Clock",
    "ConstantIds",
    "DatabaseIds",
    "DatabaseNotSupported",
    "ExponentialBackoff",
    "HandlerProcessLost",
    "Health",
    "Job",
    "JobIds",
    "JobInterrupted",
    "JobMixin",
    "JobRegistry",
    "JobTables",
    "JobTimeout",
    "LeaseLost",
    "ManualClock",
    "Outcome",
    "PayloadError",
    "PayloadTooLarge",
    "PlainJSON",
    "ProletarianError",
    "QueueWorker",
    "RetryStrategy",
    "RightsMissing",
    "RunningJob",
    "Serializer",
    "SessionNotYours",
    "TablesForeign",
    "TablesMissing",
    "TaggedJSON",
    "TransactionLost",
    "UUIDv4",
    "UUIDv7",
    "UnknownJobType",
    "WorkerLost",
    "__version__",
    "check_tables",
    "create_all",
    "default_tables",
    "drop_all",
    "enqueue",
    "enqueue_many",
    "process_next_job",
]

TOUCH_THE_DATABASE = {
    *("enqueue", "enqueue_many", "create_all", "drop_all", "check_tables", "process_next_job"),
    *("QueueWorker.start", "QueueWorker.stop", "QueueWorker.run", "RunningJob.session"),
    *("AsyncQueueWorker.start", "AsyncQueueWorker.stop", "AsyncQueueWorker.run", "AsyncRunningJob.session"),
}


def public_methods() -> Iterator[tuple[str, Any]]:
    """Return the methods and properties that the public classes define themselves, by qualified name."""
    for name in PUBLIC:
        value = getattr(proletarian_sa, name)
        if not inspect.isclass(value):
            continue
        for attribute, found in vars(value).items():
            member = getattr(found, "__func__", found)
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                yield f"{name}.{attribute}", member


def test_the_public_names():
    """These names are public, sorted, and no others: a new one is a decision."""
    assert PUBLIC == proletarian_sa.__all__
    assert sorted(PUBLIC) == PUBLIC
    assert len(set(PUBLIC)) == len(PUBLIC)
    for name in PUBLIC:
        assert getattr(proletarian_sa, name) is not None
    namespace: dict[str, Any] = {}
    exec("from proletarian_sa import *", namespace)  # noqa: S102 - that is what the list is for
    assert set(PUBLIC) <= set(namespace)


def test_what_is_not_listed_is_a_module_or_private():
    """Nothing else can be taken for public by accident."""
    others = {name for name, value in vars(proletarian_sa).items() if not inspect.ismodule(value) and not name.startswith("_")}

    assert set() == others - set(PUBLIC)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in ("__version__", "default_tables")])
def test_every_public_name_has_a_docstring(name: str):
    """Each class and function says what it is in a sentence of its own, not in one that it inherits."""
    value = getattr(proletarian_sa, name)
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__

    assert isinstance(text, str)
    assert text.strip().splitlines()[0].endswith((".", ":"))


def test_every_public_method_has_a_docstring():
    """So does each method and property that is not private."""
    assert [] == [name for name, member in public_methods() if not (member.__doc__ or "").strip()]


def test_what_touches_the_database_says_how():
    """What locks, flushes or commits says so in a line of its own."""
    documented = dict(public_methods()) | {name: getattr(proletarian_sa, name) for name in PUBLIC}

    assert set() == TOUCH_THE_DATABASE - set(documented)
    for name in sorted(TOUCH_THE_DATABASE):
        assert re.search(r"^\s*\*\*Transaction:\*\* \S", documented[name].__doc__ or "", re.MULTILINE), name


def test_options_are_keyword_only():
    """Whatever has a default is given by name, but for the payload and the handler's own arguments."""
    for name in (
        "enqueue",
        "enqueue_many",
        "create_all",
        "drop_all",
        "check_tables",
        "process_next_job",
        "QueueWorker",
        "AsyncQueueWorker",
        "JobTables",
    ):
        for parameter in inspect.signature(getattr(proletarian_sa, name)).parameters.values():
            if parameter.default is not parameter.empty and parameter.name != "payload":
                assert parameter.KEYWORD_ONLY is parameter.kind, f"{name}({parameter.name})"


def test_the_version_is_the_distributions():
    """`__version__` looks like a version."""
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", proletarian_sa.__version__)
