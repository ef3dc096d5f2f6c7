"""Evaluations that end when they miss the goal find the same steps to it as exact ones, and keep only what is known."""

import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.blobs import CPU, Blobs
from helpers.desks import Desk, Killed, assert_same_bits, desk, full, trained
from helpers.users.windows import LANGUAGE_MODELS
from torch import nn

from analysis import counting
from analysis.counting import Goal, TrialCurve
from study.checks.model import check_apart
from study.config.checked import check_names
from study.data import streaming
from study.data.hardest import Hardest
from study.data.resident import Data
from study.engine.trial import evaluation
from study.errors import UsageError
from study.records import Study
from study.settings import Evaluation
from workloads.base import Splits, classification_error, cross_entropy_error

GRID = Evaluation(first=0.1, ratio=1.2, every=None)
STEPS = 30
SPACE = {
    "learning_rate": {"choices": [0.01, 0.03, 0.1, 1e9, 0.06]},
    "momentum": {"choices": [0.0, 0.5, 0.9, 0.9, 0.8]},
    "ema_decay": {"choices": [0.6] * 5},
}
CLASSIFIED, ENTROPY = Goal("val/classification_error", 0.05), Goal("val/cross_entropy_error", 0.3)
AVERAGED = Goal("val/ema_classification_error", 0.07)


@dataclass
class Judged(Blobs):
    """Blobs with the names of errors that are known not to be negative."""

    validation: int = 160
    weighted: bool = False

    @property
    def errors(self):
        return {"cross_entropy_error": cross_entropy_error, "classification_error": classification_error}

    @property
    def error_weights(self):
        return (lambda targets: 1.0 * targets) if self.weighted else None  # class 0 does not count


@pytest.fixture
def ask(make_study):
    def make(how="linear_chain", goal=CLASSIFIED, **fields):
        fields = {"space": SPACE, "trials": 5, "batch_size": 6, "steps": STEPS, "stopping": "race"} | fields
        return make_study(arithmetic=how, goal=goal, evaluation=GRID, **fields)

    return make


def short(study):
    return replace(study, evaluation=replace(study.evaluation, exact=False))


def counted(data):
    """The data, and how many validation examples are read from it."""
    read = SimpleNamespace(examples=0)
    chunks = type(data).chunks

    class Counted(type(data)):
        def chunks(self, split, examples, size):
            read.examples += len(examples) if split == "val" else 0
            return chunks(self, split, examples, size)

    data = replace(data)
    object.__setattr__(data, "__class__", Counted)
    return data, read


def assert_as_exact(found, exact, study):
    """The same curves, but without the errors of evaluations that missed the goal."""
    assert found.keys() == exact.keys()
    metric, threshold = study.goal.metric, study.goal.threshold
    for index, curve in found.items():
        whole = (exact[index].errors[metric] < threshold) | (exact[index].steps == study.train_steps)
        kept = {name: np.where(whole, values, np.nan) for name, values in exact[index].errors.items()}
        assert_same_bits(curve, replace(exact[index], errors=kept))
        assert (curve.at_least, exact[index].at_least) == ({metric: threshold}, {})
    for stopping in ("goal", "race"):
        rule = study.rule._replace(stopping=stopping)
        one, other = (
            {i: TrialCurve(c.steps, c.errors[metric], c.first_bad_step) for i, c in sorted(curves.items())}
            for curves in (found, exact)
        )
        assert counting.outcomes(rule, one) == counting.outcomes(rule, other)


