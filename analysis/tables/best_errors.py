"""The best error within a budget, independent of the goal. Needs full budgets (`stopping=budget`)."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, EARLY
from analysis.load import ANSWER, StudyData
from analysis.tables.steps_to_result import counted_trials
from analysis.units import TOKENS

MEASURED = ["workload", "optimizer", "goal_metric"]
BUDGETS = 4
"""The number of budgets in each unit of `by_budget`; each is a third of the one before."""


def best_errors(studies: Iterable[StudyData]) -> pd.DataFrame:
    """The least error of the goal's metric that any counted feasible trial measured up to each step.

    Returns:
        A row for each (workload, optimizer, batch_size, goal_metric, step) at which the error fell, and one at the last
        step: error (NaN if no trial was feasible), and train_examples (the size of the training set; NaN if
        unknown), and tokens_per_example for workloads with tokens. Studies that stopped early are left out.

    >>> best_errors([study])[["step", "error"]].head(3)
       step     error
    0     8  0.555124
    1     9  0.373300
    2    10  0.358743
    """
    frames = [study.once("best errors", partial(_best_errors, study)) for study in studies if not study.stops_early]
    tokens = [TOKENS] if any(TOKENS in frame for frame in frames) else []
    columns = [*MEASURED, "batch_size", "train_examples", *tokens, "step", "error"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def _best_errors(study: StudyData) -> pd.DataFrame:
    metric = study.goal.metric
    counted = counted_trials(study)
    rows = study.reader.read([metric]).dropna(subset=metric)
    rows = rows[rows["trial"].isin(counted.index[counted["status"] == COMPLETE])]
    least = rows.groupby("step")[metric].min()
    if least.empty:  # keep a batch size at which all trials diverged
        least = pd.Series([np.nan], index=[study.train_steps])
    error = np.minimum.accumulate(least.to_numpy())
    fell = np.diff(error, prepend=np.inf) < 0
    fell[-1] = True
    columns = {
        **study.names,
        "goal_metric": metric,
        "train_examples": study.question["workload"].get("train_examples") or np.nan,
        **({} if study.tokens_per_example is None else {TOKENS: study.tokens_per_example}),
        "step": least.index.to_numpy()[fell],
        "error": error[fell],
    }
    return pd.DataFrame(columns)


def by_budget(errors: pd.DataFrame) -> pd.DataFrame:
    """The best error that each batch size reaches within the same steps, and within the same examples.

    Budgets are the largest one that every batch size was trained for, and its third, ninth and 27th part.

    Arguments:
        errors: from `best_errors`.

    Returns:
        A row for each (workload, optimizer, goal_metric, unit: `steps` or `examples`, budget, batch_size): error (NaN
        if nothing was measured within the budget), train_examples.

    >>> errors = pd.read_csv(f"{published}/tables/best_errors.csv")
    >>> found = by_budget(errors)
    >>> same = (found["optimizer"] == "sgd") & (found["unit"] == "steps") & (found["budget"] == 67)
    >>> found[same].tail(3)[["unit", "budget", "batch_size", "error"]]
          unit  budget  batch_size     error
    107  steps      67         256  0.092148
    108  steps      67         512  0.092941
    109  steps      67        1024  0.093031
    """
    rows = []
    for key, curve in errors.groupby(MEASURED, sort=False):
        studies = dict(iter(curve.groupby("batch_size")[["step", "error", "train_examples"]]))
        arrays = {size: study.to_numpy(dtype=float).T for size, study in studies.items()}
        for unit in ("steps", "examples"):
            each = {size: size if unit == "examples" else 1 for size in arrays}
            ends = [steps[-1] * each[size] for size, (steps, error, _) in arrays.items() if np.isfinite(error[-1])]
            largest = min(ends, default=0)
            for budget in [round(largest / 3**k) for k in range(BUDGETS)]:
                for size, (steps, error, train_examples) in arrays.items():
                    within = np.searchsorted(steps * each[size], budget, side="right")
                    found = error[within - 1] if within else np.nan
                    rows.append((*key, unit, budget, size, train_examples[0], found))
    found = pd.DataFrame(rows, columns=[*MEASURED, "unit", "budget", "batch_size", "train_examples", "error"])
    if TOKENS not in errors:
        return found
    return found.merge(errors[[*MEASURED, TOKENS]].drop_duplicates(MEASURED), on=MEASURED, how="left")


def by_label_smoothing(trials: pd.DataFrame) -> pd.DataFrame:
    """The best error within the step budget for each label smoothing that was tried, with everything else tuned.

    Arguments:
        trials: from `analysis.tables.trials.trials`; only studies that ran their whole budgets count.

    Returns:
        A row for each (workload, optimizer, batch_size, goal, label_smoothing): error, trials (their number).

    >>> trials = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "batch_size": 64,
    ...     "goal_metric": "val/classification_error", "goal_threshold": 0.05, "stopping": "budget",
    ...     "status": "COMPLETE", "label_smoothing": [0.0, 0.0, 0.1], "least_error": [0.07, 0.06, 0.05]})
    >>> by_label_smoothing(trials)[["label_smoothing", "error", "trials"]]
       label_smoothing  error  trials
    0              0.0   0.06       2
    1              0.1   0.05       1
    """
    keys = [*ANSWER, "label_smoothing"]
    if "label_smoothing" not in trials:
        return pd.DataFrame(columns=[*keys, "error", "trials"])
    full = ~trials["stopping"].isin(EARLY) & (trials["status"] == COMPLETE)
    rows = trials[full & trials["label_smoothing"].notna()]
    return rows.groupby(keys, as_index=False).agg(error=("least_error", "min"), trials=("least_error", "size"))
