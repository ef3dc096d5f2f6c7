"""Builds a workload, loads its data, and takes a few training steps on the CPU."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from analysis.question.columns import TABLE_COLUMNS
from study.checks.calling import FEW, calling, in_the_loss
from study.checks.data import check_count, check_fresh_data, check_members, check_splits
from study.checks.functions import check_functions
from study.checks.goal import check_falls
from study.checks.model import check_apart, check_evaluation, check_model, first, mixture
from study.checks.optimizer import check_optimizer, check_treatments, mean_factor
from study.checks.padding import check_padding
from study.checks.state import State, check_first_batch, stateful
from study.checks.values import check_values
from study.config.composed.choices import OTHER_NAMES
from study.config.fingerprint import fingerprint
from study.config.jobs import Job
from study.data import streaming
from study.data.digest import spaced
from study.data.examples import Examples, splits_of
from study.data.resident import EVALUATION_CHUNK, Data
from study.engine.can_fuse import lanes_fail
from study.engine.trial.evaluation import measured_names
from study.errors import UsageError, usage_errors
from study.records import COMMAND, Study
from study.schedules import SCHEDULE
from study.user_code.activations import evaluation_bytes, saved_bytes
from study.user_code.kept import Kept
from study.user_code.notes import notes
from workloads.base import Splits, Workload, metrics_of, optional
from workloads.suggest import suggest
from workloads.user_code.importing import build

CHECKED_BYTES = 2**26
"""Most bytes of the outputs with which loss and errors are checked; fewer examples if they are large."""


@dataclass(frozen=True)
class CheckedWorkload:
    """A workload that several studies share, and the results of the check on its first examples.

    Attributes:
        few: inputs and targets of the first examples.
        saved: bytes that the forward pass saves for each example.
        evaluated: bytes that an evaluation keeps for each example.
        streamed: the data do not fit on the device.
        layout: of images and weights (see `study.data.streaming.layout_for`).
        state: what the model keeps beside its parameters and buffers.
        notes: what may not be meant (`study.user_code.notes`).
        fresh: what its code kept before the first call.
        fails: question at a small batch size, and kind of device -> why its lanes fail there (`lanes_fail`).
    """

    workload: Workload
    few: tuple[Tensor, Tensor]
    saved: float
    evaluated: float
    fingerprint: Mapping[str, float]
    streamed: bool
    layout: torch.memory_format
    state: State
    notes: tuple[str, ...]
    fresh: Kept
    fails: dict[str, str | None] = field(default_factory=dict)

    @property
    def data(self) -> Data:
        """The first examples as every split."""
        return Data.of(Splits(self.few, self.few, self.few), layout=self.layout)

    def lanes_fail(self, study: Study, device: str) -> str | None:
        """Why lanes of this study fail on a device (see `study.engine.can_fuse.lanes_fail`), found out once for all
        batch sizes."""
        small = replace(study.constant, batch_size=min(2, study.workload["train_examples"]))
        key = json.dumps([small.question(), torch.device(device).type])
        if key not in self.fails:
            self.fails[key] = lanes_fail(small, self.workload, self.data, device, self.fresh)
        return self.fails[key]


def checked_for(job: Job, checked: dict[str, CheckedWorkload], device: str) -> CheckedWorkload:
    """The job's workload, built once for all jobs that share it, and checked for this job's study.

    Arguments:
        checked: those of other jobs; a new one is added.
        device: that trains.

    Raises:
        UsageError: the workload refuses its arguments, or cannot be trained as the study asks.
    """
    key = str((job.study.workload, job.study.search.fresh_data))
    with usage_errors():
        if key not in checked:
            checked[key] = _built(job, device)
        _check(job.study, checked[key], device)
    return checked[key]


def _built(job: Job, device: str) -> CheckedWorkload:
    study = job.study
    workload = build(study.workload)
    check_members(study, workload)
    with calling(study, "splits()"):
        splits = splits_of(workload)
    check_splits(study, workload, splits)
    before = Kept(workload)
    examples = Examples(splits, optional(workload, "collate"))
    check_count(study, examples)
    check_fresh_data(study, workload, splits)
    few = examples.read("train", range(min(FEW, examples.count("train"))))
    layout = check_model(study, workload, *few)
    counts = [min(examples.count("val"), examples.count(split)) for split in ("train", "val")]
    check_evaluation(study, workload, *few, layout, [*counts, examples.count("test")])
    evaluated = evaluation_bytes(workload, *few)
    state = _behaviour(study, workload, examples, layout, evaluated, before)
    check_values(study, workload, examples)
    saved = saved_bytes(workload, *few, in_the_loss(study, workload))
    streamed = streaming.needed(splits, device, job.placement.data_memory)
    of_workload = {**fingerprint(study, workload, few, splits)} | mean_factor(study, workload)
    spread = examples.read("train", spaced(examples.reach("train"), FEW))  # they may be sorted by label or length
    noted = notes(workload, examples, spread, in_the_loss(study, workload), study.precision)
    return CheckedWorkload(workload, few, saved, evaluated, of_workload, streamed, layout, state, noted, before)


def _behaviour(
    study: Study,
    workload: Workload,
    examples: Examples,
    layout: torch.memory_format,
    evaluated: float,
    before: Kept,
) -> State:
    """Check loss, errors, metrics and weights; returns what the model keeps beside parameters and buffers.

    Arguments:
        evaluated: bytes that an evaluation keeps for each example.
        before: see `check_first_batch`.
    """
    chosen, val = mixture(examples.reach("train")), examples.count("val")
    most = max(3, int(CHECKED_BYTES / evaluated))
    mixed = examples.read("train", chosen[:: -(-len(chosen) // most)])
    more = examples.read("val", range(min(val, EVALUATION_CHUNK)))[1] if metrics_of(workload) else None
    check_functions(study, workload, *mixed, layout, more)
    check_padding(study, workload, examples)
    state = stateful(study, workload, *mixed, layout)
    check_first_batch(study, workload, before, *mixed, layout)
    return state


def _check(study: Study, checked: CheckedWorkload, device: str) -> None:
    """Raise an error unless the workload can be trained as this study asks."""
    inputs, targets = checked.few
    if study.batch_size < FEW:  # many models fail on one example
        check_model(study, checked.workload, first(inputs, study.batch_size), first(targets, study.batch_size))
    check_names(study, checked.workload)
    if not study.evaluation.exact:
        check_apart(study, checked.workload, inputs, checked.layout)
    check_treatments(study, checked.workload)
    if device == "cpu":  # some optimizers of other packages need a GPU: the worker there checks them
        check_optimizer(study, checked.workload, checked.data)


def check_names(study: Study, workload: Workload) -> None:
    """Raise UsageError if neither optimizer, schedule nor workload takes a tuned parameter, or nothing measures the
    goal."""
    measured = measured_names(study, workload)
    if study.goal.metric not in measured:
        raise UsageError(f"{study.name} does not measure {study.goal.metric!r}{suggest(study.goal.metric, measured)}")
    check_falls(study.goal)
    if not study.evaluation.exact and study.goal.error not in workload.errors:
        raise UsageError(
            f"evaluation.exact=false needs an error of each example, but {study.goal.error} of {study.name} is a "
            "metric of the whole split; choose another goal or evaluation.exact=true."
        )
    if isinstance(workload.hyperparameters, str):
        raise UsageError(
            f"hyperparameters of {study.name} must be a tuple of names, but got the text "
            f"{workload.hyperparameters!r}; a tuple of one name has a comma: ({workload.hyperparameters!r},)."
        )
    of_training = {SCHEDULE, *study.asked_hyperparameters, *study.optional_hyperparameters}
    asked = {*of_training, *workload.hyperparameters}
    for name in sorted(of_training.intersection(workload.hyperparameters, study.search.space)):
        if study.arithmetic != COMMAND:  # a command gets all hyperparameters, and nothing else applies them
            raise UsageError(
                f"{name} is a hyperparameter of both optimizer {study.optimizer} with {study.scheduled_by} and the "
                f"loss of {study.name}, and one search.space.{name} would set both; give that of the loss another name."
            )
    for name in study.search.space:
        if name not in asked:
            hint = suggest(OTHER_NAMES.get(name, name).removeprefix("search.space."), asked)
            neither = f"neither optimizer {study.optimizer}, {study.scheduled_by} nor workload {study.name}"
            raise UsageError(f"search.space.{name} is a parameter of {neither}{hint}")
        if name in TABLE_COLUMNS:
            raise UsageError(
                f"search.space.{name} would share its name with a column of the tables; let {study.name} call it "
                f"own_{name}."
            )
