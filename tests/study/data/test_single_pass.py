"""Training data that are read once: tensors, data sets, and streams with and without a state that brings them back."""

import gc
import multiprocessing
import random
import weakref
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import desks
from helpers.blobs import CPU, Blobs
from helpers.desks import Desk, assert_same_bits, fixed_trial
from torch.utils.data import IterableDataset, TensorDataset

from analysis.question.batch_schedules import BatchSchedule
from study.checks import data as data_check
from study.data import digest, single_pass, streaming
from study.data.examples import Examples, splits_of
from study.data.order import Batches
from study.data.single_pass import SinglePass
from study.engine.run import Run
from study.errors import Failed, UsageError
from study.settings import Budget, Evaluation
from workloads.base import Splits

EXAMPLES, STEPS, BATCH = 64, 10, 6


class Plain(IterableDataset):
    """The examples of a split one by one; `read` counts them."""

    read = 0

    def __init__(self, split: Any) -> None:
        self.split = split

    def __iter__(self) -> Any:
        for example in zip(*self.split, strict=True):
            self.read += 1
            yield example


class WithState(Plain):
    """Begins where `load_state_dict` said."""

    start = place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "unused": torch.arange(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"]

    def __iter__(self) -> Any:
        for place in range(self.start, len(self.split[1])):
            self.read, self.place = self.read + 1, place + 1
            yield tuple(part[place] for part in self.split)


class WithWrongState(WithState):
    """Forgets one example, as a shuffle buffer does."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["place"] + (state["place"] > 0)


class NoDataset:
    """Any object with `__iter__`; changes its examples at random."""

    def __init__(self, split: Any) -> None:
        self.split = split

    def __iter__(self) -> Any:
        for inputs, target in zip(*self.split, strict=True):
            yield inputs + torch.randn(inputs.shape) + random.random(), target


class Ordered(Plain):
    """Another order for each number."""

    epoch = 0

    def set_epoch(self, number: int) -> None:
        self.epoch = number

    def __iter__(self) -> Any:
        order = torch.randperm(len(self.split[1]), generator=torch.Generator().manual_seed(self.epoch))
        yield from ((self.split[0][index], self.split[1][index]) for index in order)


STREAMS = {kind.__name__: kind for kind in (Plain, WithState, WithWrongState, NoDataset, Ordered)}
KINDS = {"tensors": lambda split: split, "map-style": lambda split: TensorDataset(*split), **STREAMS}


@dataclass
class Once(Blobs):
    """Blobs whose training split is of one of the KINDS; `short`: the number of examples that it lacks."""

    kind: str = "Plain"
    short: int = 0

    def splits(self, device: torch.device) -> Splits:
        inputs, targets = super().splits(device).train
        held = len(targets) - self.short
        return super().splits(device)._replace(train=KINDS[self.kind]((inputs[:held], targets[:held])))


@pytest.fixture
def question(make_study: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(single_pass, "STATE_SECONDS", 0.0)
    space, grid = {"learning_rate": 0.1, "momentum": 0.9}, Evaluation(first=0.25, ratio=1.5)
    budget = Budget(0, STEPS, single_pass=True)
    return partial(make_study, space, batch_size=BATCH, stopping="budget", budget=budget, evaluation=grid)


def source(workload: Any, loaders: int = 0) -> Any:
    return streaming.source(splits_of(workload), "cpu", None, loaders)


def trained(study: Any, workload: Any, data: Any, desk: Desk | None = None) -> Any:
    return desks.trained(study, desk or Desk([fixed_trial(study)]), workload=workload, data=data)


@pytest.mark.parametrize(
    ("kind", "loaders"),
    [*((kind, 0) for kind in KINDS), pytest.param("Ordered", 1, marks=pytest.mark.slow), ("WithState", 1)],
)
def test_killed_and_resumed_equals_uninterrupted(question, kind, loaders):
    micro_batch = 4 if loaders else None
    study, workload = question(micro_batch=micro_batch), Once(kind=kind)
    data = source(workload, loaders)
    whole = trained(study, workload, data)
    desk = Desk([fixed_trial(study)], minutes=0)
    assert_same_bits(trained(study, workload, data, desk), whole)
    for _, kept in desk.taken[1::4]:
        resumed = Desk([fixed_trial(study)], kept={0: kept})
        assert_same_bits(trained(study, workload, source(workload, loaders), resumed), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensors", "Plain", "WithState", "WithWrongState"])
def test_a_growing_batch_goes_on_in_the_stream(question, kind):
    schedule = BatchSchedule("listed", switches=(24,), sizes=(12,))
    study, workload = question(batch_schedule=schedule, micro_batch=5), Once(kind=kind)
    assert study.phases.examples(study.train_steps) == STEPS * BATCH
    seen, real = [], Run.losses

    def losses(run, part):
        inputs, _ = run.read(run.step, part)
        seen.append(inputs.clone())
        return real(run, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "losses", losses)
        whole = trained(study, workload, source(workload))
    if kind != "tensors":  # a stream has an order of its own
        assert torch.equal(torch.cat(seen), Blobs().splits(CPU).train[0][: STEPS * BATCH])
    desk = Desk([fixed_trial(study)], minutes=0)
    assert_same_bits(trained(study, workload, source(workload), desk), whole)
    for _, kept in desk.taken:
        resumed = Desk([fixed_trial(study)], kept={0: kept})
        assert_same_bits(trained(study, workload, source(workload), resumed), whole)


@pytest.mark.parametrize(("kind", "read"), [("Plain", STEPS), ("WithState", STEPS - 7), ("WithWrongState", STEPS)])
def test_a_state_saves_reading_what_came_before(question, kind, read):
    study, workload = question(), Once(kind=kind)
    desk = Desk([fixed_trial(study)], minutes=0)
    trained(study, workload, source(workload), desk)
    _, after_seven = desk.taken[6]
    data = source(workload)
    stream = data.stored.splits["train"].stream
    stream.read = 0
    trained(study, workload, data, Desk([fixed_trial(study)], kept={0: after_seven}))
    assert stream.read == read * BATCH


@pytest.mark.parametrize(("kind", "loaders"), [*((kind, 0) for kind in STREAMS), ("Plain", 1)])
def test_every_trial_sees_each_example_once_in_the_order_of_the_stream(question, kind, loaders):
    data, parts = source(Once(kind=kind), loaders), [slice(0, 4), slice(4, 6)]
    seen = {}
    for seed in (3, 4):
        read = data.reader(Batches(seed, EXAMPLES, BATCH, CPU), parts)
        batches = [read(step, part) for step in range(STEPS) for part in (0, 1, 0)]
        for again in (2, 5):
            assert torch.equal(batches[again][0], batches[again - 2][0])  # an optimizer asks once more
        seen[seed] = torch.cat([inputs for number, (inputs, _) in enumerate(batches) if number % 3 < 2])
    own = Blobs().splits(CPU).train[0]
    order = [next((i for i, each in enumerate(own) if torch.equal(each, inputs)), None) for inputs in seen[3]]
    if kind == "NoDataset":
        assert not torch.equal(seen[3], seen[4])  # random changes depend on the trial
    elif kind == "Ordered":
        assert len({*order}) == STEPS * BATCH
        assert order != [*range(STEPS * BATCH)]
        assert not torch.equal(seen[3], seen[4])
    else:
        assert order == [*range(STEPS * BATCH)]
        assert torch.equal(seen[3], seen[4])


@pytest.mark.parametrize("kind", STREAMS)
def test_training_errors_are_those_of_its_first_examples_whatever_was_trained(question, kind):
    data, study = source(Once(kind=kind)), question()
    first = [(inputs.clone(), targets) for inputs, targets in data.chunks("train", range(40), 7)]
    trained(study, Once(kind=kind), data)
    for (inputs, targets), (other, others) in zip(first, data.chunks("train", range(40), 7), strict=True):
        assert torch.equal(inputs, other)
        assert torch.equal(targets, others)


@pytest.mark.parametrize("kind", ["map-style", "Plain", "WithState"])
def test_readers_end_their_processes_without_the_garbage_collector(question, kind):
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        data = source(Once(kind=kind), loaders=1)
        reader = data.reader(Batches(0, EXAMPLES, BATCH, CPU), [slice(0, BATCH)])
        reader(0, 0)
        iterator = weakref.ref(data.training.loader._iterator)
        assert set(multiprocessing.active_children()) > before
        del data, reader
        assert iterator() is None
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()


@pytest.mark.slow
def test_micro_batches_and_reader_processes_change_nothing_but_rounding(question):
    workload = Once(kind="WithState")
    whole = trained(question(), workload, source(workload))
    parts = trained(question(micro_batch=4), workload, source(workload, loaders=2))
    desks.assert_near({0: replace(parts[0], micro_batch=None)}, whole, 1e-4)


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_stream_that_ends_before_the_budget_is_named(question, loaders):
    workload, study = Once(short=10, validation=20), question()
    with pytest.raises(Failed, match=r"stream ended after 54 examples, but workload.train_examples=64 says .*=54\.$"):
        trained(study, workload, source(workload, loaders))


@pytest.mark.parametrize(
    ("split", "single", "said"),
    [
        (Plain, False, "train split of mine, a Plain, has an order of its own, .*; set budget.single_pass=true, or"),
        (Plain, True, None),
        (Ordered, True, None),
        (NoDataset, True, None),
        (lambda split: zip(*split, strict=True), True, "but it is an iterator, a zip; let each iter"),
        (lambda split: Plain([part[:50] for part in split]), True, "stream ended after 50 examples, but .*=64 says"),
        (lambda split: Plain([split[0], torch.rand(3)]), True, "cannot be computed by iter.*ValueError"),
        (
            lambda split: Changing(split),
            True,
            "starts the train split of mine once more, but a second start gave other",
        ),
    ],
)
def test_streams_are_judged_before_a_sweep(split, single, said):
    made = Blobs()
    train, val, test = made.splits(CPU)
    asked = SimpleNamespace(name="mine", budget=Budget(0, 1, single_pass=single))
    workload = SimpleNamespace(train_examples=EXAMPLES, splits=lambda device: Splits(split(train), val, test))
    if said is None:
        data_check.check_splits(asked, workload, splits_of(workload))
        return
    with pytest.raises(UsageError, match=said):
        data_check.check_splits(asked, workload, splits_of(workload))


class Changing(Plain):
    """Draws from a generator of its own."""

    generator = torch.Generator()

    def __iter__(self) -> Any:
        for inputs, target in zip(*self.split, strict=True):
            yield inputs + torch.randn(inputs.shape, generator=self.generator), target


def test_the_digest_knows_the_first_examples_and_the_length():
    workload = Once()
    splits = splits_of(workload)
    known = digest.digest(workload, splits)
    assert known["data train examples"] == EXAMPLES
    assert digest.changed(known, digest.digest(workload, splits_of(Once(kind="WithState")))) == []
    assert digest.changed(known, digest.digest(workload, splits_of(Once(kind="Ordered")))) == ["train"]
    assert isinstance(splits.train, SinglePass)
    assert Examples(splits).reach("train") == len(splits.train.first) == EXAMPLES


class OrderedWithState(WithState):
    """Its state names the order as well as the place."""

    epoch = 0

    def set_epoch(self, number: int) -> None:
        self.epoch = number

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.epoch = state["place"], state["epoch"]

    def __iter__(self) -> Any:
        order = torch.randperm(len(self.split[1]), generator=torch.Generator().manual_seed(self.epoch))
        for place in range(self.start, len(order)):
            self.place = place + 1
            yield tuple(part[order[place]] for part in self.split)


def test_a_state_that_names_the_order_leaves_each_trial_its_own():
    stream = SinglePass(OrderedWithState(Blobs().splits(CPU).train), EXAMPLES, 40)
    assert len(stream.first) == 40
    assert stream.has_state
    for number in (3, 4, 3):
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(number))[:BATCH]
        read = stream.read(single_pass.Request(number, 0, BATCH))
        assert torch.equal(torch.stack([inputs for inputs, _ in read]), Blobs().splits(CPU).train[0][order])
