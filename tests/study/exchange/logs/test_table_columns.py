"""A hyperparameter never takes the place of a column of the tables: S(B), its interval and counts would be lost."""

import re

import pytest
from helpers.estimated import estimated
from helpers.fused import partly, seldom

from analysis import export
from analysis.load import load
from analysis.question.columns import TABLE_COLUMNS
from analysis.tables import trials
from study.exchange.importing import ImportRefused
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import LABELS, OF_SETTINGS, ROLES, Asked
from study.exchange.readers.tables import PROJECT

GIVEN = sorted(TABLE_COLUMNS - {name for known in ROLES.values() for name in known} - {*ROLES, *LABELS})
RUNS = [(run, size) for size in (8, 16, 32) for run in range(4)]


def read(tmp_path, name):
    """(the studies, what was said) of runs with a column of this name, which differs between them."""
    rows = [f"{s}-{r},{s},{step},{1 - step / 100 * (r + 1)},{(r + 1) / 7}\n" for r, s in RUNS for step in (10, 20, 30)]
    (tmp_path / "log.csv").write_text("".join([f"run,batch_size,step,val/loss,{name}\n", *rows]))
    said = import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    return list(load(tmp_path / "results")), said


def tables(studies):
    """Those that have a column for each hyperparameter."""
    return estimated(studies).steps, trials.trials(studies), export.trials(studies[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", seldom(partly(GIVEN, 6)))
def test_a_column_of_a_log_leaves_the_columns_of_the_tables_alone(tmp_path, name):
    (tmp_path / "plain").mkdir()
    ours, _ = read(tmp_path / "plain", "alpha")
    theirs, said = read(tmp_path, name)
    for expected, table in zip(tables(ours), tables(theirs), strict=True):
        found = table.rename(columns={f"own_{name}": "alpha"})[list(expected)]
        assert found.drop(columns="workload").astype(str).equals(expected.drop(columns="workload").astype(str))
    assert f"Read own_{name} from {name}." in said.read


@pytest.mark.parametrize("role", OF_SETTINGS)
def test_a_column_whose_role_another_one_has_is_no_hyperparameter(tmp_path, role):
    lines = "".join(
        f"{run},{run + 2},8,8,{10 * (1 + step)},{0.9 / (1 + step)}\n" for run in range(4) for step in range(3)
    )
    size = "batch_size" if role != "batch_size" else "size"
    (tmp_path / "log.csv").write_text(f"run,{role},given,{size},step,val/loss\n{lines}")
    asked = Asked.parse(maps=[f"{role}=given", *(["batch_size=size"] if role == "batch_size" else [])][-1:])
    said = import_log(tmp_path / "log.csv", tmp_path / "results", asked, ["val/loss<0.5"])
    assert not any("own_" in line for line in [*said.read, *said.warnings])
    assert all(role not in name for study in load(tmp_path / "results") for name in study.hyperparameters)


DESCRIBING = sorted({*LABELS} - {*ROLES["run"], PROJECT})  # of projects more is said (test_projects.py)


@pytest.mark.parametrize("name", partly([*DESCRIBING, "Duration"], 7))
def test_a_name_that_describes_runs_is_left_out_with_its_cure(tmp_path, name):
    [first, *_], said = read(tmp_path, name)
    assert [*first.hyperparameters] == []
    [line] = [line for line in said.warnings if "such names describe a run" in line]
    assert line.endswith(f": {name}. If one is a hyperparameter: --map {name.lower()}={name}")
    asked = Asked.parse(maps=line.rpartition("--map ")[2:])
    again = import_log(tmp_path / "log.csv", tmp_path / "again", asked, ["val/loss<0.5"])
    assert [*next(iter(load(tmp_path / "again"))).hyperparameters] == [name.lower()]
    assert not any("such names" in line for line in again.warnings)


def test_a_column_is_left_out_for_one_reason(tmp_path):
    """It changes during run 0 alone, and its name describes a run."""
    (tmp_path / "logs").mkdir()
    for run in range(3):
        rows = [f"8,{10 * step},{0.6 - step / 10},{run or step}" for step in (1, 2)]
        (tmp_path / f"logs/{run}.csv").write_text("\n".join(["batch_size,step,val/loss,duration", *rows]))
    said = import_log(tmp_path / "logs", tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    [line] = [line for line in said.warnings if "duration" in line]
    assert "change during a run" in line


RATES = {  # columns -> the one that the learning rate is, and whether it is a peak
    "train/lr": ({"train/lr": [1, 1]}, "train/lr", False),
    "train/learning_rate, scheduled": ({"train/learning_rate": [2, 1]}, "train/learning_rate", True),
    "lr, scheduled": ({"lr": [2, 1]}, "lr", True),
    "the settings first": ({"lr": [3, 3], "train/learning_rate": [2, 1]}, "lr", False),
    "the settings last": ({"train/learning_rate": [2, 1], "optim/lr": [3, 3]}, "optim/lr", False),
}


@pytest.mark.parametrize("kind", RATES)
def test_a_learning_rate_that_is_logged_with_the_split_counts_unless_the_settings_say_it(tmp_path, kind):
    columns, chosen, is_peak = RATES[kind]
    rows = [
        ",".join(
            map(str, [run, 8, 10 * step, 0.6 - step / 10, *((run + 1) * each[step - 1] for each in columns.values())])
        )
        for run in range(4)
        for step in (1, 2)
    ]
    (tmp_path / "log.csv").write_text("\n".join([f"run,batch_size,step,val/loss,{','.join(columns)}", *rows]))
    said = import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    [study] = load(tmp_path / "results")
    assert sorted(study.trials["learning_rate"]) == [(run + 1) * max(columns[chosen]) for run in range(4)]
    assert [*study.hyperparameters] == ["learning_rate"]
    assert f"Read learning_rate from {chosen}." in said.read
    assert [line for line in said.read if "highest" in line] == (
        [f"The highest {chosen} that a run logged is its learning_rate; between two logs it may be higher."]
        if is_peak
        else []
    )


def test_every_column_beside_hyperparameters_is_known(tmp_path):
    studies, _ = read(tmp_path, "alpha")
    for table in (*tables(studies), studies[0].trials):
        assert {*table} - {"alpha"} <= TABLE_COLUMNS


@pytest.mark.parametrize("asked", [{"maps": ["low=alpha"]}, {"sets": ["low=3"]}, {"pattern": "b{batch_size}_{low}"}])
def test_the_user_cannot_name_a_hyperparameter_so(asked):
    with pytest.raises(ImportRefused, match=re.escape("a hyperparameter low would share its name with a column")):
        Asked.parse(**asked)
