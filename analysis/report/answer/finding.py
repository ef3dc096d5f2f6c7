"""The finding of one workload and goal in a line: how far each optimizer scales, or which needs fewer steps."""

import re
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.estimates import tuned, verdicts
from analysis.estimates.pairs import ALL
from analysis.labels import BOUNDS_IN_WORDS, OPTIMIZERS, listed, optimizer_text, size_text
from analysis.report.answer.values import ShownLimit, curves, limit
from analysis.rises.shown import rise
from analysis.tables.scaling import CRITICAL, USEFUL

UNIT = "batch size "
MISSED = "did not reach the goal"
SEVERAL = 3
"""The number of optimizers from which a title names only the two that differ most."""


class Finding(NamedTuple):
    """A title, and a sentence that adds to it (empty for one optimizer); both without workload and goal."""

    title: str
    lead: str


def finding(steps: pd.DataFrame, limits: pd.DataFrame, pairs: pd.DataFrame) -> Finding:
    """The finding of one workload and goal. It claims no difference that the intervals do not show.

    Arguments:
        steps, limits, pairs: the rows of one workload and goal, from `analysis.estimates.tuned.table`,
            `analysis.estimates.limits.table` and `analysis.estimates.pairs.table`.

    >>> tables = [pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "scaling", "compare")]
    >>> found = finding(*tables)
    >>> found.title, found.lead.partition(" (")[0]
    ('Momentum scales to batch size 62 (46 to 84), SGD to 37 (31 to 43)', 'Momentum needs 1.25 times')
    """
    known, others, missed = [], [], []
    for optimizer, curve in curves(steps):
        critical = limit(limits, optimizer, CRITICAL)
        if curve["point"].count() > 1 and not pd.isna(critical.size):
            known.append(critical)
        else:
            others.append(_unlimited(optimizer, curve, limits))
            missed += [optimizer_text(optimizer)] if others[-1].endswith(MISSED) else []
    if not known and len(missed) == len(others) > 1:
        who = f"Neither {listed(missed, 'nor')}" if len(missed) == 2 else f"None of {listed(missed)}"
        return Finding(f"{who} reached the goal", "")
    known.sort(key=lambda each: -each.size)
    scales, compared = _scales(known), _compared(pairs, limits)
    if scales or len(known) < 2:
        return Finding("; ".join(filter(None, [scales, *others])), compared)
    faster, tie = _faster(pairs), _tie(known)
    return Finding("; ".join([faster or tie, *others]), f"{tie}." if faster else compared)


def _compared(pairs: pd.DataFrame, limits: pd.DataFrame) -> str:
    """What is shown about the pair that differs most over a range of batch sizes; else about the first."""
    ranged = pairs[pairs["kind"].isin(verdicts.RANGES) & pairs["shown"].astype(bool)]
    if len(ranged):
        most = ranged.loc[ranged["ratio"].map(lambda ratio: abs(np.log(ratio)) if ratio > 0 else np.inf).idxmax()]
        pairs = pairs[(pairs["a"] == most["a"]) & (pairs["b"] == most["b"])]
    said = without_subject(next(iter(verdicts.sentences(pairs, limits, cure=False)), ""))
    return named(said, {*pairs["a"], *pairs["b"]})


def named(text: str, optimizers: Iterable[str]) -> str:
    """A text that compares these optimizers, with their names in the literature.

    >>> named("adam and torch.optim.sgd need fewer steps than sgd.", ["adam", "sgd"])
    'Adam and torch.optim.sgd need fewer steps than SGD.'
    """
    for name in optimizers:
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", optimizer_text(name), text)
    return text


def without_subject(sentence: str) -> str:
    """A sentence without the workload, optimizer and goal before its first colon.

    >>> without_subject("digits to error < 0.1: sgd needs more steps."), without_subject("")
    ('SGD needs more steps.', '')
    """
    return begun(sentence.partition(": ")[2])


