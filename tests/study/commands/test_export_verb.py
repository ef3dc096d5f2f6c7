"""What is handed on reads back as it was, and is whole or not there."""

from dataclasses import replace

import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.fused import partly

from analysis.counting import COMPLETE, INFEASIBLE, Branch
from analysis.errors import Unwritten
from analysis.export import FORMATS, ExportError, export
from analysis.load import load
from analysis.tables import audits, steps_to_result, trials
from study.__main__ import main
from study.commands import exchange
from study.exchange.importing import ImportRefused, import_released
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked


@pytest.fixture
def own(tmp_path, make_study, make_curve, write_study):
    """Studies of our own: two batch sizes, trials that reach the goal, miss it, diverge or fell behind."""

    def write(stopping):
        for batch_size, ends in {8: [90, "bad", 40, None, 90, 20, None], 16: ["bad", None, None, None, None]}.items():
            study = make_study(batch_size=batch_size, stopping=stopping, name="tiny", examples=64)
            curves = [
                make_curve(study, n, **({"bad": 7} if end == "bad" else {"reaches": end} if end else {}))
                for n, end in enumerate(ends)
            ]
            write_study(tmp_path / "own", study, curves)
        return tmp_path / "own"

    return write


@pytest.fixture
def back(tmp_path):
    """Own results, exported and imported again."""

    def back():
        export(tmp_path / "own", tmp_path / "released", "batch_science")
        assert not import_released(tmp_path / "released", tmp_path / "back")
        return tmp_path / "back"

    return back


@pytest.mark.parametrize("stopping", partly(["budget", "goal", "race"], 3))
def test_a_round_trip_changes_no_answer(own, back, tmp_path, stopping):
    results = own(stopping)
    both = (results, back())
    before, after = (steps_to_result.table(load(folder)) for folder in both)
    assert set(after["stopping"]) == {"recorded"}
    pd.testing.assert_frame_equal(*(trials.trials(load(folder)) for folder in both))
    pd.testing.assert_frame_equal(before.drop(columns="stopping"), after.drop(columns="stopping"), check_dtype=False)
    for study, again in zip(*map(load, both), strict=True):
        assert again.question["search"]["space"] == study.question["search"]["space"]
        assert again.question["early_stopping"] == again.stops_early == study.stops_early
        assert again.trials[again.hyperparameters].equals(study.trials[study.hyperparameters])
    export(tmp_path / "back", tmp_path / "again", "batch_science")
    first, second = (
        {path.relative_to(top): path.read_bytes() for path in top.rglob("*.*")}
        for top in (tmp_path / "released", tmp_path / "again")
    )
    assert first == second


def test_a_race_that_was_narrower_stays_so(tmp_path, back, make_study, make_curve, write_study):
    study = make_study(trials=4, stopping="race", race_factor=1.5)
    write_study(tmp_path / "own", study, [make_curve(study, i, reaches=end) for i, end in enumerate([20, 36, 38, 39])])
    for [each] in (load(tmp_path / "own"), load(back())):
        assert each.race_factor == 1.5
        assert audits.near_best(each) == (1, 1.5)


def test_names_survive_a_round_trip(tmp_path, back, make_study, make_curve, write_study):
    space = {"learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"}}
    study = make_study(name="net.v2,b", optimizer="torch.optim.RAdam", space=space)
    write_study(tmp_path / "own", study, [make_curve(study, index, reaches=20) for index in range(4)])
    assert [(each.workload, each.optimizer) for each in load(back())] == [("net.v2,b", "torch.optim.RAdam")]