BLOCKS = {"space": {name: each for name, each in SPACE.items() if name != "ema_decay"}}
WORKLOADS = {
    "chain": ("linear_chain", Judged(), CLASSIFIED),
    "blocks": ("linear_blocks", Judged(), CLASSIFIED),
    "vmap": ("vmap", Judged(images=True), Goal("val/classification_error", 0.13)),
    "plain": ("plain", Judged(images=True, normed=True), CLASSIFIED),
    "cross entropy": ("linear_chain", Judged(), ENTROPY),
    "plain cross entropy": ("plain", Judged(), ENTROPY),
    "average": ("linear_chain", Judged(), AVERAGED),
    "plain average": ("plain", Judged(), AVERAGED),
    "weighted": ("linear_chain", Judged(weighted=True), ENTROPY),
    "plain weighted": ("plain", Judged(weighted=True), CLASSIFIED),
    "few": ("plain", Judged(validation=9), Goal("val/classification_error", 0.3)),
    "language": ("vmap", LANGUAGE_MODELS["padded"], Goal("val/cross_entropy_error", 5.548)),
}


MORE = {"few": 1, "vmap": 0.9, "language": 1.5}
"""The most evaluated examples, as a share: many errors are near the goal; and all windows are about as hard."""


SELDOM = dict.fromkeys(("plain", "plain weighted", "language", "micro-batches", "little memory"), pytest.mark.slow)


def marked(names):
    return [pytest.param(name, marks=[SELDOM[name]] if name in SELDOM else []) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(WORKLOADS))
def test_steps_and_divergence_are_those_of_exact_evaluations(ask, name):
    how, workload, goal = WORKLOADS[name]
    study = ask(how, goal, **BLOCKS if name == "blocks" else {})
    (exact, all_read), (early, some_read) = (counted(workload.data()) for _ in range(2))
    expected = trained(study, desk(study), workload=workload, data=exact)
    found = trained(short(study), desk(study), workload=workload, data=early)
    assert_as_exact(found, expected, study)
    below = [np.nanmin(c.errors[goal.metric], initial=np.inf) < goal.threshold for c in expected.values()]
    assert {*below} == {True, False}, "some trials must reach the goal and some must not"
    assert name == "language" or any(c.first_bad_step for c in expected.values()), "one must diverge"
    assert some_read.examples < MORE.get(name, 0.7) * all_read.examples


@pytest.mark.parametrize("order", [[4, 3, 2, 1, 0], [2], [0, 2]])
def test_what_was_measured_before_changes_nothing(ask, order):
    """Another order of trials knows other hard examples."""
    study = short(ask())
    whole = trained(study, desk(study), workload=Judged())
    found = trained(study, desk(study, order), heights=(2,), workload=Judged())
    assert_same_bits(found, {index: whole[index] for index in found})


@pytest.mark.slow
@pytest.mark.parametrize("what", marked(["a part of the split", "streamed", "micro-batches", "little memory"]))
def test_wherever_the_examples_are(ask, monkeypatch, what):
    study, data = ask("plain"), Judged().data()
    if what == "a part of the split":
        study = replace(study, evaluation=replace(study.evaluation, examples=120))
    if what == "micro-batches":
        study = replace(study, micro_batch=2)
    if what == "streamed":
        data = streaming.source(Judged().splits(CPU), "cpu", 0, 0)
        assert not isinstance(data, Data)
    if what == "little memory":
        study = replace(study, evaluation_chunk=20)
        errors = evaluation._goal_errors
        room = lambda log, *rest: (full if log.chunk > 10 else errors)(log, *rest)  # noqa: E731
        monkeypatch.setattr(evaluation, "_goal_errors", room)
    (exact, all_read), (early, some_read) = counted(data), counted(replace(data, hardest={}))
    expected = trained(study, desk(study), workload=Judged(), data=exact)
    found = trained(short(study), desk(study), workload=Judged(), data=early)
    if what == "little memory":
        assert {curve.evaluation_chunk for curve in found.values()} == {10}  # of 20 examples at once
        found = {index: replace(curve, evaluation_chunk=20) for index, curve in found.items()}
    assert_as_exact(found, expected, study)
    assert some_read.examples < 0.7 * all_read.examples


