"""Checks that the loss, each error and the weights of an example depend on that example alone.

Engines split batches, and evaluate splits in parts and lanes side by side. So a number of an example must be the same
alone, beside other examples, at another place, and in batches of any size.

Shapes: P examples of a pool, B examples in a batch.
"""

import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from study.checks import broadcast
from study.checks.calling import FEW, calling, loss_of
from study.checks.model import (
    augmented,
    built,
    check_metrics,
    check_weights,
    computed,
    first,
    of_targets,
    values_of,
)
from study.data import trees
from study.data.trees import Tree
from study.devices import generators
from study.errors import UsageError
from study.records import Study
from workloads.base import PerExample, Workload, cross_entropy_error, optional

RELATIVE, OF_SCALE = 1e-5, 1e-6
"""Largest difference by rounding: relative to a number, plus relative to the largest number of the check."""
ROUNDING = 1e-3
"""Relative to the largest number: differences below it may be rounding that cancellation made large. float64 tells."""
SIZES = (16, 64, 256, 1024, 4096, 16384)
"""Sizes of the larger batches."""
LARGEST = 2**25
"""Most bytes of the outputs in a larger batch."""
SECONDS = 0.05
"""Longest expected time of one call with a larger batch: losses may loop over examples in Python."""
SUM = 1e-2
"""Largest difference from 1 of a sum of probabilities, in bf16, too."""
COUPLED = 1e-6
"""Largest gradient at another example's outputs, relative to that at its own."""
EACH = "leave out a mean over examples, which the losses of torch do with reduction='none'; "
INSTEAD = {
    "loss": EACH + "for a weighted one give the workload `weights(targets) -> [B]`; if the loss compares examples, as "
    "contrastive ones do, let each example be a group of them, with inputs [B, G, ...], or train by a script of your "
    "own (docs/guide/own-script.md)",
    "errors": EACH + "use `metrics = {name: f(outputs [N, ...], targets [N, ...]) -> float}` for a number of a whole "
    "split, and `error_weights(targets) -> [B]` for a weighted mean",
    "weights": "compute constants such as class frequencies once, from the training set",
}
"""Kind of function -> the supported form."""


Rows = list[int] | Tensor
"""Numbers of examples of a pool."""


@dataclass(frozen=True)
class Pool:
    """Examples from which batches are taken.

    Attributes:
        outputs, targets: trees of tensors [P, ...].
        moving: for each tensor of the outputs, whether its first axis is that of the examples.
        originals: number of examples that come first; the same with other outputs follow.
    """

    outputs: Any
    targets: Tree
    moving: tuple[bool, ...]
    originals: int

    def take(self, rows: Rows) -> tuple[Any, Tree]:
        """The batch of these examples."""
        index = torch.as_tensor(rows)
        moves = iter(self.moving)
        outputs = trees.mapped(lambda leaf: leaf[index] if next(moves) else leaf.clone(), self.outputs)
        return outputs, trees.part(self.targets, index)

    def mapped(self, function: Any) -> "Pool":
        """The pool with a function applied to each tensor of outputs of floating-point numbers."""
        outputs = trees.mapped(lambda leaf: function(leaf) if leaf.is_floating_point() else leaf, self.outputs)
        return Pool(outputs, self.targets, self.moving, self.originals)


@generators.restored()
def check_functions(
    study: Study,
    workload: Workload,
    inputs: Tree,
    targets: Tree,
    layout: torch.memory_format,
    val_targets: Tree | None = None,
) -> None:
    """Raise UsageError if a number of an example depends on other examples, or metrics or weights cannot be used.

    Arguments:
        inputs, targets: the examples of `study.checks.model.mixture`.
        layout: the one in which the model trains and evaluates.
        val_targets: targets of validation examples, for metrics that are undefined for few examples.
    """
    check_weights(study, workload, targets)
    for name in ("weights", "error_weights"):
        if (weights := optional(workload, name)) is not None:
            alone = Pool((), targets, (), trees.count(targets))
            _check_alone(study, name, of_targets(weights), alone, "weights")
    pools = {training: _pool(study, workload, inputs, targets, layout, training) for training in (True, False)}
    if (pool := pools[True]) is not None:
        _check_alone(study, "loss", loss_of(study, workload), pool, "loss")
        _check_logits(study, workload, pool)
    if (pool := pools[False]) is not None:
        with torch.no_grad():
            for name, error in workload.errors.items():
                _check_alone(study, f"errors[{name!r}]", error, pool, "errors")
            check_metrics(study, workload, _samples(pool, targets, val_targets))