def test_trials_that_stopped_at_their_goal_do_not_answer_a_tighter_one(own, tmp_path):
    export(own("race"), tmp_path / "released", "batch_science")
    with pytest.raises(ImportRefused, match=r"< 0.05 needs stopping=budget, since trials stopped at .* < 0.1"):
        import_released(tmp_path / "released", tmp_path / "back", ["val/classification_error<0.05"])
    import_released(tmp_path / "released", tmp_path / "back", ["val/classification_error<0.2"])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tidy_tables_hold_every_search_and_every_measurement(own, tmp_path, form):
    results = own("budget")
    export(results, tmp_path / "out", form)
    read = pd.read_csv if form == "csv" else pd.read_parquet
    trials, rows = (read(tmp_path / "out" / f"{name}.{form}") for name in ("trials", "measurements"))
    studies = list(load(results))
    assert len(trials) == sum(len(study.trials) for study in studies)
    assert len(rows) == sum(len(study.measurements) for study in studies)
    assert list(trials["status"][:2]) == [COMPLETE, INFEASIBLE]
    assert trials["steps_to_goal"].min() == 20
    assert trials["learning_rate"].tolist() == [v for study in studies for v in study.trials["learning_rate"]]
    keys = ["workload", "optimizer", "batch_size", "repeat", "budget_multiple", "stage", "trial"]
    assert not trials.duplicated(keys).any()
    assert len(rows.merge(trials, on=keys)) == len(rows)
    if form == "parquet":
        assert pq.ParquetFile(tmp_path / "out" / "measurements.parquet").num_row_groups == 2


OTHERS = [
    Branch(repeat=1),
    Branch(budget=2.0),
    Branch(widened=("learning_rate.high",)),
    Branch(widened=("learning_rate.low",)),
    Branch(rerun=0),
    Branch(rerun=0, rule="linear", base=4),
    Branch(rerun=0, rule="linear", base=16),
    Branch(rerun=0, certify=20),
    Branch(rerun=0, certify=30),
]
"""Searches of one study, besides the first; together they use every way in which two can differ in one folder."""


@pytest.fixture
def several(tmp_path, make_study, make_curve, write_study):
    """Write these searches of one study, two trials each, and export them as CSV."""

    def several(branches):
        study = make_study(batch_size=8, stopping="budget", name="tiny", examples=64, trials=2)
        for branch in branches:
            made = replace(study, branch=branch)
            write_study(tmp_path / "own", made, [make_curve(made, n, reaches=20) for n in range(2)])
        export(tmp_path / "own", tmp_path / "out", "csv")
        return tmp_path / "out"

    return several


def test_no_two_searches_look_alike_in_the_tidy_tables(several):
    folder = several([Branch(), *OTHERS])
    trials, rows = (pd.read_csv(folder / f"{name}.csv") for name in ("trials", "measurements"))
    search = ["workload", "optimizer", "batch_size", "search"]
    assert not trials.duplicated([*search, "trial"]).any()
    assert not rows.duplicated([*search, "trial", "step"]).any()
    assert trials["search"].drop_duplicates().fillna("").tolist() == ["", *sorted(each.path for each in OTHERS)]
    assert trials["certify"].dropna().tolist() == [20, 20, 30, 30]


@pytest.mark.parametrize("other", OTHERS, ids=lambda branch: branch.path)
def test_the_first_search_alone_is_imported_from_the_tidy_tables(several, tmp_path, other):
    import_log(several([Branch(), other]), tmp_path / "back", Asked(), ["val/classification_error<0.1"])
    [back], [own] = ([each for each in load(tmp_path / name) if each.branch == Branch()] for name in ("back", "own"))
    assert back.hyperparameters == own.hyperparameters
    assert back.trials["learning_rate"].tolist() == own.trials["learning_rate"].tolist()


