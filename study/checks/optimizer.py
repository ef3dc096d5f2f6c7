"""Checks that an optimizer can train a workload's model: what is special about single parameters, that all weights are
parameters, and two steps of a class of the user's own."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from study.checks.calling import calling
from study.data import trees
from study.data.resident import Data, Source
from study.data.trees import Tree
from study.devices import generators
from study.engine.run import Run
from study.errors import Failed, UsageError
from study.optimizers.per_parameter import USUAL, Treatments, treatments
from study.records import Study
from study.space import values
from study.user_code import snapshots
from workloads.base import Splits, Workload
from workloads.layers import layer_key
from workloads.user_code.errors import text_of, user_line

GRADIENTS_FIRST = (
    "must call the closure, which computes the gradients, before it reads them, so that it makes the update of "
    "loss.backward() and step(): begin it with `with torch.enable_grad(): loss = closure()`, and do not pass the "
    "closure on"
)
WITH_CLOSURE = (
    "fails with a closure, which computes the gradients, and works without: let it take no argument `closure`, or "
    "begin it with `with torch.enable_grad(): loss = closure()`, and do not pass the closure on"
)
CLOSURE_FIRST = (
    "; it had not called the closure, and gradients are None before: begin the step with `with torch.enable_grad(): "
    "loss = closure()`"
)
OF_ALL = (
    "which all trials of a process share: keep state in self.state[parameter], in its groups, or in attributes of its "
    "own"
)
PAIRS = (
    "; params are pairs of name and parameter, as model.named_parameters() gives them: read the parameters from "
    "self.param_groups"
)
GRADIENTS_ENABLED = (
    "differentiates what has no graph: begin it with `with torch.enable_grad(): loss = closure()`; second derivatives "
    "of the loss, as Hessian-based methods take them, are not available"
)
NO_NOTICE = (
    "no notice of `lr` in its param_groups, which schedules and groups set: let it read group['lr'], or choose "
    "schedule=constant"
)
OF_ARGUMENTS = "; set its arguments with search.space and optimizer.arguments"


def check_treatments(study: Study, workload: Workload) -> None:
    """Raise an error if `groups(model)` of the workload fails or is faulty, or `optimizer.no_decay` matches nothing.

    Raises:
        UsageError: `groups(model)` raised an error.
        ValueError: any other fault.
    """
    _special(study, workload, workload.model())


def mean_factor(study: Study, workload: Workload) -> dict[str, float]:
    """A number for the workload's fingerprint: the mean learning-rate factor of the trained parameters."""
    model = workload.model()
    special = _special(study, workload, model)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    total = sum(size * special.get(name, USUAL).rate for name, size in sizes.items())
    return {"mean learning-rate factor": total / sum(sizes.values())}


def _special(study: Study, workload: Workload, model: nn.Module) -> Treatments:
    if callable(groups := getattr(workload, "groups", None)):
        with calling(study, "groups(model)"):
            groups(model)
    return treatments(model, workload, study.no_decay)


def check_registered(study: Study, model: nn.Module, trained: Collection[nn.Parameter], outputs: Tree) -> None:
    """Raise UsageError if the outputs depend on a weight that is not trained: layers in a list or dictionary of Python,
    layers or parameters that `forward` makes, and tensors with gradients that are no `nn.Parameter`.

    Arguments:
        trained: the parameters of the model before its forward pass.
    """
    known = set(map(id, trained))
    held = {id(value) for module in model.modules() for value in vars(module).values()}
    for leaf in _leaves(trees.leaves(outputs)):
        if id(leaf) not in known and (isinstance(leaf, nn.Parameter) or id(leaf) in held):
            raise UsageError(
                f"the outputs of {study.name}'s model depend on a weight {list(leaf.shape)} that is none of its "
                "parameters, so no optimizer would train it; make it in __init__ as an nn.Parameter or a layer, and "
                "keep layers in an nn.ModuleList or nn.ModuleDict, not in a list or dictionary."
            )


