"""Claims about the curves of steps to result: (a) regimes, (b) goals, (d) models, (e) data sets."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from analysis.claims import spread
from analysis.claims.evidence import Curve, Evidence
from analysis.claims.numbers import SAME, critical_ratio, has_critical, log_error
from analysis.claims.statement import Statement, Tree, every, same, some
from analysis.estimates import limits
from analysis.labels import goal_text
from analysis.tables.scaling import CRITICAL, PERFECT, ROOT, USEFUL, USEFUL_GAIN

FLAT = round(1 / (USEFUL_GAIN - 1))
"""The multiple of the critical batch size from which on the hyperbola S_min (1 + B_c / B) is within 5 % of S_min."""
WIDTHS = {"narrow": 0.5, "base": 1.0, "wide": 2.0}
"""The named sizes of a model, in times of the usual width."""
OF_WIDTH = ("widths", "size", "width")
"""Members of a workload that say how wide its model is."""
SAME_SIZE = 1.25
"""Models whose numbers of parameters are within this factor are one model, whose last layer may have other classes."""


def regimes(evidence: Evidence) -> Tree:
    """(a) Steps fall in proportion to the batch size at first, then by less, then no more: of every model on every data
    set, with some optimizer and goal.

    Shown by three limits: the perfect-scaling limit lies above 1.44 times the smallest batch size that
    reached the goal, where a fall with the square root would put it; the maximum useful batch size
    is larger than it; and it lies below the largest batch size, or 20 times the critical batch size does: there the
    hyperbola is within 5 % of its least steps.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = regimes(evidence)
    >>> [verdict for _, _, verdict in tree.judged()]
    ['shown', 'shown', 'not shown', 'not shown', 'shown', 'shown', 'not shown', 'shown']
    """
    workloads = []
    for group in evidence.groups("dataset", "part", "model"):
        curves = [every(_regimes(curve)) for curve in group if PERFECT in curve.limits.index]
        workloads.append(some([curve for curve in curves if curve.parts]))
    return every([workload for workload in workloads if workload.parts])


def _regimes(curve: Curve) -> list[Statement | Tree]:
    found = curve.limits.loc[[PERFECT, USEFUL]]
    if not np.isfinite(found["estimate"].astype(float)).all():
        return []
    perfect, useful = (found.loc[name] for name in (PERFECT, USEFUL))
    first, last = (float(end) for end in curve.steps.dropna(subset="curve_steps")["batch_size"].iloc[[0, -1]])
    examples = curve.about["train_examples"]
    ends = ["estimate", "estimate_low", "estimate_high"]
    # A curve that falls up to all training examples has no flat part; one that ends before may have one.
    level: dict[str, Any] = {"ceiling": last, "two_sided": bool(last >= examples)}
    flat = [Statement.of(curve.name, "maximum useful batch size", useful[ends], **level)]
    if has_critical(curve):
        critical = FLAT * curve.limits.loc[CRITICAL, ends].astype(float)
        flat.append(Statement.of(curve.name, f"{FLAT} times the critical batch size", critical, **level))
    return [
        Statement.of(curve.name, "perfect-scaling limit", perfect[ends], floor=ROOT * first, two_sided=first == 1),
        Statement.of(curve.name, "maximum useful over perfect-scaling limit", limits.ratio(useful, perfect), floor=1.0),
        some(flat),
    ]


def goals(evidence: Evidence) -> Tree:
    """(b) Another goal moves the curve and keeps its shape: the critical batch size is the same.

    The tightest and the loosest goal that the same trials answer; their errors are taken as independent, which makes
    the interval too wide rather than too narrow.

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> tree = goals(evidence)
    >>> [(statement.subject[:20], verdict) for _, statement, verdict in tree.judged()]
    [('mlp_digits with mome', 'not shown'), ('mlp_digits with sgd ', 'shown')]
    """
    table = evidence.table("critical_by_goal")
    found = []
    for (workload, optimizer, metric), curve in (
        table.groupby(["workload", "optimizer", "goal_metric"]) if len(table) else ()
    ):
        known = curve.dropna(subset="critical_batch_size").sort_values("goal_threshold")
        if len(known) < 2:
            continue
        names = {"critical_batch_size": "estimate"} | {end: f"estimate_{end}" for end in ("low", "high", "bound")}
        tightest, loosest = known.rename(columns=names).iloc[[0, -1]].to_dict("records")
        thresholds = " and ".join(goal_text(metric, each["goal_threshold"]) for each in (tightest, loosest))
        subject = f"{workload} with {optimizer} at {thresholds}"
        ratio = limits.ratio(tightest, loosest)
        within = {"floor": 1 / SAME, "ceiling": SAME, "by_trials": True}
        found.append(Statement.of(subject, "ratio of critical batch sizes", ratio, **within))
    return same(found)


def models(evidence: Evidence) -> Tree:
    """(d) Models on the same data, with the same goal and optimizer, differ in their critical batch size, and a wider
    one does not always have a larger one.

    >>> from analysis.gallery import gather
    >>> models(gather.one(published)).verdict()
    'not tested'
    """
    pairs = list(_model_pairs(evidence))
    differ = [critical_ratio(a, b, _against(a, b), 1 / SAME, SAME, inside=False) for a, b in pairs]
    ranked = [(a, b) if wide > narrow else (b, a) for a, b in pairs for wide, narrow in _widths(a, b)]
    wider = [critical_ratio(a, b, f"{_against(a, b)}, which is narrower", ceiling=SAME) for a, b in ranked]
    return every([some(differ, "models differ"), some(wider, "wider is not always better")])


def _model_pairs(evidence: Evidence) -> Iterator[tuple[Curve, Curve]]:
    for group in evidence.groups("dataset", "part", "goal", "optimizer", "label_smoothing"):
        yield from _pairs(_measured(group), "model")


def _measured(group: Iterable[Curve]) -> list[Curve]:
    """The curves with a critical batch size. The most precise comes first, and counts where several are alike."""
    return sorted(filter(has_critical, group), key=lambda curve: np.nan_to_num(log_error(curve), nan=np.inf))


def _pairs(group: Iterable[Curve], differing: str) -> Iterator[tuple[Curve, Curve]]:
    """The pairs of curves that differ in a column of `about` or an attribute; the first curve of each of its values."""
    first: dict[Any, Curve] = {}
    for curve in group:
        first.setdefault(curve.about.get(differing, getattr(curve, differing, None)), curve)
    return combinations(sorted(first.values(), key=lambda curve: curve.key), 2)


def _against(one: Curve, other: Curve) -> str:
    return f"{one.workload} over {other.workload} with {one.optimizer}"


def _widths(one: Curve, other: Curve) -> list[tuple[float, float]]:
    """The widths of two models that differ in nothing else; empty for others."""
    (rest, width), (other_rest, other_width) = (_width(curve.about["model"]) for curve in (one, other))
    return [(width, other_width)] if rest == other_rest and width != other_width else []


def _width(model: str) -> tuple[str, float]:
    """(what a model is but for its width, its width); a model without a width is 0 wide."""
    if not model.startswith("{"):
        return model, 0.0
    made = json.loads(model)
    given = {name: made.pop(name) for name in OF_WIDTH if made.get(name) is not None}
    widths = given.get("widths") or []
    scale = [WIDTHS.get(given["size"], 0.0)] if "size" in given else []
    scale += [float(given["width"])] if isinstance(given.get("width"), int | float) else []
    # Layers are a matter of depth: nets of other depths differ in more than their width.
    return json.dumps({**made, "depth": len(widths)}, sort_keys=True), float(np.mean([*widths, *scale] or [0.0]))


def data(evidence: Evidence) -> Tree:
    """(e) The data set matters less for the critical batch size than model and optimizer, and its size little.

    >>> from analysis.gallery import gather
    >>> data(gather.one(published)).verdict()
    'not tested'
    """
    alike = "model", "optimizer", "label_smoothing"
    whole = [sorted(_measured(group), key=_strictest) for group in evidence.groups(*alike, "metric")]
    sets = [pair for group in whole for pair in _pairs(group, "dataset") if _same_size(*pair)]
    optimizers = [
        pair for group in evidence.groups("workload", "goal") for pair in _pairs(_measured(group), "optimizer")
    ]
    others = {"models": list(_model_pairs(evidence)), "optimizers": optimizers}
    spreads = [_spread(sets, pairs, name) for name, pairs in others.items()]
    sizes = [
        critical_ratio(*ends, _against(*ends), 1 / SAME, SAME)
        for group in evidence.groups(*alike, "dataset", "goal")
        for ends in _ends(group)
    ]
    less = every([each for each in spreads if each is not None], "the data set matters less than model and optimizer")
    return every([less, same(sizes, "the size of the data set matters little")])


def _same_size(one: Curve, other: Curve) -> bool:
    """False if one model has more parameters, as the same widths have on larger images."""
    counts = [curve.about["parameters"] for curve in (one, other)]
    return not max(counts) > SAME_SIZE * min(counts)


def _strictest(curve: Curve) -> tuple[float, float]:
    """Orders whole data sets before their parts, and strict goals before loose ones: a goal moves the critical batch
    size more than the data, and goals on two data sets are the most alike where both are hard to reach."""
    return -float(curve.about["train_examples"]), curve.threshold


def _ends(group: Iterable[Curve]) -> list[tuple[Curve, Curve]]:
    """The curves of the smallest and the largest part of a data set."""
    parts = {curve.about["part"]: curve for curve in reversed(_measured(group))}
    sized = sorted((float(part), curve.workload, curve) for part, curve in parts.items() if part.isdecimal())
    return [(sized[0][2], sized[-1][2])] if len(sized) > 1 else []


def _spread(sets: Sequence[tuple[Curve, Curve]], others: Sequence[tuple[Curve, Curve]], name: str) -> Statement | None:
    """The typical factor between critical batch sizes over pairs of `others`, over that over pairs of data sets."""
    kept = [[pair for pair in pairs if np.isfinite([*map(log_error, pair)]).all()] for pairs in (others, sets)]
    if not all(kept):
        return None
    curves = list({curve.key: curve for pairs in kept for pair in pairs for curve in pair}.values())
    index = {curve.key: number for number, curve in enumerate(curves)}
    places = [[(index[one.key], index[other.key]) for one, other in pairs] for pairs in kept]
    logs = np.log([float(curve.limits.loc[CRITICAL, "estimate"]) for curve in curves])
    errors = np.array([log_error(curve) for curve in curves])
    ends = np.exp(spread.difference(logs, errors, *places)).tolist()
    shares = sum(np.bincount(np.ravel(pairs), minlength=len(curves)) / len(pairs) for pairs in places)
    widest = curves[int(np.argmax(shares * errors**2))].workload
    subject = f"{len(kept[0])} pairs of {name} against {len(kept[1])} of data sets"
    quantity = "ratio of typical factors between critical batch sizes"
    return Statement.of(subject, quantity, ends, floor=1.0, widest=widest)
