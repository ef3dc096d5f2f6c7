"""The interface of a workload: data, a model, a loss, and errors that judge the model. The optimizer is not part of it.

Shapes: B examples in a batch, N examples in a split, T tokens of an example, C classes.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from workloads.suggest import suggest

PerExample = Callable[[Any, Any], Tensor]
"""(outputs [B, ...], targets [B, ...]) -> one float per example [B]; lower is better."""
Metric = Callable[[Any, Any], Any]
"""(outputs [N, ...], targets [N, ...]) of a whole split -> a number, lower is better; or an object with `update`,
`compute` and `reset`, such as those of torchmetrics, which sees the split in parts."""
Weights = Callable[[Any], Tensor]
"""targets [B, ...] -> the weight of each example [B], not negative."""

Split = tuple[Any, Any] | Dataset
"""(inputs [N, ...], targets [N, ...]), each a tensor or a tree of tensors (tuples, lists, mappings); or a map-style
data set with an (input, target) for each index. If `__getitem__` is random, it draws from the global generators of
torch, NumPy or `random`, which are seeded before each call.

With `budget.single_pass=true` the training split may be a stream: any object whose `__iter__` gives its (input, target)
pairs from the first one on. Every trial starts it once. It may have `set_epoch(number)`, which is called with the
trial's order seed, and `state_dict()` and `load_state_dict(state)`, so that checkpoints know where it is."""


class Splits(NamedTuple):
    """The training, validation and test set, on one device, or on the host if they do not fit on the device."""

    train: Split
    val: Split
    test: Split


class Workload(Protocol):
    """The members of a workload. Any class that has them is a workload; it inherits nothing.

    Every argument of the constructor comes from the workload's YAML file and is recorded by the study, so two objects
    built from equal arguments must behave alike. A workload may also have the members of `OPTIONAL`.

    Inputs, targets and outputs are tensors or trees of tensors: tuples, lists, mappings, dataclasses. The model takes a
    mapping as keyword arguments and a tuple as several arguments, if its `forward` has them.
    """

    name: str
    train_examples: int

    @property
    def errors(self) -> Mapping[str, PerExample]:
        """Error name -> per-example function; `classification_error` is measured as `val/classification_error`."""
        ...

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """Names of tuned parameters of the loss, passed to `loss` by keyword; usually none."""
        ...

    def splits(self, device: torch.device) -> Splits:
        """The data, as tensors on `device` or as data sets; called once per process.

        Engines ask for the CPU and move tensors to the training device if they fit there. The global generators start
        from the same seed at every call.
        """
        ...

    def model(self) -> nn.Module:
        """A newly initialised model on the CPU, drawn from the global generators (the engine seeds them)."""
        ...

    def loss(self, outputs: Any, targets: Any, **hyperparameters: Any) -> Tensor:
        """The training loss of each example [B]; a step descends its mean, weighted if the workload has `weights`."""
        ...


OPTIONAL: Mapping[str, str] = {
    "metrics": "name -> `Metric`, such as average precision: a number of a whole split, measured for each trial alone",
    "weights": "`Weights` of the loss: a step descends the weighted mean over the batch (gradient 0 if all are 0)",
    "error_weights": "`Weights` of the errors of a split; default: every example counts alike",
    "augment": "(inputs [B, ...], generator) -> inputs [B, ...]: random changes of a whole training batch",
    "groups": "model -> factors on the learning rate, see `Grouped`",
    "tokens_per_example": "tokens in each example of a language model: the other unit of batch sizes and budgets",
    "collate": "list of a data set's examples -> (inputs [B, ...], targets [B, ...]); default: `default_collate`",
}
"""Members that a workload may have, and what they are."""


def optional(workload: Any, member: str) -> Any:
    """An optional member of a workload; None if the workload does not have it."""
    assert member in OPTIONAL, member
    return getattr(workload, member, None)


def metrics_of(workload: Any) -> Mapping[str, Metric]:
    """The workload's metrics by name; empty if it has none."""
    return optional(workload, "metrics") or {}


