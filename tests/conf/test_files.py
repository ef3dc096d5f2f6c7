"""Every file in conf/ states its purpose, and every combination of them composes."""

import itertools
from pathlib import Path

import pytest
from helpers.fused import each_once, partly, seldom

from study.config.composed.compose import CONF
from study.config.jobs import build_study, compositions, parse_jobs
from study.errors import UsageError
from study.optimizers import OPTIMIZERS
from study.records import LEGAL_IN_WORKLOADS
from study.schedules import SCHEDULES
from study.settings import SAMPLERS

FILES = sorted(str(path.relative_to(CONF)) for path in CONF.rglob("*.yaml"))


def names(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def pairs(folder):
    return sorted(path.parts[-2:] for path in (CONF / folder).glob("*/*.yaml"))


@pytest.mark.parametrize("file", FILES)
def test_every_file_says_what_it_is_for(file):
    lines = [line for line in (CONF / file).read_text().splitlines() if line != "# @package _global_"]
    header = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    assert len(" ".join(header)) > 40
    if file.startswith("workload/"):
        assert any("Takes:" in line for line in header)
        assert any("Expect:" in line for line in header)


def test_every_registered_thing_has_its_file():
    assert names("optimizer") == sorted([*OPTIMIZERS, "torch"])
    assert names("schedule") == sorted(SCHEDULES)
    assert names("search") == sorted(SAMPLERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload", [pytest.param("mlp_digits"), *seldom(name for name in names("workload") if name != "mlp_digits")]
)
def test_every_workload_composes_with_every_optimizer_and_schedule(workload):
    for optimizer, schedule in each_once(OPTIMIZERS, SCHEDULES):
        assert composed(workload, f"optimizer={optimizer}", f"schedule={schedule}") == {(optimizer, schedule)}


@pytest.mark.slow
@pytest.mark.parametrize("workload", partly(names("workload"), 6, 1))
def test_every_workload_composes_with_the_optimizers_that_it_has_spaces_for(workload):
    own = names(f"space/{workload}") or ["momentum"]
    optimizers = composed(workload, f"optimizer={','.join(own)}")
    assert {optimizer for optimizer, _ in optimizers} == {*own}


ASKED = {
    "command": [
        "workload.train_examples=1000",
        "workload.command=train {batch_size} {steps} {seed} {log} {hyperparameters}",
        "goal=val/loss < 0.3",
    ]
}
"""Workload -> what its file leaves to the command line."""


def composed(workload, *overrides):
    """The (optimizer, schedule) pair of the requested studies; each study searches the hyperparameters of that pair."""
    found = set()
    for config in compositions([f"workload={workload}", *ASKED.get(workload, []), *overrides]):
        study = build_study(config, 64)
        asked = set(study.asked_hyperparameters)
        known = asked | {*study.optional_hyperparameters, *LEGAL_IN_WORKLOADS}
        assert asked <= set(study.search.space) <= known
        assert study.name == workload == Path(config.results).name
        found.add((study.optimizer, study.schedule))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "workload"), partly(itertools.product(names("preset"), ["mlp_digits", "resnet_cifar"]), 2)
)
def test_every_preset_composes(preset, workload):
    asked = [f"workload={workload}", f"preset={preset}", "optimizer=sgd,nesterov"]
    for job in parse_jobs(asked):
        momentum = job.study.search.space.get("momentum")
        assert momentum is None or (momentum.low == 0.9) is (preset == "paper")
        assert job.study.stopping == ("budget" if preset == "paper" else "race")
        assert (job.study.search.trials == 100) or preset != "paper"


@pytest.mark.parametrize(
    ("folder", "group"), [("space", "workload"), ("preset/workload", "preset"), ("preset/optimizer", "preset")]
)
def test_a_file_for_two_names_is_one_for_names_that_exist(folder, group):
    """Hydra composes these only if they exist, so that it would ignore a misspelt one."""
    each = names(folder.partition("/")[2] or "optimizer")
    assert pairs(folder)
    assert [(a, b) for a, b in pairs(folder) if a not in names(group) or Path(b).stem not in each] == []


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "file"), pairs("preset/workload"))
def test_a_preset_may_ask_a_workload_for_an_easier_goal(preset, file):
    workload = Path(file).stem
    asked, alone = ([f"workload={workload}", f"preset={chosen}"] for chosen in (preset, "none"))
    [easier], [goal] = ({job.study.goal for job in parse_jobs(each)} for each in (asked, alone))
    assert easier.metric == goal.metric
    assert easier.threshold > goal.threshold
    assert {job.study.goal for job in parse_jobs([*asked, f"goal='{goal}'"])} == {goal}


def test_a_search_space_may_be_that_of_another_workload():
    [config, *_] = compositions(["space=nqm/sgd", "optimizer=sgd"])
    assert config.search.space.learning_rate.low == 0.03


OWN = {
    "workload/my_mine.yaml": """
workload: {_target_: mine.Mine, name: my_mine, train_examples: 100}
goal: val/error < 0.5
batch_sizes: [4, 16]
budget: {epochs: 1, steps: 10}
""",
    "space/my_mine/sgd.yaml": "search: {space: {learning_rate: {low: 0.125}}}",
    "preset/my_short.yaml": "race_factor: 1.25",
    "preset/workload/my_short/my_mine.yaml": "goal: val/error < 0.75",
    "preset/optimizer/my_short/sgd.yaml": "search: {space: {learning_rate: {high: 7}}}",
}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# @package _global_\n{text}\n")


def own(folder, *overrides):
    """(goal, race factor, lowest and highest learning rate) of the user's own workload."""
    [config] = compositions(["workload=my_mine", "optimizer=sgd", *overrides], folder)
    rate = config.search.space.learning_rate
    return config.goal, config.race_factor, rate.low, rate.high


@pytest.mark.slow
def test_a_folder_of_the_users_own_has_the_same_layout(tmp_path):
    write(tmp_path, OWN)
    assert own(tmp_path) == ("val/error < 0.5", 2.0, 0.125, 10.0)
    assert own(tmp_path, "preset=my_short") == ("val/error < 0.75", 1.25, 0.125, 7)


@pytest.mark.parametrize(
    ("old", "new", "group"),
    [
        ("space/my_mine_sgd.yaml", "space/my_mine/sgd.yaml", "workload"),
        ("preset_workload/my_short_my_mine.yaml", "preset/workload/my_short/my_mine.yaml", "preset"),
        ("preset_space/my_short_adam.yaml", "preset/optimizer/my_short/adam.yaml", "preset"),
    ],
)
def test_files_under_the_joined_names_of_older_versions_are_refused(tmp_path, old, new, group):
    write(tmp_path, OWN | {old: ""})
    said = f"^{tmp_path / old} is not read: its {group} is a folder now; move it to {tmp_path / new}.$"
    with pytest.raises(UsageError, match=said):
        own(tmp_path)


def test_other_files_in_these_folders_are_let_alone(tmp_path):
    write(tmp_path, OWN | {"space/notes_on_sgd.yaml": ""})
    assert own(tmp_path)
