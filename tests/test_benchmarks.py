"""The benchmarks' command: its arguments, its plan, its table, and runs of it in the smallest size."""

import fnmatch
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import chosen, main
from benchmarks.arguments import parse
from benchmarks.environments import ROOT
from benchmarks.measure import Outcome, Run, Stopwatch, percentile
from benchmarks.plan import plan
from benchmarks.quote import DOCUMENT, markers, quote
from benchmarks.results import Results, tables
from benchmarks.runner import run_all
from benchmarks.servers import KINDS, SETTINGS, durable, start
from benchmarks.sizes import FORMS
from benchmarks.targets import TARGETS, Target, judge
from tests.servers.kinds import RECIPES
from tests.servers.launch import make_folder
from tests.servers.recipe import Recipe


def outcome(name: str, *numbers: dict[str, float]) -> Outcome:
    """Make up what came of a run."""
    run = Run(name=name, environment="ours", function="somewhere:something", database="sqlite", repeats=len(numbers))
    return Outcome(run=run, numbers=list(numbers))


def made_up_results() -> Results:
    """Make up the results of a run of the command: one target met, one missed, and a run that failed."""
    failed = outcome("sqlite: drain, huey, workers 1")
    failed.errors.append("Traceback\nValueError: no queue")
    return Results(
        form="tiny",
        date="2026-01-31",
        seconds=60.0,
        commit="abc",
        machine={"processor": "a fast one"},
        servers={"sqlite": "3.40"},
        settings={"sqlite": "journal_mode=WAL"},
        versions={"ours": {"python": "3.13", "sqlalchemy": "2.1"}, "huey": {"huey": "3"}},
        outcomes=[
            outcome("postgresql: drain, leased, 4 threads", {"jobs/s": 30.0}, {"jobs/s": 90.0}, {"jobs/s": 31.0}),
            outcome("postgresql: drain, leased, 4 threads, 2 processes", {"jobs/s": 1000.0}),
            outcome("postgresql: drain, PgQueuer, asyncpg, batch 500", {"jobs/s": 10.0}),
            outcome("postgresql: drain, Oban, limit 500", {"jobs/s": 10.0}),
            failed,
        ],
    )


def test_the_quick_form_is_what_one_gets() -> None:
    """Without arguments the quick form runs on all databases."""
    asked = parse([])

    assert "quick" == asked.form
    assert {run.database for run in chosen(asked)} == set(KINDS)


def test_a_run_is_chosen_by_database_and_name() -> None:
    """Databases and patterns of names narrow the choice down."""
    names = [run.name for run in chosen(parse(["tiny", "--database", "sqlite", "--only", "*leased*", "--only", "*huey*"]))]

    assert [
        "sqlite: drain, leased, 1 threads",
        "sqlite: drain, leased, 4 threads",
        "sqlite: drain, huey, workers 1",
    ] == names


def test_fewer_repeats_can_be_asked_for() -> None:
    """`--repeats` is an upper bound: what runs once does not run more often for it."""
    usual = {run.name: run.repeats for run in chosen(parse(["full"]))}
    fewer = {run.name: run.repeats for run in chosen(parse(["full", "--repeats", "2"]))}

    assert {name: min(repeats, 2) for name, repeats in usual.items()} == fewer
    assert 2 < max(usual.values())


def test_runs_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """`--list` prints names and runs nothing."""
    assert 0 == main(["tiny", "--list", "--only", "*: enqueue_many"])
    assert [f"{kind}: enqueue_many" for kind in KINDS] == capsys.readouterr().out.splitlines()


