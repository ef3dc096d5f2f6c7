"""Evaluation, shared by all engines: which errors are measured when, and the log of a running trial.

Shapes: B examples in a batch, N examples in a split, E evaluations.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from analysis.counting import STOPPING
from study.data import trees
from study.data.hardest import PIECES, Hardest
from study.data.order import epoch_permutation
from study.data.resident import Data, Source, placed
from study.data.trees import Tree
from study.devices import generators, precision
from study.devices.memory import fetched, out_of_memory, release_cached_memory
from study.records import Curve, Study, Trial
from study.user_code.autocast import computed
from study.user_code.whole_split import WholeSplit
from workloads.base import Metric, Workload, judges, metrics_of, optional

T = TypeVar("T")

Predict = Callable[[Tree], Tree]
"""Inputs [N, ...] -> the outputs of l models, one model after the other [l * N, ...]. They are the caller's own."""
Predictors = Callable[[Sequence[int], bool], Predict]
"""(positions of trials, whether to use their averaged weights) -> the function that predicts with these models."""

AVERAGED = "ema_"
"""Prefix of the errors of averaged weights: `val/ema_classification_error`."""
SLACK, SPARE = 1.01, 1.0
"""A part of the examples shows a missed goal if its errors exceed those that the goal allows to all by this factor and
this number of examples: other examples in a chunk can change the last bits of an output, and so a rare error."""


def measured_names(study: Study, workload: Workload) -> list[str]:
    """The names of all measured errors and metrics, such as `val/classification_error`."""
    return [_metric(split, e, a) for a in kinds(study) for split in ("train", "val", "test") for e in judges(workload)]


def kinds(study: Study) -> Sequence[bool]:
    """Which weights are evaluated: False for the weights, True for their average, if the study has one."""
    return (False, True) if study.averages else (False,)


def _metric(split: str, error: str, averaged: bool) -> str:
    return f"{split}/{AVERAGED if averaged else ''}{error}"


class Log:
    """The measurements of one trial so far."""

    def __init__(
        self, study: Study, workload: Workload, data: Source, trial: Trial, micro_batch: int | None = None
    ) -> None:
        self.micro_batch, self.chunk = micro_batch, study.evaluation_chunk
        self.study, self.workload, self.data, self.trial = study, workload, data, trial
        self.first_bad_step: int | None = None
        self.steps: list[int] = []
        self.errors: dict[str, list[float]] = {metric: [] for metric in measured_names(study, workload)}
        self.seconds = {"training": 0.0, "evaluation": 0.0}

    @property
    def evaluations(self) -> int:
        """The number of evaluations made, which is the index of the next one."""
        return len(self.steps)

    def examples(self, split: str) -> Sequence[int]:
        """The indices of the evaluated examples of a split, increasing."""
        return evaluated_examples(self.data.counts[split], self.study.evaluation.examples, self.study.evaluation.part)

    def wants_all(self, step: int, errors: Mapping[str, float]) -> bool:
        """Whether to measure the training subset and the test set too at this step. `errors`: its validation errors."""
        every, threshold = self.study.evaluation.every, self.study.goal.threshold
        on_grid = step == self.study.last_step or (every is not None and (self.evaluations + 1) % every == 0)
        met_before = any(error < threshold for error in self.errors[self.study.goal.metric])
        return on_grid or (self._meets_goal(errors) and not met_before)

    def keeps(self, step: int, errors: Mapping[str, float]) -> bool:
        """Whether the curve holds these validation errors. If evaluations may end early, it holds none where the goal
        was missed, whether or not this evaluation was whole: the curve is the same whatever was measured first."""
        return self.study.evaluation.exact or step == self.study.last_step or self._meets_goal(errors)

    def record(self, step: int, errors: Mapping[str, float]) -> bool:
        """Add the errors measured after `step` updates; returns whether the trial ends here, at its goal or budget."""
        self.steps.append(step)
        for metric, values in self.errors.items():
            values.append(errors.get(metric, math.nan))
        ends_at_goal = STOPPING[self.study.stopping].ends_at_goal
        return step == self.study.last_step or (ends_at_goal and self._meets_goal(errors))

    def _meets_goal(self, errors: Mapping[str, float]) -> bool:
        goal = self.study.goal
        return errors.get(goal.metric, math.inf) < goal.threshold

    def curve(self) -> Curve:
        """The measurements so far as a curve."""
        errors = {metric: np.array(values) for metric, values in self.errors.items()}
        steps = np.array(self.steps, dtype=np.int64)
        parts, goal = (self.micro_batch, self.chunk), self.study.goal
        at_least = {} if self.study.evaluation.exact else {goal.metric: goal.threshold}
        return Curve(self.trial, self.first_bad_step, steps, errors, dict(self.seconds), *parts, at_least)


