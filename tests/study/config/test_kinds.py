"""A value of another kind than its key takes is refused with key, kind, value and an example that is accepted."""

from typing import Any

import pytest
from helpers.fused import partly

from study.config.composed.compose import compositions
from study.config.composed.kinds import KEYS, told, told_of_launcher
from study.errors import UsageError

WHOLE, LIST = "must be a whole number, but got", "must be a list of whole numbers, but got"
REFUSED = {
    # A list without its brackets
    "batch_sizes=4,16": "batch_sizes must be a list, but got 4,16; give batch_sizes=[4,16] or batch_size=4,16.",
    "batch_sizes=64": "batch_sizes must be a list, but got 64; give batch_sizes=[64] or batch_size=64.",
    "search.refine=4,4,3": f"search.refine {LIST} 4,4,3; give search.refine=[4,4,3].",
    "search.refine=4": f"search.refine {LIST} 4; give search.refine=[4].",
    "search.budgets=0.5,1": "search.budgets must be a list of numbers, but got 0.5,1; give search.budgets=[0.5,1].",
    "optimizer.no_decay=bias": "optimizer.no_decay must be a list of texts, but got bias; "
    "give optimizer.no_decay=[bias].",
    # A list with other values, or no list
    "search.refine=4,x": f"search.refine {LIST} 4,x; for example search.refine=[4,4,4,4,3].",
    "search.refine=null": f"search.refine {LIST} null; for example search.refine=[4,4,4,4,3].",
    "search.refine=[[4],[3]]": f"search.refine {LIST} [[4],[3]]; for example search.refine=[4,4,4,4,3].",
    "search.refine=[4,x]": "each value of search.refine must be a whole number, but got x; "
    "for example search.refine=[4,4,4,4,3].",
    "search.budgets=[a]": "each value of search.budgets must be a number, but got a; "
    "for example search.budgets=[0.5,1,2].",
    "batch_sizes={a: 1}": "batch_sizes must be a list, but got {a: 1}; for example batch_sizes=[8,64].",
    # One value
    "search.trials=abc": f"search.trials {WHOLE} abc; for example search.trials=100.",
    "search.trials=": f"search.trials {WHOLE} ''; for example search.trials=100.",
    "search.trials=null": f"search.trials {WHOLE} null; for example search.trials=100.",
    "search.trials=[1,2]": f"search.trials {WHOLE} [1,2]; for example search.trials=100.",
    "engine.workers=two": "engine.workers must be a whole number or null, but got two; for example engine.workers=4.",
    "race_factor=fast": "race_factor must be a number, but got fast; for example race_factor=2.0.",
    "search.extend=4": "search.extend must be true or false, but got 4; for example search.extend=true.",
    "search.extend=maybe": "search.extend must be true or false, but got maybe; for example search.extend=true.",
    "precision=null": "precision must be a text, but got null; for example precision=fp32.",
    "notify=[a]": "notify must be a text or null, but got [a]; for example notify=ntfy://topic.",
    # Names with values
    "budget=5": "budget is a group of keys, but got 5; give one of them, such as budget.epochs=2.5.",
    "search.space=[1]": "search.space must be a set of names with values, but got [1]; "
    "for example search.space={learning_rate: 0.1}.",
    "optimizer.arguments=5": "optimizer.arguments must be a set of names with values, but got 5; "
    "for example optimizer.arguments.num_iterations=2000.",
}


@pytest.mark.parametrize("typed", partly([*REFUSED], 12))
def test_a_value_of_another_kind_is_refused_with_an_example(typed):
    with pytest.raises(UsageError) as refused:
        [*compositions([typed])]
    assert str(refused.value) == REFUSED[typed]


def test_a_file_is_answered_alike(tmp_path):
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset/mine.yaml").write_text("# @package _global_\nsearch:\n  refine: 4\n")
    with pytest.raises(UsageError, match=r"search.refine must be a list of whole numbers; for example "):
        [*compositions(["preset=mine"], tmp_path)]


NAMED = [name for name, (_, kind) in KEYS.items() if kind is not Any and name != "workload"]


@pytest.mark.parametrize("names", [NAMED[start::4] for start in range(4)], ids="abcd")
def test_every_key_has_an_example_that_the_schema_takes(names):
    examples = [str(told(name, "x")).partition("; for example ")[2].removesuffix(".") for name in names]
    assert all(example.startswith(name) for example, name in zip(examples, names, strict=True))
    taken = [example for example in examples if not example.endswith("=NAME")]
    assert len([*compositions([each for each in taken if "," not in each or "[" in each])]) == 1


def test_a_launcher_is_answered_by_the_kind_that_hydra_names():
    said = told_of_launcher("hydra.launcher.x", "Value 'soon' of type 'str' could not be converted to Float")
    assert said == "hydra.launcher.x must be a number, but got soon."
    assert told_of_launcher("hydra.launcher.x", "Something else") is None


@pytest.mark.parametrize(
    "word", partly(["search.refine=[4,4],[3]", "+search.refine=[4]", "batch_sizes=[16k tokens,8]"], 2)
)
def test_lists_are_taken(word):
    assert [*compositions([word])]
