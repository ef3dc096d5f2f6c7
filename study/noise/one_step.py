"""The loss after one step, over learning rates and batch sizes, at one point of a run (McCandlish et al. 2018, 2.2).

Shapes: P trained numbers of the model, K batches, E learning rates, M examples on which the loss after a step against
each batch is measured.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from study.data import trees
from study.data.order import Batches, places
from study.devices import generators
from study.engine.run import Run
from study.noise.gradients import Gradients
from study.noise.point import Form
from study.noise.preconditioner import preconditioner
from workloads.layers import set_keys

BATCHES, FEW = 32, 8
"""K, and how many of them find the region of the best learning rate."""
COARSE, FINE = 4.0, 2**0.5
"""The factors between learning rates that find the region, and between those that are recorded."""
MOST = 10
"""The most factors that a search goes away from where it starts."""
LOSSES = 200
"""About as many losses of M examples are measured for a batch size and form: FEW at five rates, K at five."""
EXAMPLES = 256
"""M. Each batch has its own: of shared ones each would have to measure all, and the luck of their choice would be in no
interval."""


class Objective:
    """The mean training loss of M training examples for each of K batches, at any weights of a copy of a run's model.

    Dropout is off, as in evaluations. A model that couples the examples of a batch, as with batch norm, is taken as in
    training: its running statistics would be those of other weights.
    """

    def __init__(self, run: Run, examples: int) -> None:
        self.gradients = Gradients(run, 1)
        self.run, self.model = run, self.gradients.model
        self.parameters = list(self.gradients.trained.values())
        self.base = [parameter.detach().clone() for parameter in self.parameters]
        device = run.data.device
        order = generators.key_of("one step", run.trial.order_seed, run.step)
        index = Batches(order, run.data.examples, examples, device)
        chunks = places(examples, 1, run.log.chunk)[0]
        self._read, self._parts = run.data.reader(index, chunks), range(len(chunks))

    def after(self, number: int, direction: Sequence[Tensor], learning_rate: float) -> float:
        """The loss for batch `number` after a step of this learning rate against a direction, given as its parameters;
        weights return."""
        with torch.no_grad():
            for parameter, base, each in zip(self.parameters, self.base, direction, strict=True):
                torch.sub(base, each, alpha=learning_rate, out=parameter)
            loss = self.loss(number)
            for parameter, base in zip(self.parameters, self.base, strict=True):
                parameter.copy_(base)
        return loss

    def loss(self, number: int) -> float:
        """The loss for batch `number` at the present weights of the copy; infinite if it is not finite."""
        total = weight = 0.0
        self.model.train(not self.gradients.separable)
        with torch.no_grad():
            for part in self._parts:
                inputs, targets = self._read(number, part)
                set_keys(self.gradients.keyed, self.gradients.key, part)
                generators.seed(self.gradients.key, self.run.data.device)
                losses = self.gradients.losses(inputs, targets)
                weights = self.gradients.weights(targets).double()
                total, weight = total + float((losses.double() * weights).sum()), weight + float(weights.sum())
        self.model.train()
        return total / weight if math.isfinite(total) else math.inf


def measured(run: Run, examples: int, batch_sizes: Sequence[int], batches: int = BATCHES) -> dict[str, Any]:
    """Measure the loss after one step of gradient descent and, for Adam and its relatives, of a preconditioned one.

    For each batch size, `batches` gradients are taken at the same weights. The learning rates are searched by hill
    climbing on the mean loss, each batch at every one of them.

    Arguments:
        examples: M.

    Returns:
        `before`, the mean loss at the weights themselves, and `rates`: a record for each form and batch size, with its
        learning rates [E] and losses [K, E]; None for a loss that is not finite.
    """
    objective, factors = Objective(run, examples), preconditioner(run)
    forms: list[Form] = [("plain", None), *([] if factors is None else [("preconditioned", factors)])]
    starts = dict.fromkeys([name for name, _ in forms], run.hyperparameters["learning_rate"])
    rates = []
    for size in batch_sizes:
        found = list(_of_batches(run, size, batches))
        for name, scale in forms:
            directions = [_apart(each if scale is None else each * scale, objective.base) for each in found]
            record = _searched(objective, directions, starts[name])
            best = min(range(len(record["means"])), key=record["means"].__getitem__)
            starts[name] = record["learning_rates"][best]  # that of the next batch size is not far
            rates.append({"form": name, "batch_size": size} | {k: record[k] for k in ("learning_rates", "losses")})
    return {"before": sum(map(objective.loss, range(batches))) / batches, "rates": rates}


def _of_batches(run: Run, size: int, batches: int) -> Iterator[Tensor]:
    """The gradients [P] of batches of this size, each computed in parts that memory allows."""
    gradients = Gradients(run, size, purpose=f"one step {size}")
    most = size if not gradients.separable else run.log.chunk
    parts = places(size, 1, most)[0]
    for number in range(batches):
        inputs, targets = gradients.block(number)
        shares = [
            gradients.of_batch(place, trees.part(inputs, part), trees.part(targets, part)) * (part.stop - part.start)
            for place, part in enumerate(parts, number * len(parts))
        ]
        yield torch.stack(shares).sum(0) / gradients.weights(targets).sum()


def _apart(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A flat vector [P] as parameters of these shapes."""
    return [part.view_as(each) for part, each in zip(flat.split([p.numel() for p in like]), like, strict=True)]


def _searched(objective: Objective, directions: Sequence[list[Tensor]], start: float) -> dict[str, Any]:
    """The learning rates around the best one [E], increasing, with the losses [K, E] and means [E] after one step."""
    losses: dict[float, list[float]] = {}

    def mean(rate: float, count: int) -> float:
        held = losses.setdefault(rate, [])
        held += [objective.after(number, directions[number], rate) for number in range(len(held), count)]
        return sum(held[:count]) / count

    near = start * COARSE ** climbed(lambda power: mean(start * COARSE**power, min(FEW, len(directions))))
    climbed(lambda power: mean(near * FINE**power, len(directions)))
    whole = sorted(rate for rate, held in losses.items() if len(held) == len(directions))
    columns = [losses[rate] for rate in whole]
    rows = [[each if math.isfinite(each) else None for each in row] for row in zip(*columns, strict=True)]
    return {"learning_rates": whole, "losses": rows, "means": [sum(column) / len(column) for column in columns]}


def climbed(height: Callable[[int], float]) -> int:
    """The first whole number no higher than its neighbours, going downhill from 0; where nothing is finite, down.

    At most MOST away from 0, where the ground may still fall.
    """
    place, known = 0, {0: height(0)}
    while abs(place) < MOST:
        for beside in (place - 1, place + 1):
            if beside not in known:
                known[beside] = height(beside)
        lowest = min((place, place - 1, place + 1), key=known.__getitem__)
        if lowest == place and math.isfinite(known[place]):
            break
        place = lowest if lowest != place else place - 1
    return place