def judges(workload: Any) -> list[str]:
    """The names of all errors and metrics of a workload."""
    return [*workload.errors, *metrics_of(workload)]


class Grouped(Protocol):
    """The optional member `groups` of a workload."""

    def groups(self, model: nn.Module) -> Mapping[str, float]:
        """Factors on the learning rate: the name of a parameter, or of a module for all parameters in it -> factor.

        The learning rate of a parameter is the trial's learning rate at this step times its factor; without a factor,
        times 1. `{"backbone": 0.1}` fine-tunes with a tenth of the learning rate below the head. The factors may depend
        on the names and shapes of the model, not on its values, which differ between trials.
        """
        ...


IGNORED = -100
"""The target of a token that does not count, such as padding; torch's default `ignore_index`."""


def classification_error(logits: Tensor, targets: Tensor, ignore_index: int = IGNORED) -> Tensor:
    """1 for each example whose largest logit is not that of its label, otherwise 0 [B]; 0 for an ignored target.

    Of logits [B, T, C] and targets [B, T]: the share of the counted tokens of each example that are predicted wrongly.

    Raises:
        ValueError: there is one logit alone, which would always be the largest.
    """
    if logits.shape[-1] < 2:
        raise ValueError(
            "classification_error needs a logit for each of at least two classes, but got logits "
            f"{list(logits.shape)}: the largest would always be that of class 0. For a model with one logit write "
            "lambda outputs, targets: ((outputs.squeeze(1) > 0) != (targets > 0)).float()."
        )
    wrong = ((logits.argmax(-1) != targets) & (targets != ignore_index)).float()
    return wrong if wrong.dim() < 2 else mean_over_tokens(wrong, targets, ignore_index)


def cross_entropy_error(logits: Tensor, targets: Tensor, ignore_index: int = IGNORED) -> Tensor:
    """Cross entropy of each example in nats [B], without label smoothing.

    Of logits [B, T, C] and targets [B, T]: the mean over the counted tokens of each example.
    """
    if logits.dim() < 3:
        return F.cross_entropy(logits, targets, reduction="none", ignore_index=ignore_index)
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=ignore_index)
    return mean_over_tokens(each.view(targets.shape), targets, ignore_index)


def mean_over_tokens(values: Tensor, targets: Tensor, ignore_index: int = IGNORED) -> Tensor:
    """The mean of values [B, T] over the counted tokens of each example, those whose target [B, T] is not
    `ignore_index`: [B], 0 for an example without one."""
    counted = targets != ignore_index
    return values.where(counted, 0).sum(1) / counted.sum(1).clamp(min=1)


def token_weights(targets: Tensor, ignore_index: int = IGNORED) -> Tensor:
    """The number of counted tokens of each example [B], for targets [B, T].

    As the `weights` of a workload, they make a step descend the mean over all counted tokens of its batch; as its
    `error_weights`, they make errors the mean over all counted tokens of a split. Without ignored tokens all examples
    count alike, and no weights are needed.
    """
    return (targets != ignore_index).sum(1).float()


def with_given(size: Any, workload: Any) -> Any:
    """A named tuple of numbers, with those that the workload's fields of the same names give in their place; a field
    that is None gives none.

    >>> from collections import namedtuple
    >>> size, given = namedtuple("Size", "width depth"), namedtuple("Workload", "width depth")
    >>> with_given(size(512, 6), given(width=64, depth=None))
    Size(width=64, depth=6)
    """
    given = {name: getattr(workload, name) for name in size._fields}
    return size._replace(**{name: value for name, value in given.items() if value is not None})


def require_whole(name: str, value: Any, least: int) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, but got {value!r}.")


def require_one_of(name: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError unless `value` is one of the known names; the message names the nearest one."""
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}{suggest(str(value), known)}")


def require_fraction(name: str, value: Any) -> None:
    """Raise ValueError unless `value` is a number in [0, 1)."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number in [0, 1), but got {value!r}.")
