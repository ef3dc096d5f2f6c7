"""A key of the command line that would do nothing is refused with its cure; one of a file gives way."""

import pytest
from helpers.fused import partly

from study import plan
from study.config import idle
from study.config.composed.schema import every_key
from study.config.jobs import parse_jobs
from study.errors import UsageError

FUSE = "is for trials that train at once, but got engine"
COMMAND = ["workload=command", "workload.name=mine", "workload.train_examples=99", "goal=val/loss < 1", "batch_size=8"]
COMMAND += ["workload.command=train {log} {seed} {steps} {batch_size} {learning_rate} {momentum}"]
IDLE = [
    (["search=refine", "search.trials=20"], ["search.trials=20 is for other samplers", "choose search=sobol."]),
    (["search=refine", "search.max_launches=20"], ["search.max_launches=20 is for other samplers"]),
    (["search=refine", "search.extend=true"], ["search.extend=true is for other samplers", "search.extend_limit=0"]),
    (["search=refine", "search.reruns=3"], ["give search.confirm=3"]),
    (
        ["search=sobol", "search.confirm=7"],
        ["is for search=refine: ", "give search.reruns=7, or choose search=refine."],
    ),
    (["search.trials=20", "search.confirm=7"], ["search.confirm=7 is for search=refine: ", "give search.reruns=7"]),
    (
        ["preset=quick", "search.refine=[4,3]"],
        ["is for search=refine: ", "give search.trials, or choose search=refine"],
    ),
    (["search=tpe", "search.pool=false"], ["search.pool=false is for search=refine: "]),
    (
        ["search=sobol", "search.extend_factor=2"],
        ["search.extend_factor=2 is for ", "add search.extend=true, or leave"],
    ),
    (["preset=quick", "+search.extend_limit=1"], ["search.extend_limit=1 is for ", "but got search=sobol without"]),
    (
        ["search=sobol", "search.extend=true", "search.extend_limit=0"],
        ["search.extend=true widens nothing with search.extend_limit=0; raise search.extend_limit, or"],
    ),
    (["search.until_cost=4"], ["search.until_cost=4 limits ", "but got no search.until; add search.until='width 1.5'"]),
    (
        ["stopping=goal", "race_factor=3"],
        ["race_factor=3 is for stopping=race, but got stopping=goal; leave it out, or"],
    ),
    (["stopping=goal,budget", "race_factor=3"], ["race_factor=3 is for stopping=race, but got stopping=goal"]),
    (["batch_sizes=[8,16]", "batch_size=8"], ["batch_sizes=[8,16] is not used: batch_size=8 chooses the batch sizes"]),
    (
        ["optimizer=sgd", "optimizer.no_decay=[bias]"],
        ["optimizer.no_decay=[bias] says ", "search.space.weight_decay=0.01"],
    ),
    (["track.trials=true"], ["track.trials=true is for trackers, but got track=none; add one, such as track=tensor"]),
    (["engine=serial", "engine.lanes=4"], [f"engine.lanes=4 {FUSE}=serial; leave it out, or choose engine=auto."]),
    (["engine=serial", "engine.compile=true"], [f"engine.compile=true {FUSE}=serial; leave it out"]),
    (
        ["engine.devices=2", "engine.lanes=3"],
        [f"engine.lanes=3 {FUSE}.devices=2, which train one trial at a time; leave"],
    ),
    (
        [*COMMAND, "checkpoint.minutes=1"],
        ["checkpoint.minutes=1 is for models that ", "but workload=mine trains by a com"],
    ),
    ([*COMMAND, "engine.loaders=4"], ["engine.loaders=4 is for models that this program trains"]),
    ([*COMMAND, "evaluation.every=4"], ["evaluation.every=4 is for models that this program trains"]),
]


@pytest.mark.parametrize(("arguments", "words"), partly(IDLE, 3), ids=[arguments[-1] for arguments, _ in IDLE])
def test_a_key_that_would_do_nothing_is_refused(arguments, words):
    with pytest.raises(UsageError) as refused:
        parse_jobs(arguments)
    assert [word for word in words if word not in str(refused.value)] == []


WORKING = [
    ["search.extend_factor=2", "search.extend_limit=1"],  # the rounds of search=refine go beyond edges, too
    ["search=sobol", "search.extend=true", "search.extend_limit=1"],
    ["search=sobol", "search.extend=false"],
    ["search.extend_limit=0"],  # of search=refine: its rounds stay in the search space
    ["search.until=width 1.5", "search.until_cost=4"],
    ["stopping=race,goal", "race_factor=3", "results=here/${stopping}"],
    ["track=[tensorboard]", "track.trials=true"],
    ["optimizer=sgd,adamw", "optimizer.no_decay=[bias]"],
    ["engine=serial", "engine.compile=false", "engine.lanes=null", "track.trials=false"],
    ["engine.devices=1", "engine.lanes=3"],
    COMMAND,
]


@pytest.mark.parametrize("arguments", partly(WORKING, 3), ids=" ".join)
def test_a_key_with_an_effect_in_some_of_the_studies_is_taken(arguments):
    assert parse_jobs(arguments)


def test_a_key_of_a_file_gives_way(tmp_path):
    (tmp_path / "preset").mkdir()
    words = "race_factor: 3\ntrack: {trials: true}\nsearch: {until_cost: 4}\nengine: {lanes: 4}\nbatch_sizes: [8, 16]\n"
    (tmp_path / "preset/mine.yaml").write_text(f"# @package _global_\n{words}")
    arguments = ["preset=mine", "stopping=goal", "engine=serial", "batch_size=8"]
    assert [job.study.batch_size for job in parse_jobs(arguments, tmp_path)] == [8]


def test_a_call_from_python_is_refused_alike():
    with pytest.raises(UsageError, match=r"race_factor=3 is for stopping=race, but got stopping=goal"):
        plan(stopping="goal", race_factor=3)


def test_every_rule_is_of_keys_that_there_are():
    assert {key for rule in idle.RULES for key in rule.keys} <= {name for name, *_ in every_key()}
