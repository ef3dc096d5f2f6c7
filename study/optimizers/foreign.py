"""Any `torch.optim.Optimizer` class by its import path, such as `pytorch_optimizer.Ranger21`, on the serial engine."""

import dis
import inspect
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from study.errors import Failed
from study.optimizers.base import AVERAGE, CLIP, Optimizer, Values
from study.optimizers.per_parameter import ALL_USUAL, Treatments, param_groups
from study.schedules import Schedule
from study.space import Legal
from workloads.user_code.importing import imported

THEIRS = {"learning_rate": "lr", "epsilon": "eps"}
"""Our name -> the name in these classes; beta1, beta2, ... become their `betas`."""
PACKAGES = ("torch.optim", "pytorch_optimizer")
"""Where classes are looked for by their names alone; the second one may not be installed."""
ANY_NUMBER, ANY_NAME = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
TESTS = (
    "TO_BOOL",
    "UNARY_NOT",
    *(f"POP_JUMP_{way}IF_{what}" for way in ("", "FORWARD_") for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")),
)
"""Instructions that test the value before them, by their names in several versions of Python."""


def foreign(path: str, arguments: Mapping[str, Any]) -> Optimizer:
    """Wrap an optimizer class; tuned parameters and `arguments`, of any type, are passed by keyword.

    The class gets named parameters, or unnamed ones if it cannot read those.

    Raises:
        ValueError: the path names no optimizer class, or the class does not take an argument.
    """
    try:
        constructor = imported(path, "optimizer.target must be the import path of an optimizer class")
    except ValueError as error:
        package, _, name = path.rpartition(".")
        near = class_path(name, ()) if package.split(".")[0] in ("optim", "torch", "pytorch_optimizer") else None
        raise (ValueError(f"there is no optimizer.target={path}; did you mean {near}?") if near else error) from None
    if not (isinstance(constructor, type) and issubclass(constructor, torch.optim.Optimizer)):
        raise ValueError(f"optimizer.target must be a torch.optim.Optimizer class, but {path} is not one.")
    named, is_all = _parameters(constructor)
    if "lr" not in named:
        raise ValueError(f"optimizer.target must take `lr`, which schedules multiply, but {path} does not.")
    for key in arguments:
        if key in ("params", "lr"):
            raise ValueError(f"optimizer.arguments cannot set {key}; the learning rate is search.space.learning_rate.")
        if key not in named and is_all:
            raise ValueError(f"{path} takes no argument {key!r}; it takes {', '.join(list(named)[1:])}.")
    names = {ours for ours in (*THEIRS, *named) if THEIRS.get(ours, ours) in named} - {"lr", "eps", "params", "betas"}
    default = named["betas"].default if "betas" in named else ()
    names |= {f"beta{number + 1}" for number in range(len(default) if isinstance(default, tuple) else 0)}
    names -= {"learning_rate", *Schedule.optional_hyperparameters}  # warmup belongs to the schedule
    names -= {ours for ours in names if isinstance(_default(ours, named), str | Sequence | Mapping)}  # not numbers
    return Optimizer(
        hyperparameters={"learning_rate": Legal("(0, inf)")},
        build=partial(_build, _with_closure(constructor), arguments, named, names),
        optional=CLIP | {name: _legal(name, named) for name in sorted(names)} | AVERAGE,
        own=("l2", "weight_decay", *(name for name in CLIP if name in names)),
    )


def class_path(name: str, known: Iterable[str]) -> str | None:
    """The import path of an optimizer class: a name with dots, or another spelling of a class of `PACKAGES`, such as
    `r_adam`. None if there is none, or the name is another spelling of a known one.

    >>> class_path("r_adam", ["adam"]), class_path("Adam_W", ["adamw"]), class_path("sdg", ["sgd"])
    ('torch.optim.RAdam', None, None)
    """
    if "." in name:
        return name
    if _letters(name) in map(_letters, known):
        return None
    for package in PACKAGES:
        with suppress(ImportError):
            for each, value in vars(import_module(package)).items():
                is_one = isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
                if is_one and value is not torch.optim.Optimizer and _letters(each) == _letters(name):
                    return f"{package}.{each}"
    return None


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _parameters(constructor: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """(the arguments of a class by name, whether there are no others).

    A constructor with `**keywords` may pass them on to the class that it inherits from: it takes those of that
    optimizer, too, and perhaps others.
    """
    named: dict[str, inspect.Parameter] = {}
    for each in constructor.__mro__[: constructor.__mro__.index(torch.optim.Optimizer)]:
        taken = inspect.signature(each).parameters
        if each is constructor or "lr" in taken:
            named = {n: p for n, p in taken.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)} | named
        if all(p.kind != p.VAR_KEYWORD for p in taken.values()):
            return named, each is constructor
    return named, False


def _legal(name: str, named: Mapping[str, inspect.Parameter]) -> Legal:
    """Legal values by the usual meaning of a name, unless the default of the constructor has another; else any number,
    as for `beta2_decay=-0.8` of Adafactor."""
    usual = {"weight_decay": "[0, inf)", "epsilon": "(0, inf)"}.get(name, "(-inf, inf)")
    legal = Legal("[0, 1)" if name == "momentum" or name.startswith("beta") else usual)
    default = _default(name, named)
    return legal if not isinstance(default, int | float) or default in legal else Legal("(-inf, inf)")


def _default(name: str, named: Mapping[str, inspect.Parameter]) -> Any:
    """The default of an argument by our name for it; None if it is not an argument of its own."""
    theirs = THEIRS.get(name, name)
    return named[theirs].default if theirs in named else None


def _with_closure(constructor: Any) -> Any:
    """A subclass whose `step` takes the closure, which computes the gradients, first, and passes it on.

    If the `step` of the class calls no closure, or an optimizer has hooks that run before `step`, such as one that
    clips gradients, they are computed first, and `step` gets no closure, as in a plain training loop.
    """
    bare, taken = constructor.step, _taken(constructor.step)
    calls = calls_closure(bare)
    by_name = [each.kind for each in taken] == [ANY_NAME] or any(
        each.name == "closure" and (place > 0 or each.kind == each.KEYWORD_ONLY) for place, each in enumerate(taken)
    )
    optional = all(each.default is not each.empty or each.kind in (ANY_NUMBER, ANY_NAME) for each in taken)
    with_hooks = bare if getattr(bare, "hooked", False) else constructor.profile_hook_step(bare)

    class WithClosure(constructor):
        def step(self, closure: Any = None) -> Any:
            hooks = getattr(self, "_optimizer_step_pre_hooks", None)  # wrappers may leave out Optimizer.__init__
            step = bare if hooks is None else with_hooks
            if closure is not None and calls and not (optional and hooks):
                return step(self, closure=closure) if by_name else step(self, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            step(self)
            return loss

    WithClosure.step.__dict__["hooked"] = True  # as torch marks a step that runs the hooks; else it would wrap this one
    WithClosure.__name__ = constructor.__name__  # messages name the class of the user
    return WithClosure


def calls_closure(step: Any) -> bool:
    """True if the method uses `closure`, or its first argument after `self`, or if its bytecode is unavailable.

    A test whether there is one, as in `assert closure is None`, is no use of it.
    """
    own, taken = inspect.unwrap(step), _taken(step)
    if not inspect.isfunction(own):
        return True
    closure = [each.name for each in taken if each.name == "closure"]
    closure = closure or [each.name for each in taken[:1] if each.kind != each.KEYWORD_ONLY]
    for one, then in pairwise(dis.get_instructions(own)):
        loaded = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        tested = then.opname in TESTS or (then.opname == "LOAD_CONST" and then.argval is None)
        if one.opname.startswith("LOAD") and any(name in loaded for name in closure) and not tested:
            return True
    return False


def _taken(step: Any) -> list[inspect.Parameter]:
    """The arguments of a method after `self`; none if it is no Python function."""
    own = inspect.unwrap(step)
    return list(inspect.signature(own).parameters.values())[1:] if inspect.isfunction(own) else []


def _build(
    constructor: Any,
    arguments: Mapping[str, Any],
    named: Mapping[str, inspect.Parameter],
    names: Container[str],
    model: nn.Module,
    h: Values,
    special: Treatments = ALL_USUAL,
) -> torch.optim.Optimizer:
    keywords = {**arguments, "lr": h["learning_rate"]}
    for ours, value in h.items():
        theirs = THEIRS.get(ours, ours)
        if ours in names and theirs in named:
            keywords[theirs] = _as(named[theirs], value)
    betas = [name for name in sorted(h) if name in names and name not in named and name.startswith("beta")]
    if betas:
        usual = dict(enumerate(arguments.get("betas", named["betas"].default), start=1))
        keywords["betas"] = tuple({**usual, **{int(name[4:]): h[name] for name in betas}}.values())
    try:
        optimizer = constructor(param_groups(model, h["learning_rate"], special, named=True), **keywords)
    except Exception:  # the class reads its parameters before torch takes the names off them, or refuses an argument
        optimizer = constructor(param_groups(model, h["learning_rate"], special), **keywords)
    if hasattr(optimizer, "eval") and hasattr(optimizer, "train"):
        # Schedule-free optimizers: some step only after `train`, which may undo an `eval` before it.
        optimizer.eval()
        optimizer.train()
    return optimizer


def _as(taken: inspect.Parameter, value: float) -> Any:
    """A searched number for the constructor: a whole one is an integer unless the default or annotation is a float.

    Without a default an argument may be a length or a count: `range` takes no float.
    """
    if not float(value).is_integer():
        return value
    if isinstance(taken.default, int):
        return type(taken.default)(value)
    return int(value) if taken.default in (None, taken.empty) and "float" not in str(taken.annotation) else value


def check_rates(optimizer: torch.optim.Optimizer, given: Sequence[float], where: str) -> None:
    """Raise Failed if a step has changed the learning rates that it was given for its param_groups."""
    if [group["lr"] for group in optimizer.param_groups] != given:
        raise Failed(
            f"{where} the step of {type(optimizer).__name__} changed `lr` in its param_groups, which the schedule sets "
            "before each update; choose schedule= for it, or keep the factor on the learning rate in another entry of "
            "the group."
        )
