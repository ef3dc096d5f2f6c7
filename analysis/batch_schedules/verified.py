"""A batch-size schedule against constant batch sizes, with fresh seeds that all arms share (`study verify`).

Shapes: S seeds of one arm.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, INCOMPLETE
from analysis.estimates.tuned import half_width
from analysis.intervals import left_censored, moved_by_grid, with_before
from analysis.labels import counted, listed, number, with_interval
from analysis.load import ANSWER, GOAL, STUDY, StudyData, folders, load_study
from analysis.question.branches import VERIFIED, VERIFIED_RESULTS
from analysis.question.searches import results_in
from analysis.tables.steps_to_result import measured, outcomes

ONE_SEED = "one seed has no interval"
PAIRED = ["steps_ratio", "steps_ratio_low", "steps_ratio_high", "error_difference", "difference_low", "difference_high"]
COLUMNS = [
    *STUDY,
    *GOAL,
    *("arm", "arm_batch_size", "hyperparameters", "seeds", "missed", "diverged", "train_steps", "budget_examples"),
    *("steps_to_goal", "examples_to_goal", "error", "error_low", "error_high"),
    *PAIRED,
]
SHOWN = {
    "arm": "arm",
    "hyperparameters": "set by",
    "train_steps": "steps in the budget",
    "steps": "steps to goal",
    "examples": "examples to goal",
    "end": "error at the end (95 %)",
}


def table(results: Iterable[Path | str]) -> pd.DataFrame:
    """Every arm of every schedule that was verified in these results folders.

    Returns:
        A row for each arm, with COLUMNS. (workload, optimizer, batch_size) name the schedule's curve; `arm_batch_size`
        is the first batch size of the arm, `hyperparameters` where its own come from: `tuned` (its own search) or the
        rule that moved those of the schedule. `seeds` are those that ended in all arms. `steps_to_goal` and
        `examples_to_goal` are geometric means over them (infinite if one missed it), `error` the mean of the goal's
        metric at the end of the budget of examples, which is the same in all arms, with its 95 % interval. Relative to
        the first arm, the smallest batch size throughout, over paired seeds: the ratio of its steps to the goal to this
        arm's, and the error of this arm minus its own.

    Raises:
        LoadError: a file is torn.

    >>> table([published]).empty
    True
    """
    rows = []
    for result in results:
        found = results_in(Path(result), VERIFIED_RESULTS)
        for folder in sorted(found, key=lambda each: (*each.parts[-3:-1], int(each.name))):
            *_, workload, optimizer, size = folder.parts
            rows += _arms([workload, optimizer, int(size)], [load_study(each) for each in folders(folder)])
    return pd.DataFrame(rows, columns=COLUMNS)


def _arms(key: Sequence[Any], studies: Sequence[StudyData]) -> list[dict[str, Any]]:
    """The rows of one verified schedule: the smaller constant batch size first, the schedule last."""
    arms = sorted(studies, key=lambda study: (bool(study.batch_schedule), study.batch_size))
    if not all(study.begun for study in arms) or len(arms) < 2:
        return []
    read = [_of_seeds(study) for study in arms]
    shared = sorted(set.intersection(*(set(each.index) for each in read)))
    if not shared:
        return []
    first, rows = read[0].loc[shared], []
    for study, each in zip(arms, read, strict=True):
        own = each.loc[shared]
        with np.errstate(invalid="ignore"):  # both arms missed the goal
            grid = (moved_by_grid(*with_before(arm)) for arm in (own, first))
            by_grid = sum(grid) if each is not read[0] else 0.0  # an arm is as fast as itself
            ratio = _paired(np.log(known_steps(first)) - np.log(known_steps(own)), by_grid)
        difference = _paired((own["error"] - first["error"]).to_numpy())
        mean, low, high = interval(own["error"].to_numpy())
        label = study.batch_schedule.label if study.batch_schedule else f"constant {study.batch_size:,}"
        phases = study.phases(shared[0])
        rows.append(
            {
                **dict(zip(STUDY, key, strict=True)),
                **study.goal.names,
                "arm": label,
                "arm_batch_size": study.batch_size,
                "hyperparameters": str(study.branch.rule).removeprefix(VERIFIED),
                "seeds": len(shared),
                "missed": int(np.isinf(own["steps"]).sum()),
                "diverged": int(own["diverged"].sum()),
                "train_steps": phases.steps,
                "budget_examples": phases.examples(phases.steps),
                "steps_to_goal": float(np.exp(np.log(own["steps"]).mean())),
                "examples_to_goal": float(np.exp(np.log(own["examples"]).mean())),
                **{"error": mean, "error_low": low, "error_high": high},
                **dict(zip(PAIRED, (*np.exp(ratio), *difference), strict=True)),
            }
        )
    return rows


def _of_seeds(study: StudyData) -> pd.DataFrame:
    """Of each seed that ended: steps and examples to the goal (infinite if missed), the last measured step before, the
    error at the end (NaN if it diverged), and whether it diverged."""
    ended, rows = outcomes(study), {}
    for index, trial in measured(study, study.goal).items():
        row = ended.loc[index]
        if row["status"] == INCOMPLETE:
            continue
        finite, met = row["status"] == COMPLETE, pd.notna(row["steps_to_goal"])
        steps = int(row["steps_to_goal"]) if finite and met else None
        rows[index] = {
            "steps": np.inf if steps is None else float(steps),
            "examples": np.inf if steps is None else float(study.phases(index).examples(steps)),
            "step_before": np.nan if steps is None else float(row["step_before"]),
            "error": float(np.asarray(trial.errors)[-1]) if finite else np.nan,
            "diverged": not finite,
        }
    columns = ["steps", "examples", "step_before", "error", "diverged"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def known_steps(arm: pd.DataFrame) -> np.ndarray:
    """The steps of each seed [S]; NaN where they are left-censored.

    Arguments:
        arm: the columns steps and step_before.

    >>> known_steps(pd.DataFrame({"steps": [20.0, 22.0], "step_before": [0.0, 20.0]})).tolist()
    [nan, 22.0]
    """
    steps, before = with_before(arm)
    return np.where(left_censored(steps, before=before), np.nan, steps)


def _paired(differences: np.ndarray, by_grid: float = 0.0) -> tuple[float, float, float]:
    """`interval` of paired differences, wider by what the evaluation grid moves them; unknown if one is."""
    if not np.isfinite(differences).all():
        return np.nan, np.nan, np.nan
    mean, low, high = interval(differences)
    return mean, mean - float(np.hypot(mean - low, by_grid)), mean + float(np.hypot(high - mean, by_grid))


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The mean of some seeds and its 95 % interval, mean +- t(S - 1) s / sqrt(S). Unknown (NaN) ends with one seed.

    Arguments:
        values: [S].

    >>> [round(end, 3) for end in interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.484, 4.484]
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return mean, np.nan, np.nan
    half = float(half_width(np.std(values, ddof=1) / np.sqrt(count), count - 1))
    return mean, mean - half, mean + half


def overview(rows: pd.DataFrame) -> pd.DataFrame:
    """The arms of one schedule as text.

    >>> arm = {"arm": "ramp", "hyperparameters": "tuned", "train_steps": 300, "steps_to_goal": 90.2, "error": 0.1213}
    >>> ends = {"examples_to_goal": 1440.0, "error_low": 0.1199, "error_high": 0.1227}
    >>> overview(pd.DataFrame([{**arm, **ends}]))["error at the end (95 %)"].item()
    '0.1213 (0.1199 to 0.1227)'
    """
    shown = rows.assign(
        train_steps=[f"{steps:,}" for steps in rows["train_steps"]],
        steps=[_met(steps) for steps in rows["steps_to_goal"]],
        examples=[_met(examples) for examples in rows["examples_to_goal"]],
        end=[_end(row.error, row.error_low, row.error_high) for row in rows.itertuples()],
    )
    return shown[[*SHOWN]].rename(columns=SHOWN)


def _end(error: float, low: float, high: float) -> str:
    """An error with its interval, where it has one."""
    if np.isnan(error):
        return "diverged"
    return with_interval(error, low, high, "{:.4g}".format)


def _met(value: float) -> str:
    return number(value) if np.isfinite(value) else "missed"


def sentences(rows: pd.DataFrame) -> list[str]:
    """What each schedule saves against the smallest batch size, and what it costs.

    Arguments:
        rows: of `table`.

    >>> sentences(table([published]))
    []
    """
    said = []
    for key, part in rows.groupby(ANSWER, sort=False):
        first, *others = part.to_dict("records")
        for arm in others:
            subject = f"{key[0]} with {key[1]}: {arm['arm']} against {first['arm']}, {arm['seeds']} fresh seeds"
            steps = f"{number(first['train_steps'])} -> {number(arm['train_steps'])} steps for the same examples"
            said.append(f"{subject}: {steps}; {_goal(arm, first)}; {_difference(arm, key[3])}.")
    return said


def _goal(arm: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    if not np.isfinite(arm["steps_ratio"]):
        missed = [f"{counted(each['missed'], 'seed')} of {each['arm']}" for each in (first, arm) if each["missed"]]
        return f"the goal was missed by {listed(missed)}, so steps to it are not compared"
    ratio, low, high = (arm[name] for name in ("steps_ratio", "steps_ratio_low", "steps_ratio_high"))
    side, ratio, low, high = ("more", 1 / ratio, 1 / high, 1 / low) if ratio < 1 else ("fewer", ratio, low, high)
    return f"{ratio:.2f} times {side} steps to the goal ({ONE_SEED if np.isnan(low) else f'{low:.2f} to {high:.2f}'})"


def _difference(arm: Mapping[str, Any], metric: str) -> str:
    if not np.isfinite(arm["error_difference"]):
        return f"{metric} at the end is not known for each seed"
    low, high = arm["difference_low"], arm["difference_high"]
    if np.isnan(low):
        return f"{metric} at the end not told apart: {arm['error_difference']:+.3g} ({ONE_SEED})"
    verdict = "not told apart" if low <= 0 <= high else "higher" if low > 0 else "lower"
    return f"{metric} at the end {verdict}: {arm['error_difference']:+.3g} ({low:+.3g} to {high:+.3g})"
