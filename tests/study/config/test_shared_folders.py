"""Values with commas of keys that no folder is named by: each is refused with a cure, and the cure works."""

import re
import shlex

import pytest
from helpers.fused import partly

from analysis.labels import listed
from study.config.jobs import parse_jobs
from study.errors import UsageError

CURED = {
    "search.space.learning_rate=0.1,0.2": "search.space.learning_rate=[0.1,0.2]",
    "search.space.momentum=0,0.9": "search.space.momentum.low=0 search.space.momentum.high=0.9",
    "search.space.momentum=0,0.5,0.9": "search.space.momentum=[0,0.5,0.9]",
    "search.space.schedule=constant,cosine": "search.space.schedule=[constant,cosine]",
    "search.space.learning_rate.low=0.1,0.2": "'results=results/mlp_digits/${search.space.learning_rate.low}'",
    "seeds.search=0,1": "'results=results/mlp_digits/${seeds.search}'",
    "schedule=constant,cosine": "'results=results/mlp_digits/${schedule}'",
    "search.trials=4,8": "'results=results/mlp_digits/${search.trials}'",
    "stopping=race,goal": "'results=results/mlp_digits/${stopping}'",
    "precision=fp32,tf32": "'results=results/mlp_digits/${precision}'",
    "budget.epochs=4,8": "'results=results/mlp_digits/${budget.epochs}'",
    "evaluation.first=0.1,0.2": "'results=results/mlp_digits/${evaluation.first}'",
}
"""An argument, and the words of its cure."""
TOGETHER = [
    (["seeds.search=0,1", "stopping=race,goal"], 4),
    (["seeds.search=0,1", "search.trials=4,8", "schedule=constant,cosine"], 8),
    (["search.space.momentum=0,0.9", "seeds.trial=0,1"], 2),
    (["search.space.momentum=0,0.9", "search.space.learning_rate=0.1,0.2"], 1),
    (["search.space.momentum=0,0.9", "seeds.trial=0,1", "stopping=race,goal"], 4),
]
"""Arguments that no folder is named by, and the number of studies that their cures together give."""
ALONE = {
    "search=sobol,tpe": "give it one value, and other commands the others, each with its own results=DIR",
    "preset=none,quick": "give it one value, and other commands the others, each with its own results=DIR",
    "engine=serial,lanes": "cannot be swept",
    "shards=1,2": "cannot be swept",
    "search.until='width 1.5','width 2'": "cannot be swept",
    "workload.name=a,a": "twice",
}


def refused(*arguments):
    with pytest.raises(UsageError) as error:
        parse_jobs(["batch_size=64", *arguments])
    return str(error.value)


@pytest.mark.parametrize(("argument", "cure"), partly(CURED.items(), 4), ids=CURED)
def test_values_that_would_share_a_folder(argument, cure):
    said = refused(argument)
    assert said.startswith(f"{argument} asks for a study with each value, but they would share the folder of")
    assert cure in said
    kept = [argument] if "results=" in cure else []
    assert len(parse_jobs(["batch_size=64", *kept, *shlex.split(cure)])) == (2 if kept else 1)


@pytest.mark.parametrize(("arguments", "studies"), partly(TOGETHER, 3), ids=[" ".join(each) for each, _ in TOGETHER])
def test_several_keys_that_would_share_a_folder_are_cured_together(arguments, studies):
    said = refused(*arguments)
    assert said.startswith(f"{listed(arguments)} ask for a study with each value, but these studies would share the")
    cured = re.findall(r"search\.space\.\w+=\[.*?\]", said) + re.findall(r"'(results=.*?)'", said)
    kept = [argument for argument in arguments if f"${{{argument.partition('=')[0]}}}" in said]
    assert len(parse_jobs(["batch_size=64", *kept, *cured])) == studies


def test_a_group_and_a_key_are_both_named():
    said = refused("search=sobol,tpe", "seeds.trial=0,1")
    assert said.startswith("search=sobol,tpe and seeds.trial=0,1 ask")
    assert "give search one value" in said
    assert "give each value of seeds.trial its own folder" in said


@pytest.mark.parametrize(("argument", "words"), partly(ALONE.items(), 2), ids=ALONE)
def test_values_that_one_command_cannot_sweep(argument, words):
    assert words in refused(argument)


@pytest.mark.slow
def test_the_key_that_the_folder_lacks_is_blamed():
    said = refused("results=r/${schedule}", "schedule=constant,cosine", "seeds.trial=0,1")
    assert said.startswith("seeds.trial=0,1 asks")
    assert "'results=r/${schedule}/${seeds.trial}'" in said
    assert "low=" not in refused("search.space.schedule=constant,cosine")
    assert "workload.name=NAME" in refused("workload.name=same", "workload.train_examples=100,200")
