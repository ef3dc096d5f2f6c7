"""Checkpoints of running trials: when they are due, their content, and whether one belongs to a given trial.

A checkpoint holds everything that the rest of a curve depends on, apart from the configuration: weights, optimizer
state, step, and the measurements so far. Batches, dropout and schedules are functions of (seed, step).
"""

import hashlib
import io
import json
import pickle
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from study.engine.evaluation import Log
from study.errors import Failed
from study.records import Study, Trial
from study.user_code.faults import said
from study.user_code.hidden_state import copied, is_plain, seal

CPU = torch.device("cpu")
KEYS = {"torch", "trial", "micro_batch", "steps", "errors", "seconds", "step", "weights", "state"}
"""What a checkpoint holds, those of earlier versions without the `device`; see `pack`."""
OURS = {"momentum_buffer": "velocity", "exp_avg": "mean", "exp_avg_sq": "square"}
"""Names of optimizer state: in torch -> in `study.optimizers`."""
OF_BATCH_SIZE = ("lr", "betas", "beta1", "beta2", "momentum")
"""Settings of a parameter group that may depend on the batch size: the rates, and decay rates given as half-lives."""
ARCHIVE = b"PK"
"""The first bytes of a file of torch.save, which is a zip archive. torch.load would warn about a bare pickle."""


SLICE = 5.0
"""The longest slice [s], after which progress is shown."""


class Pace:
    """Cuts training into slices, so that checkpoints and progress are on time even if evaluations are far apart.

    Arguments:
        minutes: between checkpoints; 0: after every step; None: no checkpoints.
        broadcast: runs a function on rank 0 and returns its result on every rank, so that all ranks use one clock.
    """

    def __init__(
        self, minutes: float | None, broadcast: Callable[[Callable[[], Any]], Any] = lambda call: call()
    ) -> None:
        self.broadcast = broadcast
        self.seconds = None if minutes is None else 60 * minutes
        self.last = time.monotonic()
        self.step = float("inf")
        """Seconds per step in the latest slice; infinite at first, so that the first slice is a single step."""

    def advance(self, advance: Callable[[int], None], most: int) -> None:
        """Make `most` steps, or fewer if a checkpoint is due earlier or they take longer than SLICE.

        Arguments:
            advance: makes the given number of steps.
        """
        start = time.monotonic()
        left = SLICE if self.seconds is None else min(SLICE, self.last + self.seconds - start)
        steps = self.broadcast(lambda: int(min(most, max(1, left / self.step))))
        advance(steps)
        if steps:
            self.step = max(1e-9, (time.monotonic() - start) / steps)

    def due(self) -> bool:
        """Whether a checkpoint is due; if so the clock restarts."""
        if self.seconds is None:
            return False
        now, next_one = time.monotonic(), self.last + self.seconds
        if not self.broadcast(lambda: now >= next_one):
            return False
        self.last = now
        return True


class Proposals(Protocol):
    """What an engine needs from the tuner and the store; in worker processes a pipe answers. By default no trial has a
    checkpoint and none is taken. `pace`: when checkpoints of running trials are due."""

    pace: Pace = Pace(None)

    def ask(self, wait: bool) -> Trial | None:
        """The next trial, or None: no more trials will come or, without `wait`, none is ready now."""
        ...

    def train_at_once(self, lanes: int) -> None:
        """The engine trains only this many trials at once from now on."""
        return

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run."""
        ...

    def checkpoint(self, index: int) -> bytes | None:
        """The latest checkpoint of trial `index`, or that of the TRUNK."""
        return None

    def keep(self, index: int, checkpoint: bytes) -> None:
        """Store the latest checkpoint of trial `index`, in place of an earlier one."""
        return

    def reached(self, steps: Callable[[], Mapping[int, int]]) -> None:
        """Take note of the progress of running trials. `steps`: returns trial index -> step; called only if needed."""
        return


class Checkpoint(NamedTuple):
    """The point at which a trial continues: updates done, weights by name, optimizer state in the engine's format."""

    step: int
    weights: Mapping[str, Tensor]
    state: Mapping[Any, Any]