def evaluate(
    logs: Sequence[Log], steps: Sequence[int], predictors: Predictors, meanwhile: Callable[[], None] = lambda: None
) -> list[bool]:
    """Measure trials of one study together, and return for each whether it ends here. Every trial is measured on the
    validation set, and on the training subset and the test set if its log wants them (`Log.wants_all`).

    If evaluations may end early, a trial is measured on the whole validation set at the end of its budget, and where
    the hardest examples leave open whether it misses the goal.

    Arguments:
        meanwhile: called whenever a GPU has all that it needs for some errors, before the host waits for them.
    """
    errors: list[dict[str, float]] = [{} for _ in logs]
    whole = [*range(len(logs))]
    if not logs[0].study.evaluation.exact:
        early = [i for i, log in enumerate(logs) if steps[i] < log.study.last_step]
        missed = _certain_to_miss(logs, early, predictors, meanwhile)
        whole = [i for i in whole if i not in missed]

    def add(split: str, chosen: Sequence[int]) -> None:
        for averaged in kinds(logs[0].study):
            seen = _remember(logs[0]) if split == "val" and averaged == _judges_average(logs[0].study) else None
            some = [logs[i] for i in chosen]
            found = measure(some, split, predictors(chosen, averaged), seen=seen, meanwhile=meanwhile)
            for i, measured in zip(chosen, found, strict=True):
                errors[i] |= {_metric(split, name, averaged): value for name, value in measured.items()}

    if whole:
        add("val", whole)
    errors = [found if log.keeps(step, found) else {} for log, step, found in zip(logs, steps, errors, strict=True)]
    rest = [i for i, log in enumerate(logs) if log.wants_all(steps[i], errors[i])]
    for split in ("train", "test") if rest else ():
        add(split, rest)
    return [log.record(step, measured) for log, step, measured in zip(logs, steps, errors, strict=True)]


def _certain_to_miss(
    logs: Sequence[Log], positions: Sequence[int], predictors: Predictors, meanwhile: Callable[[], None] = lambda: None
) -> set[int]:
    """The trials at these positions that miss the goal for certain, by their errors on the hardest examples.

    Errors are not negative, so the sum over some examples is a lower bound of the sum over all. Before the first whole
    evaluation no example is known to be hard, and the ranks of a team have different examples: then none is certain.
    """
    log = logs[0]
    goal, data, examples = log.study.goal, log.data, log.examples("val")
    hardest = data.hardest.get(_judged(log))
    if hardest is None or not positions or data.team.size > 1:  # a rank may know some from training alone
        return set()
    resident = data.device.type == "cpu" and isinstance(data, Data)
    pieces = hardest.pieces(len(examples), PIECES if resident else 2)  # reading a sum stalls a GPU or a stream
    some, predict = [logs[i] for i in positions], predictors(positions, _judges_average(log.study))
    enough = (SLACK * goal.threshold + SPARE / len(examples)) * hardest.whole
    sums = torch.zeros(len(positions), dtype=torch.float64)
    for number, piece in enumerate(pieces, start=1):
        chosen = [examples[position] for position in piece]
        errors = _fitting(some, len(chosen), partial(_goal_errors, log, predict, chosen, len(positions)))
        sent = fetched(errors.sum(1))
        meanwhile()
        added = sent()
        sums += added
        # Later pieces are easier: if they added as much as this one and decided nothing, a whole evaluation is cheaper.
        if not ((sums < enough) & (sums + (len(pieces) - number) * added >= enough)).any():
            break
    return {position for position, found in zip(positions, sums.tolist(), strict=True) if found >= enough}


def _goal_errors(log: Log, predict: Predict, chosen: Sequence[int], models: int) -> Tensor:
    """The errors of l models by the goal's error for these validation examples, weighted [l, N]."""
    found = []
    with torch.no_grad():
        for inputs, targets in log.data.chunks("val", chosen, log.chunk):
            [errors, *_] = _per_example(log.workload, predict(inputs), targets, models, [log.study.goal.error])
            found.append(errors.view(models, -1).double())
    return torch.cat(found, 1)


def _remember(log: Log) -> Callable[[Sequence[Tensor], float], None] | None:
    """What whole evaluations tell about the examples (see `measure`); None if evaluations do not end early."""
    if log.study.evaluation.exact or log.data.team.size > 1:
        return None
    number = [*log.workload.errors].index(log.study.goal.error)
    return lambda errors, whole: log.data.hardest.setdefault(_judged(log), Hardest(whole)).add(errors[number])


def _judged(log: Log) -> tuple[Any, ...]:
    """The key of `Data.hardest`: the goal's error, and which examples are evaluated."""
    evaluation = log.study.evaluation
    return log.study.goal.error, evaluation.examples, evaluation.part


def _judges_average(study: Study) -> bool:
    """Whether the goal is an error of averaged weights."""
    return study.goal.metric == _metric("val", study.goal.error, True)


