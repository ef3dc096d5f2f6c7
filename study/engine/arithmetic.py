"""The table of arithmetics: ways to compute a step, which differ in the last bits of a curve.

To add one, see docs/internals/arithmetic.md.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import nn

from study.engine.fused import linear_blocks, linear_chain, onednn, vmapped
from study.engine.fused.layout import is_watched
from study.engine.fused.stack import Stack
from study.optimizers.per_parameter import Treatments
from study.records import COMMAND, Study


@dataclass(frozen=True)
class Arithmetic:
    """One way to compute the steps of a study.

    Attributes:
        can: (model, study) -> whether it computes the study correctly, given that it is not `unfusible`.
        pays: (model, study, device) -> whether `engine=auto` uses it. A rule of model, batch size and kind of device or
            processor, never of the clock, because the choice determines the last bits of a curve.
        stack: (model, study, rows, treatments of its parameters, frozen parameters that differ between trials) -> a
            stack with one row per trial; None: trials train one at a time.
        checked_examples: examples that each row sees before stack heights are compared. Steps with few examples take
            longer to show a difference in bits.
    """

    can: Callable[[nn.Module, Study], bool]
    pays: Callable[[nn.Module, Study, str], bool]
    stack: Callable[[nn.Module, Study, int, Treatments, Collection[str]], Stack] | None
    checked_examples: int = 0


ARITHMETICS = {
    "linear_blocks_onednn": Arithmetic(linear_blocks.can, onednn.blocks_pay, onednn.blocks, checked_examples=64),
    "linear_blocks": Arithmetic(linear_blocks.can, linear_blocks.pays, linear_blocks.stack, checked_examples=64),
    "linear_chain_onednn": Arithmetic(onednn.can_chain, onednn.chain_pays, onednn.chain, checked_examples=64),
    "linear_chain": Arithmetic(linear_chain.can, linear_chain.pays, linear_chain.stack, checked_examples=64),
    "vmap": Arithmetic(vmapped.can, vmapped.pays, vmapped.stack),
    "plain": Arithmetic(can=lambda *_: True, pays=lambda *_: True, stack=None),
    # A process of the user's, which has no model here: its workload chooses it.
    COMMAND: Arithmetic(can=lambda *_: False, pays=lambda *_: False, stack=None),
}
"""In order of preference; `Study.arithmetic` is one of the keys."""


def fused(study: Study) -> bool:
    """Whether the trials of a study train as rows of one stack. All removed arithmetics did so."""
    known = ARITHMETICS.get(study.arithmetic)
    return known is None or known.stack is not None


def candidates(model: nn.Module, study: Study, device: str, forced: bool = False) -> list[str]:
    """The arithmetics that may compute a study of this model, the preferred one first; `plain` is the last.
    `forced`: also list arithmetics that do not pay (`engine=lanes`)."""
    able = [
        name
        for name, each in ARITHMETICS.items()
        if each.can(model, study) and (each.stack is None or unfusible(model, study) is None)
    ]
    paying = [name for name in able if ARITHMETICS[name].pays(model, study, device)]
    if not forced:
        return paying
    return sorted(able, key=lambda name: (ARITHMETICS[name].stack is None, name not in paying))


def unfusible(model: nn.Module, study: Study) -> str | None:
    """Why no stack can compute this study; None if one can.

    It needs whole batches, an optimizer with a rule for single parameters, a trained parameter, parameters of the type
    of a row, and no gradient hooks (see `is_watched`).
    """
    if study.micro_batch is not None:
        return f"its batches are split into micro-batches of {study.micro_batch}"
    if study.algorithm.update is None:
        return f"{study.optimizer} updates whole models; optimizers with a rule for single parameters are fused"
    for name, parameter in model.named_parameters():
        if is_watched(parameter):
            return f"its parameter {name} has gradient hooks; leave them out"
        if parameter.requires_grad and parameter.dtype != torch.get_default_dtype():
            kind, row = (str(each).removeprefix("torch.") for each in (parameter.dtype, torch.get_default_dtype()))
            return f"its parameter {name} is {kind}, and rows of trials hold {row}"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return "it has no trained parameter"
    return None


def alone(model: nn.Module, study: Study) -> str | None:
    """Why the trials of a study train one at a time, judged by the model and the study alone; None if they
    may be fused."""
    return unfusible(model, study) or vmapped.obstacle(model)