def begun(text: str) -> str:
    """A text that begins a sentence: with a capital, or with the name of an optimizer as it is written.

    >>> begun("steps fall"), begun("sgd is slow"), begun("lions.Lion is fast")
    ('Steps fall', 'SGD is slow', 'lions.Lion is fast')
    """
    first, space, rest = text.partition(" ")
    name = first.rstrip(",;:.")
    is_code = re.search(r"\w[._+=]\w", name) is not None  # an import path, a curve, a file or a key has its own letters
    word = optimizer_text(name) if name in OPTIMIZERS else name if is_code else name[:1].upper() + name[1:]
    return word + first[len(name) :] + space + rest


def further(one: ShownLimit, other: ShownLimit) -> bool:
    """Whether the data show that one curve scales further than the other: the interval of the ratio lies above 1.

    >>> one, other = ShownLimit("a", 62, 46, 84, "="), ShownLimit("b", 37, 31, 43, "=")
    >>> further(one, other), further(one, one)
    (True, False)
    """
    if not (one.certain and other.certain):
        return False
    down = np.hypot(np.log(one.size / one.low), np.log(other.high / other.size))
    return bool(np.log(one.size / other.size) > down)


def _scales(known: Sequence[ShownLimit]) -> str:
    """How far curves scale; empty if no two of several are shown to differ."""
    if len(known) == 1:
        return _scales_to(known[0])
    pair = next((pair for pair in _widest_first(known) if further(*pair)), None)
    if pair is None:
        return ""
    ahead, behind = pair
    if len(known) < SEVERAL:
        return f"{_scales_to(ahead)}, {behind.name} to {_to(behind)}"
    return f"{ahead.name} scales further than {behind.name}: to {_to(ahead, UNIT)} against {_to(behind)}"


def _widest_first(known: Sequence[ShownLimit]) -> list[tuple[ShownLimit, ShownLimit]]:
    return sorted(combinations(known, 2), key=lambda pair: -pair[0].size / pair[1].size)


def _scales_to(critical: ShownLimit) -> str:
    return f"{critical.name} scales to {_to(critical, UNIT)}"


def _to(critical: ShownLimit, unit: str = "") -> str:
    return BOUNDS_IN_WORDS[critical.bound] + unit + str(critical.value._replace(text=size_text(critical.size)))


def _tie(known: Sequence[ShownLimit]) -> str:
    """Curves that are not shown to differ. Where a limit is a bound or its interval is open, that alone is no tie."""
    if all(each.certain for each in known):
        return f"{listed(each.name for each in known)} tie: they scale to batch sizes {listed(map(_to, known))}"
    first, *others = known
    return ", ".join([_scales_to(first), *(f"{each.name} to {_to(each)}" for each in others)])


def _faster(pairs: pd.DataFrame) -> str:
    """The largest difference in steps over all batch sizes; empty if none is shown."""
    shown = pairs[(pairs["kind"] == ALL) & pairs["shown"].astype(bool)]
    rows = [row for row in shown.itertuples() if np.isfinite(row.ratio) and row.ratio > 0]
    if not rows:
        return ""
    faster, slower, ratio, low, high = verdicts.turned(max(rows, key=lambda row: abs(np.log(row.ratio))))
    one, other = map(optimizer_text, (faster, slower))
    return f"{one} needs {ratio:.3g} times ({verdicts.ends_text(low, high)}) fewer steps than {other}"


def _unlimited(optimizer: str, curve: pd.DataFrame, limits: pd.DataFrame) -> str:
    """A curve without a critical batch size: what its few points show, or that its steps rise."""
    name = optimizer_text(optimizer)
    points = tuned.points(curve)
    reached = [size for size, steps in points.items() if not np.isinf(steps)]
    if reached and np.isnan([points[size] for size in reached]).all():
        return f"{name} met the goal at its first evaluation"
    alone = " alone" if len(reached) < len(curve) else ""
    if all(map(tuned.nothing_feasible, curve.to_dict("records"))):
        return f"{name} had no feasible trial"
    if not reached:
        return f"{name} {MISSED}"
    if len(reached) == 1:
        return f"{name} reached the goal at batch size {reached[0]:,}{alone}"
    if rise(curve) is not None:
        return f"{name} needs more steps at larger batch sizes"
    useful = limit(limits, optimizer, USEFUL)
    if useful.bound == ">" and useful.size == reached[-1]:
        return f"{name} still saves steps at batch size {reached[-1]:,}"
    return f"{name} reached the goal at batch sizes {listed(reached)}{alone}"
