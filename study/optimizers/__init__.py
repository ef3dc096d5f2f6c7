"""The registry of optimizers. Each is a pure (init, update) pair for one parameter of one model.

To add one, write a line here and a YAML in conf/optimizer. `tests/study/optimizers/test_optimizers.py` compares every
entry with an independent implementation.
"""

from collections.abc import Mapping
from typing import Any

from study.optimizers import elementwise, fast, kfac, layerwise, matrices
from study.optimizers.base import Optimizer
from study.optimizers.foreign import foreign
from study.space import Legal
from workloads.suggest import suggest

_FRACTION, _POSITIVE, _NOT_NEGATIVE, _WHOLE = map(Legal, ("[0, 1)", "(0, inf)", "[0, inf)", "[1, inf)"))
_RATE = {"learning_rate": _POSITIVE}
_MOMENTUM = _RATE | {"momentum": _FRACTION}
_ADAM = _RATE | {"beta1": _FRACTION, "beta2": _FRACTION, "epsilon": _POSITIVE}
_RMSPROP = _MOMENTUM | {"beta2": _FRACTION, "epsilon": _POSITIVE}
_DECAY = {"weight_decay": _NOT_NEGATIVE}
_LARS = _MOMENTUM | _DECAY | {"trust_coefficient": _POSITIVE}
_SOAP = _ADAM | {"precondition_frequency": _WHOLE}
_KFAC = _MOMENTUM | {"damping": _POSITIVE, "factor_decay": _FRACTION, "inverse_frequency": _WHOLE}

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(_RATE, elementwise.sgd, linear=True, stacked=fast.sgd_, build=fast.torch_sgd),
    "momentum": Optimizer(
        _MOMENTUM,
        elementwise.momentum,
        elementwise.momentum_state,
        linear=True,
        stacked=fast.momentum_,
        build=fast.torch_sgd,
    ),
    "nesterov": Optimizer(
        _MOMENTUM,
        elementwise.nesterov,
        elementwise.momentum_state,
        linear=True,
        stacked=fast.nesterov_,
        build=fast.torch_nesterov,
    ),
    "folded_momentum": Optimizer(
        _MOMENTUM | {"momentum_correction": Legal("[0, 1]")},
        elementwise.folded_momentum,
        elementwise.folded_momentum_state,
        elementwise=False,  # its state holds a scalar
    ),
    "rmsprop": Optimizer(_RMSPROP, elementwise.rmsprop, elementwise.rmsprop_state),
    "adam": Optimizer(_ADAM, elementwise.adam, elementwise.adam_state, stacked=fast.adam_, build=fast.torch_adam),
    "adamw": Optimizer(
        _ADAM | _DECAY,
        elementwise.adamw,
        elementwise.adam_state,
        stacked=fast.adamw_,
        build=fast.torch_adamw,
        own=("weight_decay",),
    ),
    "nadam": Optimizer(_ADAM, elementwise.nadam, elementwise.nadam_state, elementwise=False),
    "lion": Optimizer(_RATE | {"beta1": _FRACTION, "beta2": _FRACTION}, elementwise.lion, elementwise.lion_state),
    "lars": Optimizer(_LARS, layerwise.lars, elementwise.momentum_state, elementwise=False, own=("weight_decay",)),
    "lamb": Optimizer(
        _ADAM | _DECAY,
        layerwise.lamb,
        elementwise.adam_state,
        elementwise=False,
        stacked=fast.lamb_,
        own=("weight_decay",),
    ),
    "muon": Optimizer(_MOMENTUM | _ADAM | _DECAY, matrices.muon, matrices.muon_state, elementwise=False),
    "soap": Optimizer(
        _SOAP,
        matrices.soap,
        matrices.soap_state,
        elementwise=False,
        refresh=matrices.refresh_soap,
        due=matrices.soap_is_due,
    ),
    "kfac": Optimizer(_KFAC, build=kfac.KFAC, sees_examples=True),
}


def find(name: str, arguments: Mapping[str, Any] | None = None) -> Optimizer:
    """The registered optimizer of this name, or the class at this import path with extra arguments.

    Raises:
        ValueError: no optimizer has this name, or it does not take the arguments.
    """
    if name in OPTIMIZERS:
        if arguments:
            raise ValueError(f"optimizer.arguments are for optimizer=torch, but got {name} with {dict(arguments)}.")
        return OPTIMIZERS[name]
    if "." in name:
        return foreign(name, arguments or {})
    raise ValueError(f"unknown optimizer {name!r}{suggest(name, OPTIMIZERS)}")
