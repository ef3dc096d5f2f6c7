"""Advice where the tuned configurations were trained with fresh seeds: their steps and intervals take part."""

import re

import numpy as np
import pytest

from analysis.advice import comparisons, splits
from analysis.advice.splits import Machine
from analysis.advice.step_times import StepTimes
from analysis.load import load
from analysis.tables import answers
from study.__main__ import main
from study.search import stages
from study.search.tuner import Tuner
from study.settings import Budget, Evaluation

EXAMPLES = 8192


@pytest.fixture
def seeded(tmp_path, make_study, make_curve, write_study):
    """Searches as {batch size: (steps of every trial, steps of each fresh seed, None where it missed)}, loaded."""

    def seeded(ends, **fields):
        for size, (fewest, again) in ends.items():
            usual = {"trials": 4, "reruns": len(again), "examples": EXAMPLES, "budget": Budget(0, 4000)} | fields
            study = make_study(batch_size=size, **usual)
            curves = [make_curve(study, index, reaches=fewest) for index in range(4)]
            write_study(tmp_path, study, curves)
            if again:
                rerun = stages.rerun(Tuner(study, curves))
                write_study(tmp_path, rerun, [make_curve(rerun, index, reaches=end) for index, end in enumerate(again)])
        return list(load(tmp_path))

    return seeded


def by_seeds(studies):
    """Batch size -> (steps, comparison with the fastest, whether it is shown to be slower), for steps of one time."""
    runs, times = answers.rerun_steps(studies), StepTimes(dict.fromkeys((8, 512), 0.1))
    found = splits.table(answers.answers(studies), Machine([1], times), runs=runs).drop_duplicates("batch_size")
    columns = ("batch_size", "steps", "comparison", "shown_slower")
    rows = zip(*(found[name].tolist() for name in columns), strict=True)
    return {size: (round(steps, -1) if np.isfinite(steps) else steps, *rest) for size, steps, *rest in rows}


KNOWN, FEW_SEEDS, LEFT_CENSORED = comparisons.KNOWN, comparisons.FEW_SEEDS, comparisons.LEFT_CENSORED
SEEDED = {
    "apart": ({8: (400, [400, 440]), 64: (90, [100, 91])}, {8: (420, KNOWN, True), 64: (100, KNOWN, False)}),
    "tied": ({8: (110, [85, 140]), 64: (90, [130, 85])}, {8: (110, KNOWN, False), 64: (100, KNOWN, False)}),
    "lucky search": ({8: (100, [110, 120]), 64: (90, [400, 440])}, {8: (120, KNOWN, False), 64: (420, KNOWN, True)}),
    "missed": ({8: (100, [110, 120]), 64: (50, [50, None])}, {8: (120, KNOWN, False), 64: (np.inf, KNOWN, True)}),
    "one seed": ({8: (400, [400]), 64: (90, [100])}, {8: (400, FEW_SEEDS, False), 64: (100, KNOWN, False)}),
    "some without": ({8: (400, []), 64: (90, [100, 110])}, {8: (400, KNOWN, True), 64: (90, KNOWN, False)}),
}


@pytest.mark.parametrize(("ends", "expected"), SEEDED.values(), ids=SEEDED)
def test_fresh_seeds_give_the_steps_and_compare_them(seeded, ends, expected):
    found = by_seeds(seeded(ends))
    assert {size: rest for size, (_, *rest) in found.items()} == {size: [*each[1:]] for size, each in expected.items()}
    for size, (steps, *_) in found.items():
        assert steps == pytest.approx(expected[size][0], rel=0.12)  # they are measured up to an evaluation


@pytest.mark.parametrize("sampler", ["sobol", "tpe"])
def test_fresh_seeds_compare_adaptive_searches_too(seeded, sampler):
    found = by_seeds(seeded({8: (400, [400, 440]), 64: (90, [100, 91])}, sampler=sampler))
    assert found[8][1:] == (KNOWN, True)


def test_steps_to_the_first_evaluation_are_not_compared(seeded):
    studies = seeded({8: (400, [400, 440]), 64: (90, [80, 80])}, evaluation=Evaluation(first=0.02))
    found = {size: rest for size, (_, *rest) in by_seeds(studies).items()}
    assert found == {8: [LEFT_CENSORED, False], 64: [KNOWN, False]}


def test_advice_says_where_fresh_seeds_miss_the_goal_or_need_more_steps(seeded, tmp_path, capsys):
    """Batch size 8 has none, so that the steps are S(B)."""
    seeded({8: (400, []), 64: (90, [180, 180]), 512: (50, [50, None])})
    main(["advise", str(tmp_path), "--step-ms", "8:1,512:2"])
    out = " ".join(capsys.readouterr().out.split())
    assert "At batch size 512, 1 of 2 fresh seeds with the same hyperparameters missed the goal: S(B) may be" in out
    assert re.search(r"Expect more steps at batch size 64: the median of fresh seeds is \d+ instead of \d+\.", out)


def test_advice_from_fresh_seeds_says_so(seeded, tmp_path, capsys):
    seeded({8: (400, [400, 410, 420]), 64: (90, [180, 180, None]), 512: (50, [50, None, None])})
    main(["advise", str(tmp_path), "--step-ms", "8:1,512:2"])
    out = " ".join(capsys.readouterr().out.split())
    assert "given the spread of fresh seeds" in out
    assert "Steps are those of the tuned configuration, the median over fresh seeds." in out
    assert "At batch size 64, 1 of 3 fresh seeds with the same hyperparameters missed the goal: a training may" in out
    assert "At least half of the fresh seeds, or all trials, missed the goal at batch size 512: never advised." in out
    assert "Expect more steps" not in out
