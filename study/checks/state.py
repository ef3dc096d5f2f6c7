"""Finds state that is neither parameter nor buffer, and random numbers that no seed settles.

State of a model's objects is allowed: such models train one at a time, each from the module as it was made. State that
several trials share is refused, because a trial would depend on the trials before it.
"""

import itertools
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn

from study.checks.calling import FEW, calling, loss_of
from study.checks.model import augmented, built, computed
from study.data import trees
from study.data.trees import Tree
from study.devices import generators
from study.errors import UsageError
from study.records import Study
from study.user_code.kept import Kept
from study.user_code.snapshots import Snapshot, changed, of_model, of_program, owner
from study.user_code.whole_split import WholeSplit
from workloads.base import Workload, metrics_of, optional

SAME = 1e-5
"""Largest relative difference of two losses that are equal but for rounding."""
SEEDED = "Draw from the global generators of torch, NumPy or `random`, which are seeded for each trial"


class State(NamedTuple):
    """Why trials train one at a time: what changes in a training and in an evaluation forward pass; None: nothing."""

    training: str | None = None
    evaluation: str | None = None

    @property
    def reason(self) -> str | None:
        return self.training or self.evaluation


def stateful(study: Study, workload: Workload, inputs: Tree, targets: Tree, layout: torch.memory_format) -> State:
    """What a model keeps beside its parameters and buffers.

    Arguments:
        inputs, targets: examples; steps use the first FEW, and another step the last ones.
        layout: the one in which the model trains and evaluates.

    Raises:
        UsageError: trials share state, or two models of one seed differ.
    """
    seen = augmented(study, workload, inputs)
    few, others = ((trees.part(seen, rows), trees.part(targets, rows)) for rows in (slice(FEW), slice(-FEW, None)))
    one, two = built(study, workload), built(study, workload)
    _check_apart(study, one, two)
    _check_alike(study, one, two)
    steps = Steps(study, workload, layout)
    initial = {name: tensor.detach().clone() for name, tensor in _tensors(one)}
    of_one, names = [of_model(one)], [name for name, _ in one.named_buffers()]
    losses, programs = [], []
    for rows in (slice(FEW), slice(-FEW, None)):
        _put_back(one, initial)
        augmented(study, workload, trees.part(inputs, rows))  # one that remembers a batch changes the program
        losses.append(steps(one, *few))
        of_one.append(of_model(one))
        programs.append(of_program(workload, one))
    _check_program(study, changed(*programs))
    steps(one, *others)
    _check_repeated(study, losses[0], steps(two, *few))
    training = _reason(one, of_one)
    if training is None and names != [name for name, _ in one.named_buffers()]:
        training = "a forward pass registers buffers; register them in __init__"
    if training is None and not _same(*losses):
        training = f"a second forward pass gives other outputs or losses ({_unlike(*losses)})"
    return State(training, steps.evaluation(two, trees.part(inputs, slice(FEW))))


def check_first_batch(
    study: Study, workload: Workload, before: Kept, inputs: Tree, targets: Tree, layout: torch.memory_format
) -> None:
    """Raise UsageError if results depend on the first examples that functions of the workload saw, such as a scale that
    a loss keeps of them: each process would keep that of the first trial that it trains. What is kept stays as it is.

    Arguments:
        before: what was kept before the first call.
        inputs, targets: examples; the last ones are tried as the first, one less than the checks have had.
    """
    if not before.differs():
        return
    few, others = slice(FEW), slice(-(FEW - 1), None)

    def results(rows: slice) -> list[Tensor]:
        return _results(study, workload, trees.part(inputs, rows), trees.part(targets, rows), layout)

    now, of_now, model = Kept(workload), results(few), built(study, workload)
    held = of_program(workload, model)
    before.put_back()
    try:
        results(others)
        of_others, held_then = results(few), of_program(workload, model)
    finally:
        now.put_back()
    if not _same(of_now, of_others):
        names = ", ".join((changed(held, held_then) or now.memories())[:3])
        raise UsageError(
            f"{study.name} keeps {names or 'something'} of the first examples that it sees, so a trial would depend on "
            f"the one that its process trained first ({_unlike(of_now, of_others)}); compute it in splits(), from all "
            "training examples, or for each batch."
        )


def _results(
    study: Study, workload: Workload, inputs: Tree, targets: Tree, layout: torch.memory_format
) -> list[Tensor]:
    """All that a trial would compute of these examples with a new model: loss, outputs, gradients, errors, metrics."""
    model, seen = built(study, workload), augmented(study, workload, inputs)
    found = Steps(study, workload, layout)(model, seen, targets)
    found += [each.grad for each in model.parameters() if each.grad is not None]
    with torch.no_grad(), calling(study, "model", "in an evaluation"):
        outputs = computed(study, model.eval(), inputs, layout)
    of_targets = [each for name in ("weights", "error_weights") if (each := optional(workload, name)) is not None]
    for error in workload.errors.values():
        with torch.no_grad(), calling(study, "errors"):
            found.append(error(trees.cloned(outputs), trees.cloned(targets)))
    for name, metric in metrics_of(workload).items():
        with torch.no_grad(), suppress(Exception):  # it may be undefined for few examples
            whole = WholeSplit(study.name, {name: metric}, torch.device("cpu"))
            whole.add(outputs, targets, 0, 1)
            found.append(torch.tensor(whole.values()[name]))
    return [*found, *trees.leaves(outputs), *(each(trees.cloned(targets)) for each in of_targets)]