def bytes_of(study: Study, model: nn.Module) -> int:
    """Bytes of the weights and the optimizer state of one trial. The state of optimizers of whole models is not known
    before their first step; that of Adam is assumed."""
    trained = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    if study.algorithm.update is None:
        return weights + 2 * sum(parameter.nbytes for parameter in trained)
    state = sum(tensor.nbytes for parameter in trained for tensor in study.algorithm.init(parameter).values())
    return weights * (2 if study.averages else 1) + state


def pack(log: Log, checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes: a SHA-256 digest (32 bytes), then a torch archive of tensors and plain data, which
    loads without running pickled code."""
    content = {
        "torch": str(torch.__version__),
        "trial": _record(log.trial),
        "micro_batch": log.micro_batch,
        "steps": log.steps,
        "errors": log.errors,
        "seconds": log.seconds,
        "step": checkpoint.step,
        # Copy: torch saves the whole storage of a view, here the whole stack.
        "weights": {name: tensor.to("cpu", copy=True) for name, tensor in checkpoint.weights.items()},
        "state": checkpoint.state,
    }
    content["device"] = log.data.device.type
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()
    return _digest(body) + body


def restore(content: bytes | None, log: Log, weights: Mapping[str, Tensor]) -> Checkpoint | None:
    """Fill a log from a checkpoint of its trial; returns the point at which the trial continues.

    Arguments:
        weights: the trial's weights at step 0; the checkpoint must have the same names and shapes.

    Returns:
        None, with the log unchanged, if there is no checkpoint, if it cannot be read, or if it does not match: another
        trial, micro-batch, model, set of errors or evaluation grid, or another version of torch (other last bits).
    """
    held, grid = _read(content, log.data.device), log.study.evaluation_steps
    matches = (
        held is not None
        and held["torch"] == str(torch.__version__)
        and json.loads(held["trial"]) == json.loads(_record(log.trial))
        and held["micro_batch"] == log.micro_batch
        and _shapes(held["weights"]) == _shapes(weights)
        and held["errors"].keys() == log.errors.keys()
        and tuple(held["steps"]) == grid[: len(held["steps"])] != grid
        and held["step"] <= grid[len(held["steps"])]
    )
    if held is None or not matches:
        return None
    log.steps, log.errors, log.seconds = held["steps"], held["errors"], held["seconds"]
    return Checkpoint(held["step"], held["weights"], held["state"])


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of a plain optimizer as plain data: by parameter, and the settings and counts of its groups.

    `names` are those of the parameters in the optimizer's order, so that the fused engine can go on with the state.
    """
    held = optimizer.state_dict()
    # Some optimizers count their steps in the parameter groups.
    groups = [{k: v for k, v in group.items() if k != "params"} for group in held["param_groups"]]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    order = [names.get(id(each), "") for group in optimizer.param_groups for each in group["params"]]
    # A class with a `state_dict` of its own may add to it.
    more = {key: value for key, value in held.items() if key not in ("state", "param_groups")}
    return {"state": held["state"], "groups": groups, "names": order, **({"more": more} if more else {})}


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
        held = {key: value for part in parts for key, value in part.items() if not _is_loadable(value)}
        odd = held | {name: value for name, value in {**attributes, **inside}.items() if not is_plain(value)}
        lost = [f"{name} ({type(value).__name__})" for name, value in odd.items()]
    except Exception as error:  # the state_dict of any library, such as of a wrapper without Optimizer.__init__
        lost = [f"the state_dict of {type(optimizer).__name__} ({said(error)})"]
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
    if is_plain(value):
        return True
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # objects of any library
        return False
    return True


def put_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: Mapping[Any, Any], settings: bool) -> bool:
    """Give a plain optimizer the state from `plain_state`.

    Arguments:
        settings: also its learning rates and decay rates. A branch has others than its trunk.

    Returns:
        Whether the optimizer is as it was when it was saved; True if `settings` differ.
    """
    before, groups = [*optimizer.param_groups], optimizer.state_dict()["param_groups"]
    kept = [
        {**group, **{key: value for key, value in held.items() if settings or key not in OF_BATCH_SIZE}}
        for group, held in zip(groups, state["groups"], strict=True)
    ]
    optimizer.load_state_dict({**state.get("more", {}), "state": state["state"], "param_groups": kept})
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