def _check_logits(study: Study, workload: Workload, pool: Pool) -> None:
    """Raise UsageError if the loss takes probabilities for logits: softmax twice, which hardly learns."""
    outputs, targets = pool.outputs, pool.targets
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or targets.shape != outputs.shape[:-1]:
        return
    if outputs.shape[-1] < 2 or targets.is_floating_point() or not _is_distribution(outputs):
        return
    losses = loss_of(study, workload)(outputs.clone(), targets.clone())
    if torch.allclose(losses, cross_entropy_error(outputs, targets).to(losses.dtype)):
        raise UsageError(
            f"{study.name}'s model returns probabilities, whose sum is 1, but the cross entropy in its loss takes "
            "logits and computes their softmax itself; leave out the softmax of the model."
        )


def _is_distribution(outputs: Tensor) -> bool:
    """Whether the numbers of the last axis are probabilities of classes."""
    return bool((outputs >= 0).all()) and bool(((outputs.float().sum(-1) - 1).abs() < SUM).all())


def _samples(pool: Pool, targets: Tree, val_targets: Tree | None) -> Iterator[tuple[Any, Tree]]:
    """Outputs and targets of the examples, then of validation examples with outputs of others."""
    count = trees.count(targets)
    yield pool.take(list(range(count)))
    if val_targets is not None:
        rows = [number % count for number in range(trees.count(val_targets))]
        yield pool.take(rows)[0], val_targets


def _pool(
    study: Study, workload: Workload, inputs: Tree, targets: Tree, layout: torch.memory_format, training: bool
) -> Pool | None:
    """The examples, then the same with the outputs of their neighbours, then FEW with outputs of another model.

    None if no tensor of the outputs has the examples as its first axis.
    """
    count, few = trees.count(targets), min(FEW, trees.count(targets))
    inputs = augmented(study, workload, inputs) if training else inputs
    with torch.no_grad():
        outputs = computed(study, built(study, workload).train(training), inputs, layout)
        part = computed(study, built(study, workload, seed=1).train(training), first(inputs, few), layout)
    all_of, some = trees.leaves(outputs), trees.leaves(part)
    if len(all_of) != len(some):
        return None
    moving = tuple(
        a.dim() > 0 and (len(a), len(b)) == (count, few) and a.shape[1:] == b.shape[1:]
        for a, b in zip(all_of, some, strict=True)
    )
    if not any(moving):
        return None
    pairs = iter(zip(some, moving, strict=True))

    def enlarged(leaf: Tensor) -> Tensor:
        other, moves = next(pairs)
        return torch.cat([leaf, leaf.roll(1, 0), other]) if moves else leaf

    labels = trees.mapped(lambda leaf: torch.cat([leaf, leaf, leaf[:few]]), targets)
    return Pool(trees.mapped(enlarged, outputs), labels, moving, count)


def _check_alone(study: Study, name: str, function: PerExample, pool: Pool, kind: str) -> None:
    """Raise UsageError if a number of an example depends on other examples. Two outputs are tried: those of the model,
    and noisy ones where the function takes them: many initial models give the same outputs for all examples."""
    Check(study, name, function, pool, kind).run()
    if not pool.moving:
        return
    generator = torch.Generator().manual_seed(0)

    def noisy(leaf: Tensor) -> Tensor:
        return 2 * leaf + torch.randn(leaf.shape, generator=generator).to(leaf.dtype)

    other = pool.mapped(noisy)
    try:
        with generators.seeded(0):
            taken = function(*other.take(list(range(trees.count(other.targets)))))
        usable = bool(taken.isfinite().all())
    except Exception:  # a function of probabilities may refuse other numbers
        usable = False
    if usable:
        Check(study, name, function, other, kind).run()


