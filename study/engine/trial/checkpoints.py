"""Checkpoints of running trials: their content, and whether one belongs to a given trial.

A checkpoint holds everything that the rest of a curve depends on, apart from the configuration: weights, optimizer
state, step, and the measurements so far. Batches, dropout and schedules are functions of (seed, step).
"""

import hashlib
import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from study.engine.trial.evaluation import Log
from study.errors import Failed
from study.records import Study, Trial

CPU = torch.device("cpu")
KEYS = {"torch", "trial", "micro_batch", "steps", "errors", "seconds", "step", "weights", "state"}
"""What a checkpoint holds, those of earlier versions without the `device`; see `pack`."""
ARCHIVE = b"PK"
"""The first bytes of a file of torch.save, which is a zip archive. torch.load would warn about a bare pickle."""


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
        "device": log.data.device.type,
    }
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
    saved, grid = _read(content, log.data.device), log.study.evaluation_steps
    matches = (
        saved is not None
        and saved["torch"] == str(torch.__version__)
        and json.loads(saved["trial"]) == json.loads(_record(log.trial))
        and saved["micro_batch"] == log.micro_batch
        and _shapes(saved["weights"]) == _shapes(weights)
        and saved["errors"].keys() == log.errors.keys()
        and tuple(saved["steps"]) == grid[: len(saved["steps"])] != grid
        and saved["step"] <= grid[len(saved["steps"])]
    )
    if saved is None or not matches:
        return None
    log.steps, log.errors, log.seconds = saved["steps"], saved["errors"], saved["seconds"]
    return Checkpoint(saved["step"], saved["weights"], saved["state"])


def read(content: bytes, device: torch.device = CPU) -> Checkpoint | None:
    """The checkpoint in these bytes, of whatever trial, to go on with on a device; None if they cannot be read."""
    saved = _read(content, device)
    return None if saved is None else Checkpoint(saved["step"], saved["weights"], saved["state"])


def started(content: bytes | None, study: Study, device: torch.device) -> Checkpoint:
    """The checkpoint that the trials of a branch start from, as step 0.

    Raises:
        Failed: the content is not the checkpoint whose checksum the study has recorded.
    """
    assert study.start is not None
    checkpoint = None if content is None else read(content, device)
    if checkpoint is None or checksum(checkpoint) != study.start.checksum:
        raise Failed(
            f"a trial of {study.name} at batch size {study.batch_size} cannot start from step {study.start.step} of "
            f"its trunk: what is on file is not the checkpoint {study.start.checksum[:12]}…; remove the folder "
            "`checkpoints` beside trunk.json, and the same command trains the trunk again."
        )
    return checkpoint._replace(step=0)


def checksum(checkpoint: Checkpoint) -> str:
    """SHA-256 of step, weights and optimizer state, whatever file they were read from."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{list(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value, key=str):
                digest.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, list | tuple):
            for each in value:
                add(each)
        else:
            digest.update(f"{value!r};".encode())

    add(checkpoint._asdict())
    return digest.hexdigest()


def trials(kept: Mapping[int, bytes]) -> list[Trial]:
    """The trials of all readable checkpoints. `kept`: trial index -> content."""
    read = (_read(kept.get(index)) for index in kept)  # `get`: a file may vanish, or be unreadable
    return [Trial(**json.loads(saved["trial"])) for saved in read if saved is not None]


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
        saved = torch.load(io.BytesIO(body), map_location=_Onto(device), weights_only=True)
    except (pickle.UnpicklingError, RuntimeError):  # other objects than plain data, or a newer version of torch
        return None
    if not isinstance(saved, dict) or saved.keys() - {"device"} != KEYS:
        return None
    if saved.get("device") == "cpu":  # the run was on the CPU, and so was all of its state
        onto = partial(tree_map_only, Tensor, lambda tensor: tensor.to(device))
        saved["state"] = {key: part if key == "stream" else onto(part) for key, part in saved["state"].items()}
    return saved


def _digest(body: bytes) -> bytes:
    # torch.load verifies no checksum, and a flipped bit in a weight would change the curve.
    return hashlib.sha256(body).digest()
