"""How a step is computed: one table of the arithmetics, which differ in a curve's last bits.

To add one: a file in `study/engine/fused` with `can`, `pays` and `stack`, a line here, and its name in `study.records`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from study.engine.fused import linear_blocks, linear_chain, vmapped
from study.engine.fused.layout import is_watched
from study.engine.fused.stack import Stack
from study.records import Study


@dataclass(frozen=True)
class Arithmetic:
    """One way to compute the steps of a study.

    Attributes:
        can: whether it computes this study of this model correctly, where the study can be fused at all (`fusible`).
        pays: whether `engine=auto` takes it on this device: a rule of model, batch size and kind of device, never of
            the clock, since the choice settles a curve's last bits.
        stack: builds a stack with this number of rows, one for each trial; None: trials train one at a time.
        checked_examples: how many each row sees before stack heights are compared: the fewer examples there are in
            cheap steps, the later other bits show.
    """

    can: Callable[[nn.Module, Study], bool]
    pays: Callable[[nn.Module, Study, str], bool]
    stack: Callable[[nn.Module, Study, int], Stack] | None
    checked_examples: int = 0


ARITHMETICS = {
    "linear_blocks": Arithmetic(linear_blocks.can, linear_blocks.pays, linear_blocks.stack, checked_examples=64),
    "linear_chain": Arithmetic(linear_chain.can, linear_chain.pays, linear_chain.stack, checked_examples=64),
    "vmap": Arithmetic(vmapped.can, vmapped.pays, vmapped.stack),
    "plain": Arithmetic(can=lambda *_: True, pays=lambda *_: True, stack=None),
}
"""In order of preference; `Study.arithmetic` is one of the keys."""


def fused(study: Study) -> bool:
    """Whether the trials of a study are trained as rows of one stack; those in arithmetics that were removed were."""
    known = ARITHMETICS.get(study.arithmetic)
    return known is None or known.stack is not None


def candidates(model: nn.Module, study: Study, device: str, forced: bool = False) -> list[str]:
    """The arithmetics that a study of this model may be computed in, the preferred one first; `plain` ends the list.
    `forced`: fuse trials wherever model and optimizer allow it, whether or not it pays (`engine=lanes`)."""
    able = [
        name
        for name, each in ARITHMETICS.items()
        if each.can(model, study) and (each.stack is None or fusible(model, study))
    ]
    paying = [name for name in able if ARITHMETICS[name].pays(model, study, device)]
    if not forced:
        return paying
    return sorted(able, key=lambda name: (ARITHMETICS[name].stack is None, name not in paying))


def fusible(model: nn.Module, study: Study) -> bool:
    """Whether any stack computes this study: whole batches in fp32, a rule for single parameters, all weights trained,
    and none with a hook, because fused models have no gradient of a single weight to show to it."""
    return (
        study.micro_batch is None
        and study.precision == "fp32"
        and study.algorithm.update is not None
        and all(parameter.requires_grad and not is_watched(parameter) for parameter in model.parameters())
    )
