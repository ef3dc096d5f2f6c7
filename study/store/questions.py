"""Compares the question of a study with the recorded one, and extends it."""

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.counting import Goal, can_answer, launch_limit
from analysis.units import TOKENS
from study.records import ARITHMETICS, COMMAND
from study.settings import ROUNDS, Search

OF_ONE_SIZE = ("batch_size", "train_steps", "budget_examples", "arithmetic")
"""Keys of a question that may differ between batch sizes of one workload and optimizer."""
COUNTS = ("extend", "extend_limit", "repeats", "reruns", "added")
EXTENDABLE = tuple(f"search.{name}" for name in ("trials", "max_launches", "budgets", *COUNTS))
"""Keys that a later run may change. The recorded question never shrinks (see `extended`)."""
SETTLED = ("micro_batch", "evaluation_chunk")
"""Keys that the memory of the first machine decided. Later runs use the recorded value, so they may request another."""
DERIVED = ("train_steps", "budget_examples")
"""Keys that follow from others."""
BUDGET = ("epochs", "tokens", "steps", "max_steps")
ELSEWHERE = "choose another results=DIR"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) wherever two questions differ; a missing key counts as None."""
    # Through JSON, because a stored question has lists where a new one has tuples.
    flat_old, flat_new = _flatten(json.loads(json.dumps(old))), _flatten(json.loads(json.dumps(new)))
    pairs = {key: (flat_old.get(key), flat_new.get(key)) for key in sorted({*flat_old, *flat_new})}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def unlike(old: Mapping[str, Any], new: Mapping[str, Any], same_size: bool) -> dict[str, tuple[Any, Any]]:
    """`differences` in keys that a later run must not change. Studies of other sizes may differ in OF_ONE_SIZE, too.

    A workload class that gets or loses `tokens_per_example` trains the same trials. So does a command whose failures
    end the sweep or not: a failure that did is no trial.
    """
    differing = differences(old, new)
    free = {*EXTENDABLE, *SETTLED, *(() if same_size else OF_ONE_SIZE)}
    if None in differing.get(TOKENS, ()):
        free.add(TOKENS)
    if new.get("arithmetic") == COMMAND:
        free.add("workload.failed")
    return {key: pair for key, pair in differing.items() if key not in free}


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in _flatten(branch, f"{prefix}.{name}" if prefix else name).items()
    }


def told(differing: Mapping[str, tuple[Any, Any]], on_file: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The differences of two questions as text: a hyperparameter that only one of them has, or that is a range in only
    one, as a whole. One that comes or goes with the schedule is left out.

    >>> wide = {"search": {"space": {"momentum": {"low": 0.0, "high": 0.9, "scale": "linear"}}}}
    >>> fixed = {"search": {"space": {"momentum": {"choices": [0.9]}}}}
    >>> told(differences(wide, fixed), wide, fixed)
    'search.space.momentum: {low: 0.0, high: 0.9, scale: linear} -> [0.9]'
    """
    before, after = (question.get("search", {}).get("space", {}) for question in (on_file, wanted))
    changed: dict[str, tuple[Any, Any]] = {}
    for key, pair in differing.items():
        name = key.removeprefix("search.space.").partition(".")[0] if key.startswith("search.space.") else ""
        old, new = before.get(name), after.get(name)
        if not name or (old and new and old.keys() == new.keys()):
            changed[key] = pair
        elif (old and new) or "schedule" not in differing:
            changed[f"search.space.{name}"] = _dimension(old), _dimension(new)
    return ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())


def _dimension(plain: Mapping[str, Any] | None) -> str:
    """A dimension of a search space as it is typed; `none` if there is none."""
    if plain is None:
        return "none"
    if plain.get("choices") is not None:
        return f"{list(plain['choices'])}"
    return "{" + ", ".join(f"{key}: {plain[key]}" for key in ("low", "high", "scale")) + "}"


def cure_of(results: Path, differing: Mapping[str, Any], on_file: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What to do about a question on file that differs in these keys from the wanted one: the cheapest first."""
    # Some recorded arithmetics were removed, and imported studies have none.
    if "arithmetic" in differing and on_file.get("arithmetic") in ARITHMETICS:
        return f"repeat the engine= and engine.device= of the first run, which decide the arithmetic, or {ELSEWHERE}"
    if "search.sampler" in differing and differing.keys() <= {f"search.{name}" for name in ("sampler", *ROUNDS)}:
        return f"search={on_file['search']['sampler']} continues it; or {ELSEWHERE}"
    keys = differing.keys() - DERIVED
    if keys == {"stopping"}:
        return f"stopping={on_file['stopping']} continues it; or {ELSEWHERE}"
    if keys <= {"goal.metric", "goal.threshold", "stopping"}:
        return _of_goal(results, on_file, Goal(**wanted["goal"]))
    if keys <= {"seeds.search", "seeds.trial", "seeds.data_order"}:
        return f"search.repeats=1 repeats the search there with other seeds; or {ELSEWHERE}"
    multiple = _multiple(on_file["budget"], wanted["budget"]) if keys <= {f"budget.{name}" for name in BUDGET} else None
    if multiple is not None:
        return (
            f"search.budgets=[1,{multiple:g}] searches there under {multiple:g} times the budget, too; or {ELSEWHERE}"
        )
    return ELSEWHERE


def _multiple(old: Mapping[str, Any], new: Mapping[str, Any]) -> float | None:
    """The multiple of the old step budget that the new one is at every batch size; None if there is none. A limit of
    steps that stays the same counts as one that no trial meets."""
    pairs = {name: (old.get(name) or 0, new.get(name) or 0) for name in BUDGET}
    if len({*pairs["max_steps"]}) == 1:
        del pairs["max_steps"]
    ratios = {after / before if before else math.inf for before, after in pairs.values() if before or after}
    ratio = ratios.pop()
    return ratio if not ratios and 0 < ratio < math.inf else None


def _of_goal(results: Path, on_file: Mapping[str, Any], goal: Goal) -> str:
    """What to do about a wanted goal that is not the one on file."""
    own, evaluation = Goal(**on_file["goal"]), on_file["evaluation"]
    if not evaluation.get("exact", True):
        return f"its evaluations ended when they missed {own}, so they answer no other goal; {ELSEWHERE}"
    if not can_answer(goal, own, on_file["stopping"]):
        return (
            f"its trials stopped at {own}, so they answer only looser goals of that metric; {ELSEWHERE}, where "
            "stopping=budget answers any goal"
        )
    command = shlex.join(["python", "-m", "study", "report", str(results), "--goal", str(goal)])
    return f"its curves answer this one without training: {command}; or {ELSEWHERE}"


def extended(search: Search, on_file: Mapping[str, Any]) -> Search:
    """The search with the larger of the two values of each key in EXTENDABLE, and all budgets of both."""
    trials = max(search.trials, on_file["trials"])
    launches = None
    if search.max_launches is not None or on_file["max_launches"] is not None:
        launches = max(search.launch_limit, launch_limit(on_file["trials"], on_file["max_launches"]), trials)
    counts = {name: max(getattr(search, name), on_file.get(name, 0)) for name in COUNTS}
    budgets = tuple(sorted({*search.budgets, *on_file["budgets"]}))
    return replace(search, trials=trials, max_launches=launches, budgets=budgets, **counts)
