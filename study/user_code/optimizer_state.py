"""The state of an optimizer of torch as plain data, and what its `state_dict` leaves out."""

import hashlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from study.records import Study
from study.user_code.faults import succeeds
from study.user_code.hidden_state import copied, is_plain
from study.user_code.snapshots import DEEPEST, Digest, Snapshot, changed, of_class
from workloads.user_code.errors import summary

OURS = {"momentum_buffer": "velocity", "exp_avg": "mean", "exp_avg_sq": "square"}
"""Names of optimizer state: in torch -> in `study.optimizers`."""
OF_BATCH_SIZE = ("lr", "betas", "beta1", "beta2", "momentum")
"""Settings of a parameter group that may depend on the batch size: the rates, and decay rates given as half-lives."""


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of a plain optimizer as plain data: by parameter, and the settings and counts of its groups.

    `names` are those of the parameters in the optimizer's order, so that the fused engine can go on with the state.
    """
    state_dict = optimizer.state_dict()
    # Some optimizers count their steps in the parameter groups.
    groups = [{k: v for k, v in group.items() if k != "params"} for group in state_dict["param_groups"]]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names.get(id(each), "") for group in optimizer.param_groups for each in group["params"]]
    # A class with a `state_dict` of its own may add to it.
    more = {key: value for key, value in state_dict.items() if key not in ("state", "param_groups")}
    return {"state": state_dict["state"], "groups": groups, "names": order, **({"more": more} if more else {})}


def plain_state(
    study: Study,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    attributes: Mapping[str, Any],
    inside: Mapping[str, Any],
) -> dict[str, Any] | None:
    """`state_of` with what else training has changed; None, with a warning, if no checkpoint can hold all of it.

    Arguments:
        attributes: changed attributes of the model.
        inside: changed attributes of the optimizer.
    """
    state: dict[str, Any] = {}
    try:
        state = state_of(model, optimizer)
        parts = [*state["state"].values(), *state["groups"], state.get("more", {})]
        odd = {key: value for part in parts for key, value in part.items() if not _is_loadable(value)}
        odd |= {name: value for name, value in {**attributes, **inside}.items() if not is_plain(value)}
        lost = [f"{name} ({type(value).__name__})" for name, value in odd.items()]
    except Exception as error:  # the state_dict of any library, such as of a wrapper without Optimizer.__init__
        lost = [f"the state_dict of {type(optimizer).__name__} ({summary(error)})"]
    if lost:
        warnings.warn(
            f"checkpoints cannot hold {', '.join(lost)}, which the model or the optimizer of {study.name} "
            "changes while it trains: an interrupted trial starts again from step 0. Keep such state in numbers, "
            "lists, dicts or buffers.",
            stacklevel=2,
        )
        return None
    more: dict[str, Any] = {"attributes": dict(attributes), "of_optimizer": dict(inside)}
    if type(optimizer).zero_grad is not torch.optim.Optimizer.zero_grad:  # it may add up those of several steps
        more["gradients"] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    more["seal"] = seal(optimizer, model)
    return state | {key: value for key, value in more.items() if value}


def _is_loadable(value: Any) -> bool:
    """Whether a checkpoint gives back a value of an optimizer's state, such as a dtype beside plain data."""

    def save_and_load() -> None:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)

    return is_plain(value) or succeeds(save_and_load)


def put_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: Mapping[Any, Any], settings: bool) -> bool:
    """Give a plain optimizer the state from `plain_state`.

    Arguments:
        settings: also its learning rates and decay rates. A branch has others than its trunk.

    Returns:
        Whether the optimizer is as it was when it was saved; True if `settings` differ.
    """
    before, groups = [*optimizer.param_groups], optimizer.state_dict()["param_groups"]
    restored = [
        {**group, **{key: value for key, value in saved.items() if settings or key not in OF_BATCH_SIZE}}
        for group, saved in zip(groups, state["groups"], strict=True)
    ]
    optimizer.load_state_dict({**state.get("more", {}), "state": state["state"], "param_groups": restored})
    for group, loaded in zip(before, optimizer.param_groups, strict=True):
        group |= loaded  # another optimizer within the class may hold the groups, too
    optimizer.param_groups[:] = before
    if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
        _give_back_types(optimizer, state["state"])
    for name, value in state.get("of_optimizer", {}).items():
        setattr(optimizer, name, copied(value))
    for name, parameter in model.named_parameters():
        if (gradient := state.get("gradients", {}).get(name)) is not None:
            parameter.grad = gradient.to(parameter)
    return not settings or state.get("seal", "") in ("", seal(optimizer, model))


