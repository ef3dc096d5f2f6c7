"""The best learning rates of one step along tuned runs as tables, and what they say of the critical batch size."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.counting import Branch
from analysis.labels import number
from analysis.load import ANSWER, GOAL, STUDY, StudyData
from analysis.measurements import measured_points
from analysis.noise_scale.table import changed, in_words, measured_limits, place
from analysis.one_step.estimate import LOG, SPACES, OneStep, best_learning_rates, fit_batches, interval

POINT = [*ANSWER, "trial", "step", "examples_seen", "form"]
RATES = [*POINT, "step_batch_size", "effective_batch_size", "learning_rate", "low", "high", "loss_before", "loss_after"]
FITS = [*POINT, *OneStep._fields, "left_out", "error", "recorded_error"]
ROUNDING = 1e-6
"""A mean loss that falls by a smaller share does not fall."""
FORMS = {"plain": "gradient descent", "preconditioned": "preconditioned"}


def tables(studies: Iterable[StudyData]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The fits eps(B) = eps_max / (1 + B_n / B), and the best learning rates that they are fitted to.

    Batches are drawn without replacement from N training examples: one of B examples is as noisy as one of
    B / (1 - B / N) that are drawn independently. Fits take this effective batch size.

    Returns:
        A row for each (workload, optimizer, batch_size, step, form, space: `log` and `linear`) with the columns FITS:
        those of `analysis.one_step.estimate.OneStep`, and left_out, the number of batch sizes whose best learning rate
        lies outside the tried ones. A row for each (..., step, form, step_batch_size) with the columns RATES.

    Raises:
        LoadError: a file is torn.

    >>> [len(table) for table in tables([study])]  # the published runs were not measured
    [0, 0]
    """
    fits, rates = [], []
    for study in studies:
        points = measured_points(study.folder / "one_step", "study noise --one-step")
        for point in points if study.branch == Branch() else ():
            for form in dict.fromkeys(each["form"] for each in point["rates"]):
                own_fits, own_rates = _of_form(study, point, form)
                fits += own_fits
                rates += own_rates
    sort: Any = {"by": [*STUDY, "step"], "kind": "stable", "ignore_index": True}
    return pd.DataFrame(fits, columns=FITS).sort_values(**sort), pd.DataFrame(rates, columns=RATES).sort_values(**sort)


def _of_form(study: StudyData, point: Mapping[str, Any], form: str) -> tuple[list[dict], list[dict]]:
    """(rows of fits, rows of rates) of one form at one point."""
    about = {
        **study.names,
        **study.goal.names,
        "trial": point["question"]["trial"]["index"],
        **{key: point[key] for key in ("step", "examples_seen")},
        "form": form,
    }
    known: dict[float, np.ndarray] = {}
    rates = []
    for each in (each for each in point["rates"] if each["form"] == form):
        losses = np.array(each["losses"], dtype=float)
        least = np.nanmin([*losses.mean(0), np.inf])
        found = best_learning_rates(each["learning_rates"], losses)
        if not least < point["before"] - ROUNDING * abs(point["before"]):
            found = np.full(len(found), np.nan)
        size = each["batch_size"]
        effective = size / (1 - size / point["question"]["workload"]["train_examples"])
        known[effective] = found
        ends = dict(zip(("low", "high"), interval(found), strict=True))
        loss = {"loss_before": point["before"], "loss_after": least}
        sizes = {"step_batch_size": size, "effective_batch_size": effective, "learning_rate": found[0]}
        rates.append(about | sizes | ends | loss)
    beside = {key: point[key] for key in ("error", "recorded_error")}
    fitted = [made for space in SPACES if (made := fit_batches(known, space)) is not None]
    fits = [about | made._asdict() | {"left_out": len(known) - made.points} | beside for made in fitted]
    return fits, rates


def overview(fits: pd.DataFrame) -> pd.DataFrame:
    """The fits as text: a row for each run, point and form, with B_n in both spaces.

    >>> at = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "step": 9, "form": "plain"}
    >>> row = at | {"eps_max": 0.5, "noise_scale": 40.0, "low": 30.0, "high": 60.0, "points": 4, "left_out": 1}
    >>> overview(pd.DataFrame([row | {"space": space} for space in SPACES])).iloc[0, 4:].tolist()
    ['gradient descent', '0.500', '40 (30 to 60)', '40 (30 to 60)', '4 of 5']
    """
    lines = []
    for _, part in fits.groupby([*STUDY, "step", "form"], sort=False):
        by_space = {row["space"]: row for row in part.to_dict("records")}
        row = by_space[LOG]
        lines.append(
            {
                "workload": row["workload"],
                "optimizer": row["optimizer"],
                "batch size": f"{row['batch_size']:,}",
                "step": f"{row['step']:,}",
                "step of": FORMS[row["form"]],
                "eps_max": number(row["eps_max"]),
                **{f"B_n, {space} space": in_words(each) for space, each in by_space.items()},
                "batch sizes": f"{row['points']} of {row['points'] + row['left_out']}",
            }
        )
    return pd.DataFrame(lines)


def sentences(fits: pd.DataFrame, scaling: pd.DataFrame) -> list[str]:
    """A sentence for each run: B_n up to the goal, beside the limits that S(B) shows.

    Arguments:
        fits: from `tables`.
        scaling: the limits of scaling (`analysis.report.derived.tables`).

    >>> sentences(tables([study])[0], pd.read_csv(f"{published}/tables/scaling.csv"))
    []
    """
    said = []
    plain = fits[(fits["form"] == "plain") & (fits["space"] == LOG)]
    for (*curve, size), rows in plain.groupby([*STUDY[:2], *GOAL, "batch_size"], sort=False):
        first, last = rows.iloc[0], rows.iloc[-1]
        began = f"{in_words(first)} at step {first['step']:,} and " if first["step"] < last["step"] else ""
        said.append(
            f"{curve[0]} with {curve[1]} at batch size {size:,}: the best learning rate of one step of gradient "
            f"descent is half of its maximum at a B_n of {began}{in_words(last)} at step {last['step']:,}, "
            f"{place(last)} (fitted in log space); {measured_limits(curve, scaling)}."
        )
    return said


def warnings(fits: pd.DataFrame, rates: pd.DataFrame) -> list[str]:
    """What a reader should know of the fits of each run.

    >>> warnings(*tables([study]))
    []
    """
    said = changed(fits)
    missing = rates[rates["learning_rate"].isna()]
    for key, part in missing.groupby(STUDY, sort=False):
        name = f"{key[0]} with {key[1]} at batch size {key[2]:,}"
        said.append(
            f"{name}: at {len(part)} of its points and batch sizes the best learning rate of one step lies outside the "
            "tried ones, or no step lowers the loss; the fits leave them out."
        )
    wide = fits[(fits["space"] == LOG) & (fits["high"] > 100 * fits["low"])]
    for key, part in wide.groupby(STUDY, sort=False):
        name = f"{key[0]} with {key[1]} at batch size {key[2]:,}"
        steps = ", ".join(f"{step:,}" for step in dict.fromkeys(part["step"]))
        said.append(
            f"{name}: at step {steps} the interval of B_n spans more than a factor of 100: the best learning rates do "
            "not bend, or are too noisy. Give other --step-batch-sizes."
        )
    return said