def test_a_pattern_that_matches_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A choice of nothing is a mistake, and the message says how to see what there is."""
    assert 2 == main(["tiny", "--only", "nothing"])
    assert "--list" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMS)
def test_names_of_runs_are_unique(form: str) -> None:
    """A name says one run."""
    names = [run.name for run in plan(form, KINDS)]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.what)
def test_every_target_is_measured(target: Target) -> None:
    """Each target finds runs for both of its sides, in the shortest form too."""
    names = [run.name for run in plan("tiny", KINDS)]

    assert fnmatch.filter(names, target.ours)
    assert target.against is None or fnmatch.filter(names, target.against)
    assert (target.least is None) != (target.most is None)


def test_medians_and_the_best_settings_are_compared() -> None:
    """A ratio is of the medians, of the best run on either side; several processes are not compared with one."""
    rows = {row.target.what: row for row in judge(made_up_results().outcomes)}
    met, missed = rows["leased, one process, against PgQueuer"], rows["leased, one process, against Oban"]

    assert (31.0, 10.0, 3.1, True) == (met.ours, met.against, met.ratio, met.met)
    assert (3.1, False) == (missed.ratio, missed.met)
    assert rows["leased, one process, against procrastinate"].met is None


def test_less_is_better_where_a_target_says_most() -> None:
    """Of latencies the shortest counts, and the target is a bound from above."""
    outcomes = [
        outcome("postgresql: pick-up, worker in another process", {"median ms": 2.1}),
        outcome("postgresql: bare NOTIFY and claim", {"median ms": 1.0}),
    ]
    row = next(row for row in judge(outcomes) if "median" in row.target.what)

    assert (2.1, False) == (row.ratio, row.met)


def test_the_table_has_target_beside_ratio() -> None:
    """What is printed shows ratio, target and verdict in one line, the failed runs and the versions."""
    printed = tables(made_up_results())
    line = next(line for line in printed.splitlines() if "against PgQueuer" in line)

    assert ["31", "10", "3.1", "≥ 3", "yes"] == [cell.strip() for cell in line.split("|")][2:-1]
    assert "- sqlite: drain, huey, workers 1: ValueError: no queue" in printed
    assert "huey 3" in printed


def test_a_profile_has_a_table_of_its_own() -> None:
    """What each part of a job costs stands together, with the rate that one interpreter allows and with the server's part."""
    results = made_up_results()
    parts = {"claim µs/job": 2.0, "run µs/job": 5.0, "finish µs/job": 3.0, "server µs/job": 12.0}
    results.outcomes = [outcome("postgresql: drain, leased, 1 threads", {"jobs/s": 50_000.0, **parts})]
    printed = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables(results).splitlines() if line.startswith("|")]

    assert ["postgresql: drain, leased, 1 threads", "1", "jobs/s 50,000", "50,000 to 50,000"] in printed
    assert ["postgresql: drain, leased, 1 threads", "2", "5", "3", "10", "100,000", "12"] in printed


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    """The JSON holds all that is printed."""
    made_up_results().write(tmp_path / "r.json")

    assert made_up_results() == Results.read(tmp_path / "r.json")
    assert [3.1, 3.1] == [row["ratio"] for row in json.loads((tmp_path / "r.json").read_text())["targets"] if row["ratio"]]


def test_figures_stand_between_markers(tmp_path: Path) -> None:
    """Quoting replaces what stands between the markers and nothing else; a second time changes nothing."""
    made_up_results().write(tmp_path / "r.json")
    document, (begin, end), (begin_others, end_others) = tmp_path / DOCUMENT, markers(made_up_results().form), markers("others")
    document.parent.mkdir()
    others = f"{begin_others}\nfigures of others\n{end_others}"
    document.write_text(f"before\n{begin}\nold figures\n{end}\nbetween\n{others}\nafter\n")
    quote(tmp_path / "r.json", tmp_path)
    once = document.read_text()
    quote(tmp_path / "r.json", tmp_path)

    assert once == document.read_text()
    assert "old figures" not in once
    assert once.startswith(f"before\n{begin}\n")
    assert once.endswith(f"{end}\nbetween\n{others}\nafter\n")
    assert "against PgQueuer" in once


@pytest.mark.parametrize("form", ["quick", "full"])
def test_the_page_has_a_place_for_figures(form: str) -> None:
    """The documentation has both markers of a form once."""
    text = (ROOT / DOCUMENT).read_text()

    assert [1, 1] == [text.count(marker) for marker in markers(form)]


def test_a_document_without_markers_is_left_alone(tmp_path: Path) -> None:
    """Without markers nothing is written, and the error names them."""
    made_up_results().write(tmp_path / "r.json")
    document = tmp_path / DOCUMENT
    document.parent.mkdir()
    document.write_text("mine")

    with pytest.raises(ValueError, match="figures, tiny: begin"):
        quote(tmp_path / "r.json", tmp_path)
    assert "mine" == document.read_text()


@pytest.mark.parametrize(
    ("kind", "durability"),
    [
        ("postgresql", {"--fsync": "on", "--synchronous_commit": "on", "--full_page_writes": "on"}),
        ("mysql", {"--innodb-flush-log-at-trx-commit": "1", "--innodb-doublewrite": "ON"}),
        ("mariadb", {"--innodb-flush-log-at-trx-commit": "1", "--innodb-doublewrite": "ON"}),
    ],
)
def test_servers_are_durable(kind: str, durability: dict[str, str]) -> None:
    """What makes tests fast by risking data is put right, after it on the command line, where the last word counts."""
    risky = [f"{option}={'off' if value == 'on' else '0'}" for option, value in durability.items()]
    command = durable(kind, Recipe(url="", command=["server", *risky])).command
    last = dict(option.partition("=")[::2] for option in command)

    assert durability == {option: last[option] for option in durability}
    assert {*SETTINGS} <= {*RECIPES}


