"""What the terminal says before a sweep."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

import conf
from study import show
from study.records import Budget


@pytest.mark.parametrize(
    ("sizes", "fields", "said"),
    [
        ([8, 16, 32, 64], {"trials": 100}, "preset=quick, search.trials=50, batch_size=16,64 or budget.epochs=10"),
        ([64, 32, 16], {"trials": 8}, "search.trials=4, batch_size=16,64 or budget.epochs=10"),
        ([8, 16], {"trials": 8, "budget": Budget(0, 100)}, "search.trials=4"),
        ([8], {"trials": 1, "budget": Budget(0, 100)}, "a smaller model"),
    ],
)
def test_ways_to_less_are_less_than_what_was_asked(make_study, sizes, fields, said):
    studies = [make_study(**({"batch_size": size, "budget": Budget(20, 100)} | fields)) for size in sizes]
    assert show.ways_to_less(studies) == said


def test_the_quick_preset_is_as_quick_as_is_said():
    quick = OmegaConf.load(Path(conf.__file__).parent / "preset/quick.yaml")
    assert quick.search.trials == show.QUICK_TRIALS