def _give_back_types(optimizer: torch.optim.Optimizer, saved: Mapping[Any, Any]) -> None:
    """Give tensors of the state the types that they had: torch has cast them to those of their parameters."""
    parameters = dict(enumerate(each for group in optimizer.param_groups for each in group["params"]))
    for index, entries in saved.items():
        loaded = optimizer.state[parameters.get(index, index)]
        for key, value in entries.items():
            if isinstance(value, Tensor) and value.dtype != loaded[key].dtype:
                loaded[key] = value.to(loaded[key].device)


def warn_of_lost_state(study: Study, optimizer: torch.optim.Optimizer) -> None:
    """Say that a trial starts again, because a checkpoint did not hold all of its optimizer's state."""
    warnings.warn(
        f"an interrupted trial of {study.name} starts again from step 0, because {type(optimizer).__name__} keeps "
        "state that no checkpoint can hold: variables of its class, entries of `defaults` or under id(parameter), or "
        "tensors that share memory. Keep state in self.state[parameter], in its groups, or in "
        "attributes of its own.",
        stacklevel=2,
    )


def by_parameter(state: Mapping[Any, Any]) -> dict[str, dict[str, Tensor]]:
    """The tensors of a state from `state_of`: name of a parameter -> name in `study.optimizers` -> tensor."""
    return {
        state["names"][index]: {
            OURS.get(key, key): value for key, value in entries.items() if isinstance(value, Tensor) and key != "step"
        }
        for index, entries in state["state"].items()
    }


class _Tied(Digest):
    """A digest that also says which tensors share memory, with each other or with the parameters, and which numbers are
    addresses of parameters. A tuple counts wherever it is, because it cannot change."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.memory: dict[int, int] = {}
        self.addresses = {id(parameter): place for place, parameter in enumerate(model.parameters())}
        for parameter in model.parameters():
            self._place(parameter)

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if type(value) is int and value in self.addresses:
            return "address", self.addresses[value]
        if type(value) is tuple and depth < DEEPEST:
            return self._content(value, depth + 1)
        if isinstance(value, Tensor) and id(value) not in self.held and value.layout == torch.strided:
            return self._content(value, depth), self._place(value)
        return super().__call__(value, depth)

    def _place(self, tensor: Tensor) -> int:
        try:
            address = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # classes of tensors that hold others have no memory of their own
            address = -id(tensor)
        return self.memory.setdefault(address, len(self.memory))


def seal(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """A digest of what the next update depends on beside weights and batch: what the optimizer holds, what hangs on
    the parameters, and the variables of its classes.

    An optimizer that a checkpoint has restored in full has the seal of the one that was saved. Empty for an optimizer
    that `_is_known`.
    """
    if _is_known(optimizer):
        return ""
    digest = _Tied(model)
    # The keys of hooks count all hooks of a process.
    attributes: dict[str, Any] = {
        name: [*value.values()] if name.endswith("_hooks") else value for name, value in vars(optimizer).items()
    }
    if type(attributes.get("defaults")) is dict:  # torch adds this one to those that it restores
        attributes["defaults"] = {"differentiable": False} | attributes["defaults"]
    parts = [digest(attributes[name]) for name in sorted(attributes)]
    parts += [digest(vars(parameter)) for parameter in model.parameters()]
    # The optimizer's own class may be our subclass of a user's: `type(self).t += 1` writes into it.
    parts += [of_class(kind, digest) for kind in dict.fromkeys([type(optimizer), *_theirs(optimizer)])]
    return hashlib.sha256(repr((sorted(attributes), parts)).encode()).hexdigest()


def _is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer keeps nothing beside its `state_dict`, or says with one of its own what its state is."""
    return not _theirs(optimizer) or type(optimizer).state_dict is not torch.optim.Optimizer.state_dict


def _theirs(optimizer: torch.optim.Optimizer) -> list[type]:
    """The classes of an optimizer that are neither ours nor torch's."""
    return [kind for kind in type(optimizer).__mro__[:-1] if not kind.__module__.startswith(("study.", "torch."))]


def snapshot(optimizer: torch.optim.Optimizer, model: nn.Module) -> Snapshot:
    """The attributes of an optimizer that its `state_dict` leaves out; none of one that `_is_known`."""
    if _is_known(optimizer):
        return {}
    digest, in_state_dict = Digest(model), ("state", "param_groups", "defaults")
    return {name: digest(value) for name, value in vars(optimizer).items() if name not in in_state_dict}


def changed_attributes(optimizer: torch.optim.Optimizer, model: nn.Module, before: Snapshot) -> dict[str, Any]:
    """The attributes of an optimizer that differ from an earlier `snapshot`."""
    values = vars(optimizer)
    return {name: values[name] for name in changed(before, snapshot(optimizer, model)) if name in values}