def test_an_export_is_whole_or_not_there_and_never_among_other_files(own, tmp_path, monkeypatch):
    results = own("race")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("")
    with pytest.raises(ExportError, match="empty folder"):
        export(results, tmp_path / "out", "csv")
    with pytest.raises(ExportError, match="batch_science, csv, parquet, but got 'xml'"):
        export(results, tmp_path / "new", "xml")

    def full(study):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analysis.export.measurements", full)
    with pytest.raises(Unwritten, match="No space left on device; make room"):
        export(results, tmp_path / "new", "csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "own"]


NAMES = [f"tiny/momentum/{size}" for size in (8, 16, 32, 64, 128)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("trained", "said"),
    [
        ({8: 2, 16: 2}, ""),
        ({8: 2, 16: 1}, f"1 of 2 searches: {NAMES[1]}. "),
        ({8: 0, 16: 1}, f"2 of 2 searches: {NAMES[0]} and {NAMES[1]}. "),
        (dict.fromkeys((8, 16, 32, 64, 128), 1), f"5 of 5 searches: {', '.join(NAMES[:3])} and 2 more. "),
    ],
)
def test_an_export_names_the_searches_that_lack_trials(
    tmp_path, make_study, make_curve, write_study, capsys, form, trained, said
):
    for size, ended in trained.items():
        study = make_study(batch_size=size, stopping="budget", name="tiny", examples=256, trials=2)
        write_study(tmp_path / "own", study, [make_curve(study, n, reaches=20) for n in range(ended)])
    assert main(["export", str(tmp_path / "own"), str(tmp_path / "out"), "--format", form]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(f"Trials are missing in {said}`study status`" if said else "Exported: ")


BESIDE = ["verified/tiny/sgd+ramp/8", *(f"branched/tiny/sgd/8-{n}/linear-4096" for n in range(3))]


@pytest.mark.parametrize("form", partly(["csv", "parquet"], 2))
@pytest.mark.parametrize("count", partly([0, 1, 3, 4], 2))
def test_tidy_tables_say_which_folders_they_leave_out(tmp_path, make_study, make_curve, write_study, form, count):
    study = make_study(batch_size=8, name="tiny", examples=64, trials=1)
    for folder in [".", *BESIDE[:count]]:
        write_study(tmp_path / "own" / folder, study, [make_curve(study, 0, reaches=20)])
    said = export(tmp_path / "own", tmp_path / "tables", form)
    assert [each.startswith("Left out: the trainings of `study verify` and `study branch`") for each in said] == (
        [True] * (count > 0)
    )
    assert all(str(tmp_path / "own" / folder) in said[0] for folder in BESIDE[: min(count, 3)])
    assert [each.endswith(" and 1 more.") for each in said] == [count == 4] * (count > 0)
    for number, folder in enumerate(BESIDE[:count]):
        assert export(tmp_path / "own" / folder, tmp_path / f"tables-{number}", form) == []


def test_the_released_layout_names_a_study_whose_first_search_is_gone(tmp_path, make_study, make_curve, write_study):
    for size, branch in {8: Branch(), 16: Branch(rerun=0)}.items():
        study = replace(make_study(batch_size=size, name="tiny", examples=64, trials=1), branch=branch)
        write_study(tmp_path / "own", study, [make_curve(study, 0, reaches=20)])
    [said] = export(tmp_path / "own", tmp_path / "released", "batch_science")
    assert said.startswith("tiny, momentum, batch size 16: its first search is missing")
    assert export(tmp_path / "own", tmp_path / "tables", "csv") == []


@pytest.mark.slow
def test_from_the_command_line(own, tmp_path, capsys):
    assert exchange.FORMATS == FORMATS
    assert main(["export", str(own("race")), str(tmp_path / "released")]) == 0
    (tmp_path / "released/tiny/tiny/momentum/8/0/metadata.json").unlink()
    assert main(["import", str(tmp_path / "released"), str(tmp_path / "back")]) == 0
    said = capsys.readouterr().out
    assert "no metadata.json: left out (1 trial: 0)" in said
    assert "2 studies with" in said
    assert main(["status", str(tmp_path / "back")]) == 0
    assert main(["report", str(tmp_path / "back")]) == 0
    page = (tmp_path / "back" / "report.html").read_text()
    assert "no metadata.json: left out (1 trial: 0)" in page
    assert "only 4 of the 4" not in page
    assert main(["import", str(tmp_path / "released"), str(tmp_path / "other"), "--goal", "x:y"]) == 2
    assert "a goal must read" in capsys.readouterr().err