class Steps:
    """Training steps without an update, each from the same seeds."""

    def __init__(self, study: Study, workload: Workload, layout: torch.memory_format) -> None:
        self.study, self.layout, self.loss = study, layout, loss_of(study, workload)

    def __call__(self, model: nn.Module, inputs: Tree, targets: Tree) -> list[Tensor]:
        """The loss of each example [B] after its backward pass, and the outputs: a loss may not tell them apart."""
        model.train().zero_grad(set_to_none=True)
        with calling(self.study, "second training step"), generators.seeded(1):
            outputs = computed(self.study, model, inputs, self.layout)
            copies = [leaf.detach().clone() for leaf in trees.leaves(outputs)]
            losses = self.loss(outputs, trees.cloned(targets))
            losses.mean().backward()
        return [losses.detach(), *copies]

    def evaluation(self, model: nn.Module, inputs: Tree) -> str | None:
        """The attribute that an evaluation forward pass changes, as a reason."""
        before = of_model(model.eval())
        with torch.no_grad(), calling(self.study, "model", "in an evaluation"):
            computed(self.study, model, inputs, self.layout)
        return _reason(model, [before, of_model(model)], "an evaluation")


def _reason(model: nn.Module, snapshots: list[Snapshot], pass_: str = "a training forward pass") -> str | None:
    for before, after in itertools.pairwise(snapshots):
        for name in changed(before, after):
            holder, attribute = owner(model, name)
            return f"{pass_} changes the attribute `{attribute}` of {type(holder).__name__}"
    return None


def _check_apart(study: Study, one: nn.Module, two: nn.Module) -> None:
    """Raise UsageError if two models share a parameter or a buffer."""
    if one is two:
        raise UsageError(
            f"{study.name}.model() returns the same module at each call, so trials would train the same weights; make "
            "a new one at each call, or return copy.deepcopy of it."
        )
    places = {_place(tensor) for _, tensor in _tensors(one)}
    shared = next((name for name, tensor in _tensors(two) if tensor.numel() and _place(tensor) in places), None)
    if shared is None:
        return
    kept = {id(module) for module in one.modules()}
    inside = next((f"the module {name}, with" for name, each in two.named_modules() if id(each) in kept and name), "")
    raise UsageError(
        f"two models of {study.name} share {inside or 'their'} {shared}, so trials would change each other's weights; "
        "make it within model(), or return a copy.deepcopy."
    )


def _check_alike(study: Study, one: nn.Module, two: nn.Module) -> None:
    """Raise UsageError if two models of one seed have other weights."""
    first_, second = dict(_tensors(one)), dict(_tensors(two))
    unlike = [name for name in first_ if name not in second or not _equal(first_[name], second[name])]
    if unlike or len(first_) != len(second):
        name = unlike[0] if unlike else next(iter(second.keys() - first_.keys()))
        raise UsageError(
            f"{study.name}.model() must give the same weights for the same seed, but {name} differs between two calls: "
            "model() draws from a generator that no seed settles, such as np.random.default_rng(), or depends on "
            f"earlier calls. {SEEDED}."
        )


def _check_program(study: Study, shared: list[str]) -> None:
    """Raise UsageError if a training step changes what all trials share."""
    if shared:
        raise UsageError(
            f"a training step of {study.name} changes {', '.join(shared[:3])}, which all trials of a process share, so "
            "a trial would depend on the trials before it; leave it out, or keep the state in a buffer of the model "
            "(register_buffer)."
        )


def _check_repeated(study: Study, one: list[Tensor], two: list[Tensor]) -> None:
    """Raise UsageError if the first steps of two models of one seed differ."""
    if not _same(one, two):
        raise UsageError(
            f"a new model of {study.name} with the same seed must repeat the outputs and losses of the first, but they "
            f"differ ({_unlike(one, two)}): the model or the loss draws from a generator that no seed settles, such as "
            f"np.random.default_rng(), or keeps state outside of the model. {SEEDED}, and keep state in buffers of the "
            "model."
        )


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _equal(one: Tensor, two: Tensor) -> bool:
    same = one.shape == two.shape and one.dtype == two.dtype
    return same and bool(((one == two) | ((one != one) & (two != two))).all())


def _put_back(model: nn.Module, initial: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _tensors(model):
            if name in initial and tensor.shape == initial[name].shape:
                tensor.copy_(initial[name])


def _same(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(itertools.starmap(_near, zip(one, two, strict=True)))


def _near(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or not one.numel() or one.is_complex():
        return one.shape == two.shape
    a, b = one.double().nan_to_num(), two.double().nan_to_num()
    return bool(((a - b).abs() <= SAME * a.abs().max()).all())


def _unlike(one: list[Tensor], two: list[Tensor]) -> str:
    """The first numbers of the first tensor that differs."""
    for a, b in zip(one, two, strict=False):
        if a.shape != b.shape:
            return f"shape {list(a.shape)}, then {list(b.shape)}"
        if not _near(a, b):
            where = int((a.double() - b.double()).abs().argmax())
            return f"{a.flatten()[where]:.6g}, then {b.flatten()[where]:.6g}"
    return "in their number"
