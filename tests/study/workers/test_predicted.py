"""`study plan` measures small batch sizes and predicts the large ones."""

import pytest

from study.engine.cost import Cost
from study.workers import predicted
from study.workers.pool import TrialTooLarge


class Clock:
    """Steps of 1 ms and a time for each example; it keeps the batch sizes that it was asked for."""

    def __init__(self, each=1e-3, most=10**9):
        self.asked, self.each, self.most = [], each, most

    def __call__(self, studies):
        self.asked += [[study.batch_size for study in studies]]
        return [
            Cost(1e-3 + self.each * study.batch_size, 2.0, 3.0, lanes=8)
            if study.batch_size <= self.most
            else TrialTooLarge("too large")
            for study in studies
        ]


ALL = [2**power for power in range(3, 14)]


@pytest.mark.parametrize(
    ("sizes", "arithmetic", "asked", "bases"),
    [
        (ALL, "plain", [[8, 16], [32, 64, 128, 256]], (64, 256)),
        (ALL, "vmap", [[8, 16], [32]], (8, 32)),
        ([8, 16], "plain", [[8, 16]], None),
        ([8192], "plain", [[64, 256]], (64, 256)),  # neither is in the plan
        ([256, 8192], "plain", [[64, 256]], (64, 256)),
        ([32, 128, 512], "plain", [[32, 128]], (32, 128)),
        ([200, 256], "plain", [[200, 256]], None),
    ],
)
def test_batch_sizes_whose_steps_take_long_are_predicted(make_study, sizes, arithmetic, asked, bases):
    clock = Clock()
    studies = [make_study(batch_size=size, arithmetic=arithmetic, examples=10_000) for size in sizes]
    found = predicted.costs(studies, clock)
    assert clock.asked == asked
    assert [cost.step for cost in found] == pytest.approx([1e-3 + 1e-3 * size for size in sizes])
    measured = {size for some in asked for size in some}
    assert [cost.predicted_from for cost in found] == [() if size in measured else bases for size in sizes]
    assert {(cost.validation, cost.others, cost.lanes) for cost in found} == {(2.0, 3.0, 8)}


def test_a_step_that_takes_no_longer_with_more_examples_is_measured_step_by_step(make_study):
    """The fixed time hides the time of an example."""
    clock = Clock(each=0.0)
    predicted.costs([make_study(batch_size=size, examples=10_000) for size in ALL], clock)
    assert clock.asked == [[8, 16], [32, 64, 128, 256], [512, 1024, 2048, 4096], [8192]]


def test_curves_are_predicted_from_their_own_batch_sizes(make_study):
    clock = Clock()
    each = [("sgd", 0.1), ("momentum", 0.2)]
    studies = [make_study(optimizer=name, batch_size=size, examples=10_000) for name, _ in each for size in (64, 4096)]
    found = predicted.costs(studies, clock)
    assert clock.asked == [[64, 256], [64, 256]]
    assert [cost.predicted_from for cost in found] == [(), (64, 256)] * 2


def test_what_does_not_fit_is_told(make_study):
    clock = Clock(most=8)
    found = predicted.costs([make_study(batch_size=size, examples=10_000) for size in (8, 16, 32)], clock)
    assert [type(each) for each in found] == [Cost, TrialTooLarge, TrialTooLarge]


@pytest.mark.parametrize(
    ("micro_batch", "devices", "parts"),
    [(None, 1, ()), (300, 1, ((300, 300, 300, 100),)), (300, 2, ((300, 200), (300, 200)))],
)
def test_a_predicted_batch_is_split_as_a_measured_one(make_study, micro_batch, devices, parts):
    study = make_study(batch_size=1000, micro_batch=micro_batch, examples=10_000)
    known = {16: Cost(0.5, 0.0, 0.0), 64: Cost(1.0, 0.0, 0.0)}
    assert predicted.predicted(study, known, devices).parts == parts
    slower = predicted.predicted(study, {16: Cost(1.5, 0.0, 0.0), 64: Cost(1.0, 0.0, 0.0)})
    assert slower.step == 1.0  # noise: a step takes no less time with more examples
