"""Ordinary user code trains as a plain loop does, in every engine, and leaves the data as they are.

Each row of KINDS is a habit of users; each engine computes it in its own way: one trial at a time, fused, accumulated
over micro-batches, on two devices, or from data that are streamed.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.desks import Desk, assert_same_bits, full, room_for
from helpers.desks import trained as train_all
from helpers.fused import partly
from helpers.processes import Crew
from helpers.users import plain_loop
from helpers.users import workloads as users

from study.data import streaming, trees
from study.data.examples import splits_of
from study.data.resident import Data
from study.devices import generators
from study.devices.distributed import Team
from study.engine.trial import evaluation
from study.errors import Failed
from study.records import Study
from study.settings import Evaluation

KINDS: dict[str, tuple[type[users.Base], set[str]]] = {
    "no habits": (users.Base, set()),
    "class weights": (users.ClassWeights, set()),
    "weights of errors": (users.ErrorWeights, set()),
    "metrics of a whole split": (users.Metrics, set()),
    "state in attributes": (users.Stateful, {"lanes", "accumulated", "two devices"}),
    "a model that writes into its inputs": (users.WritingModel, set()),
    "functions that write into their arguments": (users.WritingFunctions, set()),
    "inputs by name": (users.DictInputs, set()),
    "several inputs": (users.TupleInputs, set()),
    "trees of outputs and targets": (users.TreeOutputs, set()),
    "augmentation": (users.Augmenting, set()),
    "a mask, and attention": (users.Masked, set()),
    "view after a convolution": (users.Images, {"lanes"}),
}
"""Habit -> workload, and the engines that refuse it or are not chosen for it."""
ENGINES = ["serial", "lanes", "accumulated", "two devices", "streaming"]
TRIALS = 4
SPACE = {"learning_rate": {"choices": [0.03, 0.05, 0.04, 0.02]}, "momentum": {"choices": [0.9, 0.0, 0.5, 0.8]}}


def study_of(make_study: Any, batch_size: int, **fields: Any) -> Study:
    grid = Evaluation(first=0.1, ratio=1.6, every=1)
    return make_study(steps=24, batch_size=batch_size, space=SPACE, examples=500, evaluation=grid, **fields)


def trials_of(study: Study) -> list[Any]:
    return [study.trial(i, {name: each.choices[i] for name, each in study.search.space.items()}) for i in range(TRIALS)]


def on_team(team: Team, study: Study, workload: Any) -> list[Any]:
    data = streaming.source(splits_of(workload), "cpu", None, 0, workload).shared(team)
    curves = train_all(study, Desk(trials_of(study)), workload=workload, data=data)
    return [curves[index] for index in range(TRIALS)]


@pytest.fixture(scope="module")
def pair() -> Any:
    with Crew(2) as crew:
        yield crew


def computed(engine: str, study: Study, workload: Any, request: pytest.FixtureRequest) -> list[Any]:
    if engine == "two devices":
        return request.getfixturevalue("pair").run(2, on_team, study, workload)[0]
    gigabytes = 0.0 if engine == "streaming" else None
    data = streaming.source(splits_of(workload), "cpu", gigabytes, 0, workload)
    before = trees.cloned([data.inputs, data.targets, dict(data.evaluated)]) if isinstance(data, Data) else None
    curves = train_all(study, Desk(trials_of(study)), heights=(4,), workload=workload, data=data)
    if isinstance(data, Data):
        after = trees.leaves([data.inputs, data.targets, dict(data.evaluated)])
        assert all(torch.equal(one, other) for one, other in zip(trees.leaves(before), after, strict=True))
    return [curves[index] for index in range(TRIALS)]


def _cells() -> list[Any]:
    """Every kind in every engine: a part of them by default, each kind among the slow tests, the others before
    a release.

    Those on two devices are slow: the processes of a team take seconds to start (test_devices starts one by default).
    """
    cells = []
    for k, (kind, (_, refused)) in enumerate(KINDS.items()):
        for e, engine in enumerate(ENGINES):
            both = engine in ("serial", "lanes")
            for batch_size in (2, 16) if engine not in refused else ():
                first = (batch_size == 2) == ((k + e) % 2 == 0)
                if not (first or both):
                    continue
                fast = first and (k + e) % 8 == 0 and engine != "two devices"
                marks = [] if fast else [pytest.mark.slow if first and (k + e) % 3 == 0 else pytest.mark.release]
                cells.append(pytest.param(kind, engine, batch_size, marks=marks))
    return cells


@pytest.mark.parametrize(("kind", "engine", "batch_size"), _cells())
def test_user_code_trains_as_in_a_plain_loop(make_study, request, kind, engine, batch_size):
    make, _ = KINDS[kind]
    workload, fields = make(), {}
    if engine == "lanes":
        model = type(workload.model())
        fields["arithmetic"] = "linear_chain" if model is torch.nn.Sequential else "vmap"
    if engine == "accumulated":
        fields["micro_batch"] = max(1, batch_size // 3)
    study = study_of(make_study, batch_size, **fields)
    curves = computed(engine, study, workload, request)
    for trial, curve in zip(trials_of(study), curves, strict=True):
        wanted = plain_loop.by_hand(study, make(), trial)
        assert {f"val/{name}" for name in wanted} <= curve.errors.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(curve.errors[f"val/{name}"], values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("loaders", "micro_batch"), partly([(2, 5), (2, None), (0, 5)], 3))
def test_a_random_getitem_depends_on_order_seed_step_and_index_alone(make_study, loaders, micro_batch):
    """With any number of loaders and micro-batches, as a plain loop that seeds before each example."""
    workload, study = users.RandomItems(), study_of(make_study, 16, micro_batch=micro_batch)
    data = streaming.source(splits_of(workload), "cpu", None, loaders, workload)
    curves = train_all(study, Desk(trials_of(study)[:2]), workload=workload, data=data)
    for trial in trials_of(study)[:2]:
        for name, values in plain_loop.by_hand(study, workload, trial).items():
            np.testing.assert_allclose(curves[trial.index].errors[f"val/{name}"], values, rtol=1e-5)


@pytest.mark.slow
def test_code_that_draws_does_so_from_its_own_trial_and_leaves_the_generators_as_they_were(make_study):
    """Every global generator: in model, forward, loss, error and `__getitem__`."""
    workload, study = users.Drawing(), study_of(make_study, 16)
    data = streaming.source(splits_of(workload), "cpu", None, 0, workload)
    before = generators.states()
    together = train_all(study, Desk(trials_of(study)), workload=workload, data=data)
    assert generators.states() == before
    generators.seed(17)
    again = streaming.source(splits_of(workload), "cpu", None, 0, workload)
    alone = train_all(study, Desk(trials_of(study)[2:3]), workload=workload, data=again)
    assert_same_bits({2: together[2]}, alone)
    assert not np.array_equal(together[0].errors["val/loss"], together[1].errors["val/loss"])


@pytest.mark.parametrize("make", partly([users.Stateful, users.Drawing, users.Augmenting, users.RandomItems], 2))
def test_a_trial_of_such_code_continues_from_any_checkpoint(make_study, make):
    workload, study = make(), study_of(make_study, 16)
    data = streaming.source(splits_of(workload), "cpu", None, 0, workload)
    desk = Desk(trials_of(study)[:1], minutes=0)
    whole = train_all(study, desk, workload=workload, data=data)
    for _, content in desk.taken[::7]:
        continued = Desk(trials_of(study)[:1], kept={0: content})
        assert_same_bits(train_all(study, continued, workload=workload, data=data), whole)
        assert continued.pace.made < desk.pace.made


def test_state_that_no_checkpoint_can_hold_is_said(make_study):
    workload, study = users.Remembering(), study_of(make_study, 16)
    desk = Desk(trials_of(study)[:1], minutes=0)
    with pytest.warns(UserWarning, match=r"checkpoints cannot hold seen \(deque\).*starts again from step 0"):
        train_all(study, desk, workload=workload, data=Data.of(workload.splits(users.CPU)))
    assert not desk.taken


def test_an_evaluation_leaves_no_trace_in_the_model(make_study):
    """A counter that also evaluations increase has the value of training alone."""
    workload, study = users.CountingAlways(), study_of(make_study, 16)
    data = Data.of(workload.splits(users.CPU))
    often = train_all(study, Desk(trials_of(study)), workload=workload, data=data)
    rare = replace(study, evaluation=Evaluation(first=1.0, ratio=2.0, every=1))
    once = train_all(rare, Desk(trials_of(rare)), workload=workload, data=data)
    for index, curve in once.items():
        assert curve.errors["val/loss"][-1] == often[index].errors["val/loss"][-1]


@pytest.mark.parametrize("arithmetic", partly(["plain", "linear_chain"], 2, 1))
def test_evaluations_take_smaller_chunks_when_memory_runs_out(make_study, monkeypatch, arithmetic):
    study, workload = study_of(make_study, 16, arithmetic=arithmetic), users.Metrics()
    data = Data.of(workload.splits(users.CPU))
    whole = train_all(study, Desk(trials_of(study)), workload=workload, data=data)
    measured = evaluation._measured

    def bounded(log: Any, *rest: Any) -> Any:
        return full() if log.chunk > 70 else measured(log, *rest)

    monkeypatch.setattr(evaluation, "_measured", bounded)
    small = train_all(study, Desk(trials_of(study)), workload=workload, data=data)
    for index, curve in small.items():
        assert curve.evaluation_chunk == 50  # half of half of 200
        for name, errors in whole[index].errors.items():
            np.testing.assert_allclose(curve.errors[name], errors, rtol=1e-5)


class Placed(users.MeanLoss):
    """Counts on the device to which it was moved, as metrics of torchmetrics do."""

    device = torch.device("meta")

    def to(self, device: torch.device) -> None:
        self.device = device

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        assert self.device == outputs.device == targets.device
        super().update(outputs, targets)


def test_metrics_with_tensors_are_moved_to_the_device_of_the_data(make_study):
    class Workload(users.Base):
        metrics = {"mean_loss": Placed()}  # noqa: RUF012

    study = study_of(make_study, 16)
    curves = train_all(study, Desk(trials_of(study)[:1]), workload=Workload(), data=Data.of(users.blobs()))
    np.testing.assert_allclose(curves[0].errors["val/mean_loss"], curves[0].errors["val/loss"], rtol=1e-5)
    assert Workload.metrics["mean_loss"].device.type == "meta"


@pytest.mark.parametrize("gigabytes", [None, 0.0])
def test_a_fixed_part_of_a_split_is_measured(make_study, gigabytes):
    workload = users.Metrics()
    study = study_of(make_study, 16)
    study = replace(study, evaluation=replace(study.evaluation, examples=50))
    data = streaming.source(splits_of(workload), "cpu", gigabytes, 0, workload)
    [curve] = train_all(study, Desk(trials_of(study)[:1]), workload=workload, data=data).values()
    chosen = evaluation.evaluated_examples(200, 50)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == 50 > sum(index < 50 for index in chosen)

    class Part(users.Metrics):
        def splits(self, device: torch.device) -> Any:
            train, val, test = super().splits(device)
            return type(super().splits(device))(train, tuple(each[torch.tensor(chosen)] for each in val), test)

    for name, values in plain_loop.by_hand(study, Part(), trials_of(study)[0]).items():
        np.testing.assert_allclose(curve.errors[f"val/{name}"], values, rtol=1e-5)


def test_state_in_attributes_is_refused_when_memory_runs_out_for_the_whole_batch(make_study, monkeypatch):
    """Half the micro-batch makes twice as many forward passes."""
    study = study_of(make_study, 16)
    room_for(8, monkeypatch)
    with pytest.raises(Failed, match=r"must be one forward pass, which changes the attribute n of its model"):
        train_all(study, Desk(trials_of(study)), workload=users.Stateful(), data=Data.of(users.blobs()))
    assert train_all(study, Desk(trials_of(study)), workload=users.Base(), data=Data.of(users.blobs()))