def measure(
    logs: Sequence[Log],
    split: str,
    predict: Predict,
    examples: int | None = None,
    with_metrics: bool = True,
    seen: Callable[[Sequence[Tensor], float], None] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[dict[str, float]]:
    """The errors and metrics of l models on one split: for each model, name -> value.

    If memory runs out, it measures again in chunks of half the size; the logs keep the size.

    Arguments:
        logs: of the l trials; those of one study.
        predict: inputs [N, ...] -> outputs [l * N, ...].
        examples: measure only the first ones of the split; None: all.
        with_metrics: False: only the errors; metrics may be undefined for few examples.
        seen: called with the weighted errors of each example [l, N], one tensor for each error, and the weight of all
            examples; not for a team.
        meanwhile: as in `evaluate`. Metrics are waited for before it.

    Raises:
        RuntimeError, MemoryError: out of memory with chunks of one example.
    """
    log = logs[0]
    chosen = log.examples(split)[:examples]
    metrics = metrics_of(log.workload) if with_metrics else {}
    found = _fitting(logs, len(chosen), partial(_measured, log, split, predict, chosen, len(logs), metrics, seen))
    meanwhile()
    return found()


def _fitting(logs: Sequence[Log], examples: int, attempt: Callable[[], T]) -> T:
    """Call `attempt`, which evaluates this number of examples; halve the chunks of the logs until memory suffices."""
    log = logs[0]
    while True:
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            size = min(log.chunk, examples)
            if size == 1 or log.data.team.size > 1 or not out_of_memory(error):
                raise
        release_cached_memory()
        for each in logs:
            each.chunk = -(-size // 2)


def _measured(
    log: Log,
    split: str,
    predict: Predict,
    chosen: Sequence[int],
    models: int,
    metrics: Mapping[str, Metric],
    seen: Callable[[Sequence[Tensor], float], None] | None,
) -> Callable[[], list[dict[str, float]]]:
    """As `measure`, in chunks of the size that the log holds; the function waits for the errors and returns them."""
    data, workload = log.data, log.workload
    wholes = [WholeSplit(workload.name, metrics, data.device) for _ in range(models)]
    # A metric needs all examples of a split, so every rank of a team measures them.
    shared = not metrics
    share = data.team.share(len(chosen)) if shared else range(len(chosen))
    weigh, count = optional(workload, "error_weights"), len(chosen)
    totals = torch.zeros(len(workload.errors) + bool(weigh), models, dtype=torch.float64, device=data.device)
    kept: list[list[Tensor]] = []
    with torch.no_grad():
        for inputs, targets in data.chunks(split, chosen[share.start : share.stop], log.chunk):
            outputs = predict(inputs)
            each = [values.view(models, -1) for values in _per_example(workload, outputs, targets, models)]
            if each:
                totals += torch.stack([values.sum(1, dtype=torch.float64) for values in each])
            if seen:
                kept.append(each)
            for model, whole in enumerate(wholes):
                whole.add(outputs, targets, model, models)
    if shared:
        data.team.sum(totals)
    sent, metric_values = fetched(totals), [whole.values() for whole in wholes]
    judged = [torch.cat(parts, 1) for parts in zip(*kept, strict=True)]

    def found() -> list[dict[str, float]]:
        totals = sent()
        if seen:
            seen(judged, float(totals[-1, 0]) if weigh else count)
        means = ((totals[:-1] / totals[-1]) if weigh else totals / count).T.tolist()
        each = zip(means, metric_values, strict=True)
        return [dict(zip(workload.errors, values, strict=True)) | more for values, more in each]

    return found


def _per_example(
    workload: Workload, outputs: Tree, targets: Tree, models: int, names: Sequence[str] | None = None
) -> list[Tensor]:
    """The values of the errors of these names (None: of all), models one after the other [l * N]; with `error_weights`
    times the weights, which come last."""
    repeated = trees.mapped(lambda tensor: tensor.repeat(models, *[1] * (tensor.dim() - 1)), targets)
    errors = [workload.errors[name] for name in names or workload.errors]
    each = [error(trees.cloned(outputs), trees.cloned(repeated)) for error in errors]
    if weigh := optional(workload, "error_weights"):
        weights = weigh(trees.cloned(repeated))
        # Not a product: the error of an example without weight, such as one of padding alone, may be NaN.
        each = [*(torch.where(weights > 0, weights * values, 0) for values in each), weights]
    return each


@lru_cache(maxsize=16)
def evaluated_examples(count: int, most: int | None, part: int = 0) -> Sequence[int]:
    """The indices of the evaluated examples among `count`, increasing: all, or a fixed random part of `most`.

    Arguments:
        part: the number of the part; two parts may overlap.
    """
    if most is None or most >= count:
        return range(count)
    return sorted(epoch_permutation(part, 0, count)[:most].tolist())


@contextmanager
def timed(logs: Sequence[Log], what: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds[what]` (`training` or `evaluation`), in equal parts to each log."""
    start = time.perf_counter()
    yield
    elapsed = time.perf_counter() - start
    for log in logs:
        log.seconds[what] += elapsed / len(logs)


def forward(study: Study, model: nn.Module, inputs: Tree) -> Tree:
    """The model's outputs in fp32, computed in the study's precision."""
    return computed(study.precision, trees.device_of(inputs), lambda: trees.call(model, inputs))


def initial_model(
    workload: Workload, trial: Trial, device: torch.device, layout: torch.memory_format = torch.channels_last
) -> nn.Module:
    """The trial's model at step 0, in training mode: drawn on the CPU from the trial's seed alone, then moved."""
    with generators.seeded(trial.seed):
        model = workload.model()
    precision.settle_again()
    return placed(model, layout, device).train()
