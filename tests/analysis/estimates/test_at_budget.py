"""The error at fixed budgets of examples: curves whose answers are known."""

import numpy as np
import pytest

from analysis.counting import Goal
from analysis.estimates import at_budget
from analysis.load import load
from analysis.report.build import Asked, read
from analysis.report.html_tables import sections
from study.records import Budget

EXCESS = {4: 0.0, 8: 0.0, 16: 0.01, 32: 0.05}
"""Batch size -> how far the errors of its trials lie above those of the best one."""
TRIALS = 20


def error(batch_size, index, steps):
    return 2 + EXCESS[batch_size] + index / 10 + 10 / (steps * batch_size)


@pytest.fixture
def searches(make_study, make_curve, write_study, tmp_path):
    """Searches whose errors fall with the examples, all with budgets of 256 examples."""

    def made(sizes=(4, 8, 16, 32), **fields):
        for size in sizes:
            usual = {"goal": Goal("val/loss", 3.0), "trials": TRIALS, "examples": 4096, "stopping": "budget"}
            usual |= {"budget": Budget(1 / 16, 1), "tokens_per_example": 64}
            study = make_study(batch_size=size, **usual | fields)
            curves = [make_curve(study, index) for index in range(TRIALS)]
            for index, curve in enumerate(curves):
                curve.errors["val/loss"][:] = error(size, index, curve.steps)
            write_study(tmp_path, study, curves)
        return list(load(tmp_path))

    return made


@pytest.mark.parametrize(("tolerance", "largest", "bound"), [(0.0, 8, "="), (0.01, 16, "="), (0.1, 32, ">")])
def test_the_largest_batch_size_within_the_tolerance(searches, tolerance, largest, bound):
    found = at_budget.table(searches(), tolerance)
    last = found[found["examples"] == found["examples"].max()]
    assert last["batch_size"].tolist() == [*EXCESS]
    np.testing.assert_allclose(last["error"], [error(size, 0, 256 // size) for size in EXCESS])
    assert (last["tokens"] == 64 * 256).all()
    assert (last["largest"] == largest).all()
    assert (last["largest_bound"] == bound).all()
    assert last["within"].tolist() == [size <= largest for size in EXCESS]
    assert (last["low"] <= last["error"]).all()
    assert (last["high"] > last["error"]).all()
    assert (last["largest_low"] <= last["largest_high"]).all()


def test_smaller_budgets_are_thirds(searches):
    found = at_budget.table(searches())
    assert sorted({*found["examples"]}) == [round(256 / 3**k) for k in (3, 2, 1, 0)]
    third = found[found["examples"] == 85].set_index("batch_size")["error"]
    assert error(32, 0, 85 // 32) >= third[32] > error(32, 0, 256 // 32)


def test_trials_that_stop_at_a_goal_have_no_row(searches):
    assert at_budget.table(searches(stopping="goal")).empty


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [None, 64])
def test_the_report_has_the_table_and_with_tokens_a_sentence(searches, tmp_path, tokens):
    searches(tokens_per_example=tokens)
    found = read([tmp_path], Asked(tolerance=0.02))
    said = [text for text in found.sentences if "within 2% of the best" in text]
    assert [text.partition(":")[0] for text in said] == (["tiny with momentum after 16 k tokens"] if tokens else [])
    [shown] = [each for each in sections(found.tables) if "fixed number of examples" in each.title]
    assert [column.name for column in shown.columns][-2:] == ["validation loss", "within 2% of the best"]
    steps = found.tables["steps_to_result"]
    assert ("tokens_to_result" in steps) == (tokens is not None)
    if tokens:
        assert (steps["tokens_to_result"] == 64 * steps["examples_to_result"]).all()