def test_servers_files_are_not_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers get a folder beside the databases, whether the environment names one or not, and it names what it did afterwards."""
    monkeypatch.setattr("benchmarks.servers.CACHE", tmp_path)
    monkeypatch.delenv("TMPDIR", raising=False)
    with start(["sqlite"]) as place:
        folder = make_folder()
        folder.rmdir()

    assert place.folder.parent == folder.parent
    assert "TMPDIR" not in os.environ


def test_the_quick_scenarios_run_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run gets a process and a database of its own, and gives numbers."""
    monkeypatch.setattr("benchmarks.servers.CACHE", tmp_path)
    wanted = ("sqlite: drain, leased, 4 threads", "sqlite: enqueue_many")
    runs = [run for run in plan("tiny", ["sqlite"]) if run.name in wanted]
    with start(["sqlite"]) as place:
        outcomes = run_all(runs, place, patience=60.0, python=lambda _: Path(sys.executable))

    assert [[], []] == [outcome.errors for outcome in outcomes]
    assert all(value > 0 for outcome in outcomes for value in outcome.numbers[0].values())
    assert [] == list(tmp_path.iterdir())


def test_the_scenario_for_asyncio_runs_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the driver of another database it is the same, and its numbers are those of a drain."""
    monkeypatch.setattr("benchmarks.servers.CACHE", tmp_path)
    (run,) = (run for run in plan("tiny", KINDS) if "async, leased" in run.name)
    on_sqlite = replace(run, database="sqlite", options={**run.options, "driver": "aiosqlite"})
    with start(["sqlite"]) as place:
        (outcome,) = run_all([on_sqlite], place, patience=60.0, python=lambda _: Path(sys.executable))

    assert [] == outcome.errors
    assert {"jobs/s", "CPU µs/job", "claim µs/job", "run µs/job", "finish µs/job"} == {*outcome.numbers[0]}
    assert all(value > 0 for value in outcome.numbers[0].values())


def test_a_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a run is kept with its message and stops no other run; one that takes too long is ended."""
    monkeypatch.setattr("benchmarks.servers.CACHE", tmp_path)
    sound = Run(name="sound", environment="ours", function="builtins:dict", database="sqlite")
    wrong = replace(sound, name="wrong", options={"sep": "x"}, function="builtins:no_such_function", repeats=2)
    slow = replace(sound, name="slow", function="tests.test_benchmarks:sleep")
    with start(["sqlite"]) as place:
        place.missing["mysql"] = "it is not there"
        runs = [wrong, slow, replace(sound, name="missing", database="mysql")]
        outcomes = run_all(runs, place, patience=2.0, python=lambda _: Path(sys.executable))

    assert "no_such_function" in outcomes[0].errors[0]
    assert ["not done within 2 s"] == outcomes[1].errors
    assert ["no mysql: it is not there"] == outcomes[2].errors


def test_ctrl_c_keeps_what_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted command reports the runs that it has made, and makes no other."""
    monkeypatch.setattr("benchmarks.servers.CACHE", tmp_path)
    asked: list[str] = []

    def interrupt(environment: str) -> Path:
        asked.append(environment)
        raise KeyboardInterrupt

    run = Run(name="missing", environment="a", function="builtins:dict", database="mysql")
    runs = [run, *(replace(run, name=name, environment=name, database="sqlite") for name in ("first", "second"))]
    with start(["sqlite"]) as place:
        place.missing["mysql"] = "it is not there"
        outcomes = run_all(runs, place, patience=60.0, python=interrupt)

    assert [1, 0, 0] == [len(outcome.errors) for outcome in outcomes]
    assert ["first"] == asked


def sleep(_url: str) -> None:
    """Be a run that does not come to an end."""
    time.sleep(600)


def test_a_stopwatch_counts_to_the_last_job() -> None:
    """The rate is over all jobs, from the first call to the last."""
    watch = Stopwatch(20)
    for _ in range(20):
        watch.tick()

    assert watch.done.is_set()
    assert watch.started <= watch.marked <= watch.ended
    assert 20 / (watch.ended - watch.started) == watch.rate()


def test_a_stopwatch_does_not_wait_for_a_dead_worker() -> None:
    """A worker that has ended by itself fails the run, and says why."""

    class Dead:
        error = LookupError("the reason")

    with pytest.raises(LookupError, match="the reason"):
        Stopwatch(20).wait_for(Dead())


def test_a_percentile_is_one_of_the_values() -> None:
    """The median of few values and the last hundredth are values that occurred."""
    assert 3.0 == percentile([5.0, 1.0, 3.0, 2.0, 4.0], 0.5)
    assert 5.0 == percentile([5.0, 1.0, 3.0, 2.0, 4.0], 0.99)