def _leaves(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors with gradients that outputs depend on and that nothing computed."""
    left, seen = [output.grad_fn for output in outputs], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        left += [function for function, _ in node.next_functions]


def check_optimizer(study: Study, workload: Workload, data: Source) -> None:
    """Raise UsageError if an optimizer of whole models cannot train this one on the device of the data."""
    if study.algorithm.update is not None:
        return
    few = next(data.chunks("train", range(min(2, data.counts["train"])), 2))
    if why := refusal(study, workload, Data.of(Splits(few, few, few), data.device, data.layout)):
        raise UsageError(f"{study.optimizer} cannot train {study.name} {why}.")


def refusal(study: Study, workload: Workload, data: Data) -> str | None:
    """Why an optimizer of whole models fails in two steps at either end of the search space; None if it works."""
    small = replace(study.constant, batch_size=2, micro_batch=None)
    for unit in (0.0, 1 - 1e-9):
        trial = small.trial(0, values(study.search.space, [unit] * len(study.search.space)))
        tried = _Tried(partial(Run, small, workload, data, trial))
        try:
            with generators.restored(data.device):
                why = tried.fault()
        except Failed as error:
            why = f"because {error}"
        except Exception as error:  # third-party optimizers may raise any
            chosen = ", ".join(f"{n}={v:g}" for n, v in small.resolved(trial.hyperparameters).items())
            why = tried.told(error, chosen)
        if why is not None:
            return why
    return None


class _Tried:
    """Two steps of an optimizer, with `begin`, which makes a run of its trial.

    Attributes:
        passes: the learning rates with which gradients were computed; None: the optimizer could not be built.
    """

    def __init__(self, begin: Callable[[], Run]) -> None:
        self.begin = begin
        self.passes: list[float] | None = None

    def fault(self) -> str | None:
        """Why a sweep must not train with steps that raise no error; None if it may."""
        run, slower = self.begin(), self.begin()
        self.passes = _counted(run)
        shared: list[snapshots.Snapshot] = []
        for share in (1.0, 0.5):
            before = [parameter.detach().clone() for parameter in run.model.parameters()]
            for each, part in ((run, 1.0), (slower, share)):
                each.update(part * each.hyperparameters["learning_rate"])
                each.step += 1
            shared.append(_of_author(run))
        # Not those of the first step, such as a warning that is given once.
        if found := snapshots.changed(*shared):
            return f"because its step changes {found[0]}, {OF_ALL}"
        after, other = (list(each.model.parameters()) for each in (run, slower))
        moved = not all(map(torch.equal, before, after))
        if moved and _varies(run) and all(map(torch.equal, after, other)):
            return f"because its step takes {NO_NOTICE}"
        again = len(self.passes) > run.step  # as SAM computes gradients at other weights: no plain loop does
        return f"because its step {GRADIENTS_FIRST}" if moved and not again and _in_no_loop(self.begin, run) else None

    def told(self, error: Exception, chosen: str) -> str:
        """The error of an optimizer with what it means and the cure. `chosen`: the hyperparameters, for the message."""
        text = text_of(error)
        said = text.splitlines()[0].rstrip(". ") if text else type(error).__name__
        where = user_line(error)
        if "does not require grad" in text:
            return f"because its step {GRADIENTS_ENABLED}"
        if _in_a_loop(self.begin):
            return f"because its step {WITH_CLOSURE} ({said}{where})"
        closure = CLOSURE_FIRST if self.passes == [] and where else ""
        pairs = PAIRS if "tuple" in said else ""
        return f"with {chosen}: {said}{where or OF_ARGUMENTS}{closure}{pairs}"


def _varies(run: Run) -> bool:
    """Whether updates have different learning rates: by the schedule, or by groups of the workload."""
    study = run.study
    few = range(0, study.train_steps, max(1, study.train_steps // 64))
    grouped = any(each.rate != 1 for each in treatments(run.model, run.workload).values())
    return grouped or len({run.learning_rate(step) for step in [*few, study.train_steps - 1]}) > 1


def _of_author(run: Run) -> snapshots.Snapshot:
    """The variables that the author of an optimizer class keeps in its class and module."""
    names = {kind.__module__ for kind in type(run.optimizer).__mro__}
    return snapshots.of_modules(names, snapshots.Digest(run.model))


def _counted(run: Run) -> list[float]:
    """A list that grows with each computation of gradients in this run."""
    passes: list[float] = []
    descend = run._descend

    def counted(learning_rate: float) -> Tensor:
        passes.append(learning_rate)
        return descend(learning_rate)

    run._descend = counted  # type: ignore[method-assign]
    return passes


def _in_no_loop(begin: Callable[[], Run], by_closure: Run) -> bool:
    """Whether a plain loop makes other updates than this run, told the loss or not."""
    return all(_in_a_loop(begin, by_closure, told) is False for told in (False, True))


def _in_a_loop(begin: Callable[[], Run], by_closure: Run | None = None, told: bool = False) -> bool | None:
    """Whether `loss.backward()` and then `step()` without a closure make the updates of another run that called its
    step with one; None if the optimizer needs a closure. Without another run: whether such updates can be made.

    Arguments:
        told: give step a closure that returns the loss and computes nothing, as some take the length of a step from it.
    """
    try:
        run = begin()
        with generators.restored(run.data.device):
            for number in range(1 if by_closure is None else by_closure.step):
                rate = run.hyperparameters["learning_rate"]
                for group, factor in zip(run.optimizer.param_groups, run.rates, strict=True):
                    group["lr"] = rate * factor
                generators.seed(layer_key(run.trial.seed, number, -1), run.data.device)
                with generators.of_torch_restored(run.data.device):
                    loss = run._descend(rate)
                run.optimizer.step(*([lambda loss=loss: loss] if told else []))
                run.step += 1
    except Exception:  # such as a TypeError, because the closure is missing
        return None
    if by_closure is None:
        return True
    pairs = zip(run.model.parameters(), by_closure.model.parameters(), strict=True)
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True) for one, other in pairs)