def _give_back_types(optimizer: torch.optim.Optimizer, held: Mapping[Any, Any]) -> None:
    """Give tensors of the state the types that they had: torch has cast them to those of their parameters."""
    parameters = dict(enumerate(each for group in optimizer.param_groups for each in group["params"]))
    for index, kept in held.items():
        now = optimizer.state[parameters.get(index, index)]
        for key, value in kept.items():
            if isinstance(value, Tensor) and value.dtype != now[key].dtype:
                now[key] = value.to(now[key].device)


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
            OURS.get(key, key): value for key, value in held.items() if isinstance(value, Tensor) and key != "step"
        }
        for index, held in state["state"].items()
    }


def read(content: bytes, device: torch.device = CPU) -> Checkpoint | None:
    """The checkpoint in these bytes, of whatever trial, to go on with on a device; None if they cannot be read."""
    held = _read(content, device)
    return None if held is None else Checkpoint(held["step"], held["weights"], held["state"])


def started(content: bytes | None, study: Study, device: torch.device) -> Checkpoint:
    """The checkpoint that the trials of a branch start from, as step 0.

    Raises:
        Failed: the content is not the checkpoint whose checksum the study has recorded.
    """
    assert study.start is not None
    found = None if content is None else read(content, device)
    if found is None or checksum(found) != study.start.checksum:
        raise Failed(
            f"a trial of {study.name} at batch size {study.batch_size} cannot start from step {study.start.step} of "
            f"its trunk: what is on file is not the checkpoint {study.start.checksum[:12]}…; remove the folder "
            "`checkpoints` beside trunk.json, and the same command trains the trunk again."
        )
    return found._replace(step=0)


def checksum(checkpoint: Checkpoint) -> str:
    """SHA-256 of step, weights and optimizer state, whatever file they were read from."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            found.update(f"{value.dtype}{list(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value, key=str):
                found.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            found.update(f"{value!r};".encode())

    add(checkpoint._asdict())
    return found.hexdigest()


def trials(kept: Mapping[int, bytes]) -> list[Trial]:
    """The trials of all readable checkpoints. `kept`: trial index -> content."""
    read = (_read(kept.get(index)) for index in kept)  # `get`: a file may vanish, or be unreadable
    return [Trial(**json.loads(held["trial"])) for held in read if held is not None]


def _shapes(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(tensor, "shape", None) for name, tensor in weights.items()}


def _record(trial: Trial) -> str:
    # As JSON: a hyperparameter may be a numpy float, which torch.load refuses under weights_only.
    return json.dumps(asdict(trial))


class _Onto(dict[str, str]):
    """Brings tensors that were on a GPU to this device; others stay on the CPU, where they were. torch asks a dict
    about tensors of all kinds, but a function only about most."""

    def __init__(self, device: torch.device) -> None:
        self.device = str(device)

    def get(self, location: str, default: Any = None) -> str:
        return location if location == "cpu" else self.device


def _read(content: bytes | None, device: torch.device = CPU) -> dict[str, Any] | None:
    """The content that `pack` wrote; None if there is none, or the file is torn, foreign or of another version."""
    if content is None:
        return None
    body = content[32:]
    if content[:32] != _digest(body) or not body.startswith(ARCHIVE):
        return None
    try:
        held = torch.load(io.BytesIO(body), map_location=_Onto(device), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError):  # other objects than plain data, or a newer version of torch
        return None
    if not isinstance(held, dict) or held.keys() - {"device"} != KEYS:
        return None
    if held.get("device") == "cpu":  # the run was on the CPU, and so was all of its state
        onto = partial(tree_map_only, Tensor, lambda tensor: tensor.to(device))
        held["state"] = {key: part if key == "stream" else onto(part) for key, part in held["state"].items()}
    return held


def _digest(body: bytes) -> bytes:
    # torch.load verifies no checksum, and a flipped bit in a weight would change the curve.
    return hashlib.sha256(body).digest()
