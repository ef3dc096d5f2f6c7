"""The search space that the runs of a study covered: a log does not say where its runs were drawn from."""

from collections.abc import Mapping, Sequence
from typing import Any

from study.exchange.logs.long_frame import Log
from study.exchange.logs.names import OF_SETTINGS, listed
from study.exchange.released_tree import LEGAL
from study.space import Dimension, Legal

ALWAYS = "learning_rate"
"""The hyperparameter that is kept even if all runs share its value."""
LOG_RATIO = 5
"""Positive values that span at least this factor are taken to have been chosen on a log scale."""
NEAR_ONE = ("momentum", "beta", "beta1", "beta2", "beta_1", "beta_2", "ema_decay")
"""Hyperparameters below 1 that are searched on a reverse log scale."""
FEWEST_LABELS = 3
"""From so few runs on, text that differs in every run is a label, not a hyperparameter."""


def hyperparameters(log: Log, runs: Sequence[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """(run -> its hyperparameters, notes) of the runs of one workload and optimizer.

    A setting is a hyperparameter if it differs between runs. Numbers beside text become text.
    """
    kept: dict[str, bool] = {}
    labels, mixed = [], []
    for name in dict.fromkeys(name for run in runs for name in log.runs[run]):
        values = [log.runs[run][name] for run in runs if name in log.runs[run]]
        texts = [isinstance(value, str) for value in values]
        if name in OF_SETTINGS or (len(set(values)) == 1 and (name != ALWAYS or any(texts))):
            continue
        if all(texts) and len(set(values)) == len(runs) >= FEWEST_LABELS:
            labels.append(name)
            continue
        if any(texts) and not all(texts):
            mixed.append(name)
        kept[name] = any(texts)
    notes = (
        [f"left out, because text that differs in every run is no hyperparameter: {listed(labels)}"] if labels else []
    )
    notes += [f"taken as text, because some of the values are no numbers: {listed(mixed)}"] if mixed else []
    found = {}
    for run in runs:
        held = {name: log.runs[run][name] for name in kept if name in log.runs[run]}
        found[run] = {name: str(value) if kept[name] else float(value) for name, value in held.items()}
    return found, notes


def space(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ranges and choices that these hyperparameters cover, as in a recorded question."""
    found = {}
    for name in sorted({name for point in points for name in point}):
        values = sorted({point[name] for point in points if name in point})
        found[name] = _dimension(name, values).hardened(LEGAL.get(name, Legal("(-inf, inf)"))).to_dict()
    return found


def _dimension(name: str, values: Sequence[Any]) -> Dimension:
    if len(values) == 1 or isinstance(values[0], str):
        return Dimension(choices=tuple(values))
    low, high = values[0], values[-1]
    scale = "linear"
    if name in NEAR_ONE and 0.5 < high < 1:
        scale = "reverse_log"
    elif low > 0 and high / low >= LOG_RATIO:
        scale = "log"
    return Dimension(low=low, high=high, scale=scale)
