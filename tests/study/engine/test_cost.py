"""What a sweep costs: the share of evaluations, and the setting that reduces it."""

import pytest

from study.engine.cost import Cost, Work, evaluation_share, fewer_examples
from study.settings import Budget, Evaluation
from study.terminal.costs import MOST_EVALUATION, evaluating


def works(make_study, seconds_per_example, examples=1000):
    """A trial of 100 steps of 10 ms, evaluated at each 10 % more steps."""
    study = make_study(batch_size=8, budget=Budget(0, 100), tokens_per_example=64)
    cost = Cost(0.01, examples * seconds_per_example, 2 * examples * seconds_per_example, evaluated=(examples,) * 3)
    return [Work(study, cost, 2)]


@pytest.mark.parametrize(
    ("seconds_per_example", "cure"),
    [
        (1e-6, None),
        (1e-5, "evaluation.examples=800"),
        (1e-4, "evaluation.examples=80"),
        (1e-2, "evaluation.ratio=1.2 evaluates half"),
    ],
)
def test_a_large_share_names_the_cure(make_study, seconds_per_example, cure):
    left = works(make_study, seconds_per_example)
    said, share = evaluating(left), evaluation_share(left)
    assert said.startswith(f"Evaluation takes {share:.0%} of it")
    assert (share > MOST_EVALUATION) == (cure is not None)
    assert cure is None or cure in said


def test_the_cure_is_enough_and_no_less_than_needed(make_study):
    left = works(make_study, 1e-4)
    examples = fewer_examples(left, MOST_EVALUATION)
    assert evaluation_share(left, examples) <= MOST_EVALUATION < evaluation_share(left, examples + 10)
    assert evaluation_share(left, 10**6) == pytest.approx(evaluation_share(left))


def test_the_plan_counts_tokens(make_study):
    [work] = works(make_study, 1e-6)
    plan = work.plan(workers=1)
    assert (plan["examples"], plan["tokens"]) == (1600, 64 * 1600)


def test_what_is_not_evaluated_costs_nothing(make_study):
    """All but the last of n evaluations measure at most a quarter of the validation set if they may end early."""
    cost, budget = Cost(0.01, 1.0, 10.0), {"budget": Budget(0, 100), "stopping": "race"}
    often, rarely, early = (
        make_study(evaluation=Evaluation(every=every, exact=exact), **budget)
        for every, exact in ((5, True), (None, True), (None, False))
    )
    n = len(often.evaluation_steps)
    assert n > 20
    assert cost.evaluations(often) == n + 10 * (n // 5 + 1)
    assert cost.evaluations(rarely) == n + 10
    assert cost.evaluations(early) == 1 + (n - 1) / 4 + 10