class Check:
    """The check of one function on one pool. Attributes are the arguments of `_check_alone`."""

    def __init__(self, study: Study, name: str, function: PerExample, pool: Pool, kind: str) -> None:
        self.study, self.name, self.function, self.pool, self.kind = study, name, function, pool, kind
        self.count = trees.count(pool.targets)
        few = min(FEW, self.count)
        rest = max(1, pool.originals - few)
        spread = [(few + number * rest // few) % pool.originals for number in range(few)]
        self.bases = [list(range(few)), spread]
        self.known = torch.full((self.count,), torch.nan, dtype=torch.float64)
        """The number of each example alone, or in the first batch that holds it; NaN: not known."""
        self.alone, self.draws = True, False

    def run(self) -> None:
        """Raise UsageError if the function depends on other examples."""
        base = self.bases[0]
        before = generators.states()
        values = self._values(self.pool, base)
        self.draws = before != generators.states()
        values, again = (self._values(self.pool, base) for _ in range(2))
        self.scale = float(values.nan_to_num().abs().max())
        if not torch.equal(values.nan_to_num(), again.nan_to_num()) and self._differ(values, again).any():
            raise UsageError(
                f"{self.study.name}'s {self.name} gives other numbers when it is called again with the same examples "
                f"({values[0]:.6g}, then {again[0]:.6g}): it keeps state, or draws from a generator that no seed "
                "settles, such as np.random.default_rng(). Draw from the global generators of torch, NumPy or "
                "`random`, which are seeded for each call."
            )
        if self.draws:  # random numbers depend on places, so only batches of one size can be compared
            self._know(base, values)
            for rows in self._beside(base, longer=False):
                self._compare(rows)
            self._check_gradient(base)
            return
        for rows in self.bases:
            self._know_alone(rows)
        each = trees.nbytes(self.pool.outputs) / self.count
        for rows in self.bases:
            for batch in self._batches(rows):
                if len(batch) <= 2 * len(rows) or len(batch) * each <= LARGEST:
                    self._compare(batch)
            self._check_gradient(rows)
        self._check_sizes()

    def _values(self, pool: Pool, rows: Rows) -> Tensor:
        """The numbers of the examples in this batch in float64 [B]."""
        outputs, targets = pool.take(rows)
        shapes = f"{len(rows)} examples, targets {trees.described(targets)}"
        with torch.no_grad(), generators.seeded(0) if self.draws else nullcontext():
            values = values_of(self.study, self.name, self.function, outputs, targets, shapes, finite=False)
        return values.detach().double()

    def _know(self, rows: list[int], values: Tensor) -> None:
        """Remember the numbers of examples that are not known yet."""
        for row, value in zip(rows, values, strict=True):
            self.known[row] = torch.where(self.known[row].isnan(), value, self.known[row])
        self.scale = float(self.known.nan_to_num().abs().max())

    def _know_alone(self, rows: list[int]) -> None:
        """Compute the number of each example alone. Some functions refuse batches of one example, which only some
        studies have: then in the batch."""
        try:
            self._know(rows, torch.cat([self._values(self.pool, [row]) for row in rows]))
        except UsageError:
            self.alone = False
            self._know(rows, self._values(self.pool, rows))

    def _batches(self, rows: list[int]) -> Iterator[list[int]]:
        """Batches that hold examples of `rows`: parts, other orders, repetitions, and beside others."""
        few = len(rows)
        yield rows
        yield from (rows[:3], rows[3:], rows[: few // 2], rows[few // 2 :]) if few > 3 else ()
        yield rows[::-1]
        yield [*rows[3:], *rows[:3]]
        yield from (rows * 2, rows * FEW)
        yield from self._beside(rows)

    def _beside(self, rows: list[int], longer: bool = True) -> Iterator[list[int]]:
        """Batches in which some examples stay at their places and others, with other outputs, take the rest."""
        few, others = len(rows), [row for row in range(self.count) if self.known[row].isnan()]
        if not others:
            return
        for shift, kept in enumerate((1, few // 2, few - 1)):
            strange = [others[(7 * shift + number) % len(others)] for number in range(few)]
            yield [*rows[:kept], *strange[kept:]]
            yield [*strange[:kept], *rows[kept:]]
        if longer:
            yield [*rows, *others[-few:]]
            yield [*others[:few], *rows]

    def _check_sizes(self) -> None:
        """Compare larger batches, as long as they are cheap. The known examples are in the middle."""
        generator = torch.Generator().manual_seed(1)
        rows = torch.tensor([row for base in self.bases for row in base])
        each = trees.nbytes(self.pool.outputs) / self.count
        seconds = 0.0
        for before, size in zip((1, *SIZES), SIZES, strict=False):
            if size * each > LARGEST or seconds * size / before > SECONDS:
                return
            others = torch.randint(self.count, (max(0, size - len(rows)),), generator=generator)
            start = time.perf_counter()
            self._compare(torch.cat([others[size // 2 :], rows, others[: size // 2]]))
            seconds = time.perf_counter() - start

    def _differ(self, known: Tensor, found: Tensor) -> Tensor:
        """Which numbers differ by more than rounding."""
        return ~((known - found).abs() <= RELATIVE * known.abs() + OF_SCALE * self.scale)

    def _compare(self, rows: Rows) -> None:
        """Raise UsageError if the number of a known example is another one in this batch."""
        rows = torch.as_tensor(rows)
        try:
            values = self._values(self.pool, rows)
        except UsageError:
            if (rows < self.pool.originals).all():
                raise
            return  # outputs of one example may be impossible for another
        places = self.known[rows].isfinite()
        known, found = self.known[rows[places]], values[places]
        differ = self._differ(known, found)
        if not differ.any() or self._is_rounding(rows, places, known, found):
            return
        worst = int((known - found).abs().nan_to_num(torch.inf).where(differ, 0).argmax())
        where = "alone" if self.alone else f"in a batch of {len(self.bases[0])}"
        rest = f"beside {len(rows) - 1} others" if len(rows) > 1 else "alone"
        raise UsageError(
            f"{self.study.name}'s {self.name} of an example must not depend on the other examples of its batch, but "
            f"it is {known[worst]:.4g} {where} and {found[worst]:.4g} {rest}; {self._cure()}"
        )

    def _cure(self) -> str:
        """How to mend a function that depends on other examples: the shapes, if they make the difference."""
        few = self.bases[0]
        outputs, targets = self.pool.take(few)
        for *mended, cure in broadcast.mended(outputs, targets):
            with suppress(Exception), generators.seeded(0), torch.no_grad():
                whole = self.function(*map(trees.cloned, mended))
                rows = [trees.part(tree, torch.tensor([1, 0])) for tree in mended]
                if whole.shape == (len(few),) and not self._differ(whole[[1, 0]], self.function(*rows)).any():
                    return cure
        return f"{INSTEAD[self.kind]}."

    def _is_rounding(self, rows: Tensor, places: Tensor, known: Tensor, found: Tensor) -> bool:
        """Whether a small difference vanishes in float64, for functions that take it."""
        if not self.alone or not (known - found).abs().max() <= ROUNDING * self.scale:
            return False
        exact = self.pool.mapped(Tensor.double)
        try:
            together = self._values(exact, rows)[places]
            apart = torch.cat([self._values(exact, [int(row)]) for row in rows[places]])
        except UsageError:
            return False
        return not self._differ(apart, together).any()

    def _check_gradient(self, rows: list[int]) -> None:
        """Raise UsageError if the number of an example has a gradient at the outputs of another one."""
        if self.kind != "loss":
            return
        outputs, targets = self.pool.take(rows)
        moves = iter(self.pool.moving)
        leaves: list[Tensor] = []

        def watched(leaf: Tensor) -> Tensor:
            if next(moves) and leaf.is_floating_point():
                leaves.append(leaf.requires_grad_())
                return leaf.clone()  # the loss may write into it
            return leaf

        with calling(self.study, "gradient"), generators.seeded(0), torch.enable_grad():
            losses = self.function(trees.mapped(watched, outputs), trees.cloned(targets))
            if not losses.requires_grad:
                return
            for place in range(len(rows)):
                found = torch.autograd.grad(losses[place], leaves, retain_graph=True, allow_unused=True)
                sizes = [each.nan_to_num().abs().reshape(len(rows), -1).amax(1) for each in found if each is not None]
                size = torch.stack(sizes).amax(0) if sizes else torch.zeros(len(rows))
                own, others = float(size[place]), float(size[torch.arange(len(rows)) != place].sum())
                if others > COUPLED * max(own, others):
                    raise UsageError(
                        f"{self.study.name}'s loss of an example must not depend on the other examples of its batch, "
                        f"but its gradient is {others:.2g} at the outputs of {len(rows) - 1} others and {own:.2g} at "
                        f"its own; {self._cure()}"
                    )
