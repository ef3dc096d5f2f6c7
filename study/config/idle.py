"""Refuses keys of the command line that would do nothing beside the others. Those of files give way silently."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analysis.counting import RACE
from analysis.question.stages import REFINE
from study.config.composed.overrides import parsed
from study.errors import UsageError
from study.settings import ROUNDS
from workloads.command import is_command


class Rule(NamedTuple):
    """When keys have an effect.

    Attributes:
        works: whether they have one, by the composed configuration.
        said: what they are for, what there is instead, and the cure; `{c}` is the configuration, and `{value}` is "="
            and the value that was given.
    """

    keys: tuple[str, ...]
    works: Callable[[Any], bool]
    said: str


def _refines(config: Any) -> bool:
    return bool(config.search.sampler == REFINE)


def _samples(config: Any) -> bool:
    return not _refines(config)


def _widens(config: Any) -> bool:
    return bool(config.search.extend) or _refines(config)


def _may_widen(config: Any) -> bool:
    return _refines(config) or not config.search.extend or config.search.extend_limit > 0


def _trains(config: Any) -> bool:
    return not is_command(str(config.workload.get("_target_")))


def _one_device(config: Any) -> bool:
    return (config.engine.devices or 1) == 1


def _tracks(config: Any) -> bool:
    return not config.track.trials or any(chosen for name, chosen in config.track.items() if name != "trials")


def _compiles(config: Any) -> bool:
    return config.engine.compile is not True or config.engine.name != "serial"


def _decays(config: Any) -> bool:
    """Whether weights may decay: by a searched parameter, an argument of the user's own class, or a script."""
    searched = not {"weight_decay", "l2"}.isdisjoint(config.search.space)
    return searched or config.optimizer.name == "torch" or not _trains(config)


_FROM_ROUNDS = (
    "is for other samplers: the trials of search=refine follow from search.scouts, search.refine, search.candidates "
    "and search.screens; give these, or choose search=sobol"
)
_FUSES = "is for trials that train at once, but got "
RULES = (
    Rule(("search.trials", "search.max_launches"), _samples, _FROM_ROUNDS),
    Rule(
        ("search.reruns",),
        _samples,
        "is for other samplers: search=refine trains the tuned configuration with search.confirm fresh seeds; give "
        "search.confirm{value}, or choose search=sobol",
    ),
    Rule(
        ("search.extend",),
        _samples,
        "is for other samplers: the rounds of search=refine go beyond an edge by themselves, at most "
        "search.extend_limit times; give search.extend_limit=0 to keep them in the search space, or choose "
        "search=sobol",
    ),
    Rule(
        ("search.extend",),
        _may_widen,
        "widens nothing with search.extend_limit=0; raise search.extend_limit, or leave search.extend out",
    ),
    Rule(
        tuple(f"search.{name}" for name in ROUNDS),
        _refines,
        "is for search=refine: other samplers have no rounds; give search.trials, or choose search=refine",
    ),
    Rule(
        ("search.confirm",),
        _refines,
        "is for search=refine: other samplers train the tuned configuration with search.reruns fresh seeds; give "
        "search.reruns{value}, or choose search=refine",
    ),
    Rule(
        ("search.extend_factor", "search.extend_limit"),
        _widens,
        "is for searches that widen their space, but got search={c.search.sampler} without search.extend; add "
        "search.extend=true, or leave it out",
    ),
    Rule(
        ("search.until_cost",),
        lambda config: config.search.until is not None,
        "limits a sweep that goes on, but got no search.until; add search.until='width 1.5', or leave it out",
    ),
    Rule(
        ("race_factor",),
        lambda config: config.stopping == RACE,
        "is for stopping=race, but got stopping={c.stopping}; leave it out, or choose stopping=race",
    ),
    Rule(
        ("batch_sizes",),
        lambda config: config.batch_size is None,
        "is not used: batch_size={c.batch_size} chooses the batch sizes; give one of the two keys",
    ),
    Rule(
        ("optimizer.no_decay",),
        _decays,
        "says which parameters do not decay, but got no search.space.weight_decay or l2; add one, such as "
        "search.space.weight_decay=0.01, or leave it out",
    ),
    Rule(("track.trials",), _tracks, "is for trackers, but got track=none; add one, such as track=tensorboard"),
    Rule(
        ("engine.lanes",),
        lambda config: config.engine.name != "serial",
        f"{_FUSES}engine=serial; leave it out, or choose engine=auto",
    ),
    Rule(("engine.compile",), _compiles, f"{_FUSES}engine=serial; leave it out, or choose engine=auto"),
    Rule(
        ("engine.lanes",),
        _one_device,
        f"{_FUSES}engine.devices={{c.engine.devices}}, which train one trial at a time; leave out one of the two keys",
    ),
    Rule(
        ("evaluation.every", "engine.compile", "engine.data_memory", "engine.loaders", "checkpoint.minutes"),
        _trains,
        "is for models that this program trains, but workload={c.workload.name} trains by a command of yours; leave it "
        "out",
    ),
)


def check(arguments: Sequence[str], configs: Sequence[Any]) -> None:
    """Raise UsageError for a key of the command line that does nothing in any of its configurations.

    Arguments:
        arguments: overrides, such as `race_factor=3`. A value of null asks for nothing.
        configs: composed of them.
    """
    for override in map(parsed, arguments):
        key, typed = override.key_or_group.lstrip("+"), str(override.input_line).lstrip("+")
        for rule in RULES if override.value() is not None else ():
            if key in rule.keys and not any(map(rule.works, configs)):
                value = f"={typed.partition('=')[2]}"
                raise UsageError(f"{typed} {rule.said.format(c=configs[0], value=value)}.")