def test_a_trial_goes_on_from_its_checkpoints(ask):
    study = short(ask())
    one = desk(study).trials[4]
    undisturbed = trained(study, Desk([one]), workload=Judged())
    kept = {}
    for lives in (3, 9, float("inf")):
        with suppress(Killed):
            found = trained(study, Desk([one], minutes=0, kept=kept, lives=lives), workload=Judged())
    assert kept
    assert_same_bits(found, undisturbed)


def test_a_lower_bound_needs_some_to_spare():
    """Of 100 examples, a goal of 0.1 allows 9 errors: 10.1 and one to spare are certain to miss it, in any chunks."""
    study = SimpleNamespace(
        goal=Goal("val/classification_error", 0.1),
        evaluation=Evaluation(exact=False),
        averages=False,
    )
    for wrong, certain in ((11, set()), (12, {0})):
        data = Data.of(Splits(*[(torch.zeros(100, 1), torch.zeros(100, dtype=torch.long))] * 3))
        log = SimpleNamespace(study=study, workload=Judged(), data=data, chunk=30, examples=lambda split: range(100))
        data.hardest[evaluation._judged(log)] = known = Hardest(100)
        known.add((torch.arange(100) >= 100 - wrong).float().expand(1, 100))
        outputs = iter([1.0 * (torch.arange(25) < wrong)[:, None] * torch.tensor([0.0, 1.0])])

        def predict(inputs, ready=outputs):
            return next(ready)[: len(inputs)]

        assert evaluation._certain_to_miss([log], [0], lambda chosen, averaged, p=predict: p) == certain


QUESTIONS = {
    "stopping": ({"stopping": "budget"}, "stopping must be goal or race, but got budget; choose stopping=race or goal"),
    "sampler": ({"sampler": "tpe"}, "search must be sobol or random, but got tpe; choose search=sobol or random"),
    "metric": (
        {"goal": Goal("val/average_precision_error", 0.1)},
        "the error of the goal must be classification_error or cross_entropy_error, but got average_precision_error",
    ),
    "any sign": ({"goal": Goal("val/loss", 0.1)}, "but got loss; choose a goal on val/classification_error"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_that_need_all_errors_are_refused(ask, name):
    changed, text = QUESTIONS[name]
    study = ask(**changed)
    with pytest.raises(ValueError, match=re.escape(text)):
        short(study)


def test_an_error_of_the_whole_split_is_refused(ask):
    workload = SimpleNamespace(errors={}, metrics={"classification_error": classification_error}, hyperparameters=())
    check_names(ask(), workload)
    with pytest.raises(UsageError, match="classification_error of tiny is a metric of the whole split"):
        check_names(short(ask()), workload)


class Whitened(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Random(nn.Module):
    def forward(self, x):
        return x + torch.randn_like(x)


@pytest.mark.parametrize(("layer", "apart"), [(nn.ReLU, True), (Whitened, False), (Random, False)])
def test_outputs_must_not_depend_on_the_chunk(ask, layer, apart):
    workload = SimpleNamespace(model=lambda: nn.Sequential(layer(), nn.Linear(24, 5)))
    with nullcontext() if apart else pytest.raises(UsageError, match=r"choose evaluation\.exact=true"):
        check_apart(short(ask()), workload, Judged().data().inputs[:8], torch.channels_last)


def test_the_question_is_recorded_and_older_ones_are_exact(ask):
    assert short(ask()).question()["evaluation"]["exact"] is False
    older = ask().question()
    del older["evaluation"]["exact"]
    assert Study.from_question(older) == ask()


def test_no_rank_of_a_team_ends_an_evaluation_alone(make_study):
    """Rank 0 may know hard examples from a batch size that it trained without the others, who would wait for it."""
    study = make_study(stopping="goal", evaluation=Evaluation(exact=False))
    data = SimpleNamespace(team=SimpleNamespace(size=2), hardest={})
    log = SimpleNamespace(study=study, data=data, examples=lambda split: range(64))
    data.hardest[evaluation._judged(log)] = Hardest(64)
    assert evaluation._certain_to_miss([log], [0], None) == set()
