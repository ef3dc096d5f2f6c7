"""The findings on each curve as sentences, the critical batch size first: it is the best known of the limits."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import RECORDED
from analysis.estimates import split, tuned
from analysis.estimates.limits import IN_TOKENS
from analysis.labels import (
    BOUNDS_IN_WORDS,
    batch_sizes,
    curve_text,
    interval_text,
    listed,
    number,
    short_count,
    size_text,
)
from analysis.load import CURVE, rows_with
from analysis.question.stages import FRESH_SEEDS
from analysis.rises.shown import rise
from analysis.tables import fits
from analysis.tables.scaling import CRITICAL, PERFECT, PERFECT_SCALING_TOLERANCE, ROOT, SHOULDER, USEFUL, ZHANG
from analysis.units import TOKENS

NO_DIFFERENCE = 2
"""Fits whose AICc differs by less are equally good (Burnham and Anderson 2002, section 2.6)."""
FROM_SCATTER = "Intervals come from the scatter about the curve."
NAMES = {CRITICAL: "McCandlish et al. (2018)", SHOULDER: "the sharp shoulder", ZHANG: "Zhang et al. (2024)"}


def sentences(steps: pd.DataFrame, limits: pd.DataFrame, base: float = 0.0) -> list[str]:
    """Two lines for each curve: its limits, and how they were measured.

    Arguments:
        steps, limits: from `analysis.estimates.tuned.table` and `analysis.estimates.limits.table`.
        base: of the perfect-scaling limit; 0: the smallest batch size.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> limits = pd.read_csv(f"{published}/tables/scaling.csv")
    >>> for part in sentences(steps, limits)[0].split(". "):
    ...     part = part.replace(": critical", ":\\ncritical").replace(" by Mc", "\\nby Mc")
    ...     print(part.replace(") up", ")\\nup").replace("; the", ";\\nthe"))
    mlp_digits with momentum to validation cross entropy < 0.2:
    critical batch size 62 (95%: 46 to 84)
    by McCandlish et al
    (2018), 59 by the sharp shoulder, 14 (95%: 10 to 18) by Zhang et al
    (2024)
    The hyperbola fits better (AICc lower by 3.75)
    Steps fall in proportion to batch size (perfect scaling, within 20%)
    up to about 9 (95%: 3 to 46)
    Steps still fall at the largest batch size, 1,024;
    the maximum useful batch size is above 241 (95%).
    """
    found = []
    for key, curve in steps.groupby(CURVE, sort=True):
        curve = curve.sort_values("batch_size")
        reached = tuned.with_points(curve)
        subject = curve_text(*key)
        if len(reached) < 2:
            found.append(f"{subject}: {_only(curve, reached)}.")
            continue
        mine = rows_with(limits, CURVE, key).set_index("definition")
        found += [f"{subject}: {_limits(mine, curve, reached, base)}", f"{subject}: {_measured(curve, reached)}"]
    return found


def _only(curve: pd.DataFrame, reached: pd.DataFrame) -> str:
    censored = tuned.left_censored_sizes(curve)
    if reached.empty and censored:
        return "the goal was met at the first evaluation, perhaps earlier, so the steps are only upper bounds"
    if reached.empty:
        return "no batch size reached the goal"
    [(size, steps)] = tuned.points(reached).items()
    if censored:
        first = f"at {listed(censored)} at the first evaluation, perhaps earlier"
        return f"reached at batch size {size:,} in {number(steps)} steps, and {first}"
    return f"reached at batch size {size:,} alone, in {number(steps)} steps"


def _limits(limits: pd.DataFrame, curve: pd.DataFrame, reached: pd.DataFrame, base: float) -> str:
    first, last = int(reached["batch_size"].iloc[0]), _last(curve, reached)
    if limits["estimate"].isna().all():
        if rise(curve) is not None:
            return "no limits of scaling are read, because steps rise with the batch size by more than noise explains."
        return "limits of scaling need three batch sizes with known steps."
    return " ".join(
        [_critical(limits, reached), _perfect(limits, reached["batch_size"], base, last), _useful(limits, first, last)]
    ).strip()


class _Last(NamedTuple):
    """The largest batch size of the points; `words` say what distinguishes it, empty if it is the largest of all."""

    size: int
    words: str


def _last(curve: pd.DataFrame, reached: pd.DataFrame) -> _Last:
    size = int(reached["batch_size"].iloc[-1])
    beyond = [steps for larger, steps in tuned.points(curve).items() if larger > size]
    known = " with known steps" if np.isnan(beyond).any() else " that reached the goal"
    return _Last(size, known if beyond else "")


def _critical(limits: pd.DataFrame, reached: pd.DataFrame) -> str:
    """The critical batch size by each definition that the data allow, and the better fit."""
    known = {name: limits.loc[name] for name in NAMES}
    found = [f"{_value(row)} by {NAMES[name]}" for name, row in known.items() if not pd.isna(row["estimate"])]
    text = f"critical batch size {', '.join(found)}."
    if found and TOKENS in reached and reached[TOKENS].notna().all():
        tokens = next(row[IN_TOKENS] for row in known.values() if not pd.isna(row["estimate"]))
        text = f"{text[:-1]}; the first is {short_count(tokens)} tokens."
    points = reached.assign(reached=True, steps_to_result=tuned.points(reached).values())
    fitted = fits.table(points)
    information = fitted["information"].dropna()
    if len(information) < 2:
        return text
    ahead = float(information.max() - information.min())
    if ahead < NO_DIFFERENCE:
        return f"{text} The hyperbola and the sharp shoulder fit equally well."
    better = fitted.loc[information.idxmin(), "fit"]
    return f"{text} The {'sharp shoulder' if better == 'shoulder' else better} fits better (AICc lower by {ahead:.3g})."


def _value(row: pd.Series) -> str:
    """A limit with its interval, or the bound that the data give."""
    return f"{BOUNDS_IN_WORDS[row['estimate_bound']]}{size_text(row['estimate'])}{_interval(row)}"


def _interval(row: pd.Series) -> str:
    """The interval in brackets; an open end has no number."""
    low, high = row["estimate_low"], row["estimate_high"]
    return "" if pd.isna(low) else f" (95%: {interval_text(low, high) or 'open on both sides'})"


def _perfect(limits: pd.DataFrame, sizes: pd.Series, base: float, last: _Last) -> str:
    """How far steps fall in proportion; a limit up to ROOT times the base shows that they do not do so there."""
    row = limits.loc[PERFECT]
    if pd.isna(row["estimate"]):  # no batch size from the base on reached the goal
        return ""
    here, interval = size_text(row["estimate"]), _interval(row)
    if row["estimate_bound"] == "<":
        return f"Steps do not fall in proportion to batch size anywhere from {here} on{interval}."
    first = int(sizes[sizes >= base].iloc[0])
    if row["estimate_bound"] == "=" and row["estimate"] <= ROOT * first:
        more = f"{PERFECT_SCALING_TOLERANCE - 1:.0%} more examples than {first:,}"
        return (
            f"At {first:,} steps no longer fall in proportion to batch size: batch sizes above {here} take over "
            f"{more}{interval}."
        )
    largest = f"the largest batch size{last.words}, {last.size:,}"
    upto = largest if row["estimate_bound"] == ">" else f"about {here}"
    return f"Steps fall in proportion to batch size (perfect scaling, within 20%) up to {upto}{interval}."


def _useful(limits: pd.DataFrame, first: int, last: _Last) -> str:
    row = limits.loc[USEFUL]
    if row["estimate_bound"] == ">":
        low = row["estimate_low"]
        it = "it" if last.words else "the maximum useful batch size"
        known = f"; {it} is above {size_text(low)} (95%)" if 0 < low < last.size else ""
        if last.words:  # what lies beyond is unknown, whether or not steps fall up to there
            return f"The maximum useful batch size is at least {last.size:,}, the largest{last.words}{known}."
        return f"Steps still fall at the largest batch size, {last.size:,}{known}."
    if row["estimate_bound"] == "<":
        return f"No batch size saves more than 5% of the steps of {first:,}{_interval(row)}."
    return f"Batch sizes above {size_text(row['estimate'])} save at most 5% more{_interval(row)}."


def _measured(curve: pd.DataFrame, reached: pd.DataFrame) -> str:
    """The fall of the steps, the points that the limits are read from, and how well they are known."""
    sizes = reached["batch_size"].tolist()
    steps = tuned.points(reached)
    by_seeds = reached["read_from"].iloc[0] == tuned.SEEDS
    times = steps[sizes[0]] / steps[sizes[-1]]
    fewer = f"{times:,.3g} times fewer" if times > 1 else f"{1 / times:,.3g} times as many"
    said = [
        f"{'steps of the tuned configuration' if by_seeds else 'the fewest steps of each search'} go from "
        f"{number(steps[sizes[0]])} at batch size {sizes[0]:,} to {number(steps[sizes[-1]])} at {sizes[-1]:,} "
        f"({fewer})."
    ]
    said += _with_seeds(curve, reached) if by_seeds else [_without_seeds(reached, curve["stopping"].eq(RECORDED).all())]
    if censored := tuned.left_censored_sizes(curve):
        said.append(f"Left out: at {batch_sizes(censored)} the goal was met at the first evaluation, perhaps earlier.")
    said += [
        f"Batch size {size:,} lies {ratio if ratio > 1 else 1 / ratio:.2g} times {'above' if ratio > 1 else 'below'} "
        "the curve, more than three standard errors."
        for size, ratio in tuned.far_off(curve).items()
    ]
    return " ".join(said)


def _without_seeds(reached: pd.DataFrame, imported: bool) -> str:
    if imported:  # nothing can be trained again
        alone = "Fewer than six batch sizes alone have no intervals." if len(reached) < tuned.ENOUGH else FROM_SCATTER
        return f"They include the luck of each search. {alone}"
    left = reached[reached["seeds"] == 0]["batch_size"]
    too = f" at {batch_sizes(left)}, too," if len(left) < len(reached) else ""
    lucky = f"They include the luck of each search; fresh seeds ({FRESH_SEEDS}){too} measure without it"
    if len(reached) < tuned.ENOUGH:
        return f"{lucky}, and bring the intervals that fewer than six batch sizes alone do not have."
    return f"{lucky}. {FROM_SCATTER}"


def _with_seeds(curve: pd.DataFrame, reached: pd.DataFrame) -> list[str]:
    count = sorted({int(seeds) for seeds in reached["seeds"]})
    luck = float(np.exp(np.log(reached["luck"].astype(float)).mean()))
    other = dict.fromkeys(reached["tuned_for"].dropna()) if "tuned_for" in reached else {}
    tuned_for = f" of the configurations tuned for {listed(other)}" if other else ""
    said = [
        f"They are medians of {listed(count, 'or')} fresh seeds{tuned_for}, {luck:.3g} times the fewest steps of the "
        "search on average."
    ]
    found = split.shares(curve)
    if np.isnan(found.seed_error):
        rest = "intervals come from the scatter about the curve" if len(reached) >= tuned.ENOUGH else "no intervals"
        said.append(f"One fresh seed shows no noise of seeds: {rest}.")
    elif np.isnan(found.shortfall):
        said.append("With fewer than six batch sizes, intervals hold the noise of seeds alone, not that of tuning.")
    else:
        bounded = f" (95%: at most {_percent(found.shortfall_high)})" if np.isfinite(found.shortfall_high) else ""
        said.append(
            f"Their standard error is {_percent(found.seed_error)} from the noise of seeds and "
            f"{_percent(found.shortfall)}{bounded} from the scatter of tuning; what tuning falls short by at all batch "
            "sizes alike is not in it."
        )
    missed = curve[curve["missed"] > 0]
    if len(missed):
        shares = listed([f"{row.missed} of {row.seeds} at {row.batch_size:,}" for row in missed.itertuples()])
        said.append(f"Goal missed with fresh seeds: {shares}.")
    return said


def _percent(log_error: float) -> str:
    return f"{np.expm1(log_error):.0%}"
