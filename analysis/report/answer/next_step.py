"""How well the answer is known, and the sweep that would say most: its command and its cost."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.estimates import tuned
from analysis.estimates.at_budget import falling
from analysis.estimates.until import more, override, trainings, widest
from analysis.labels import about, batch_sizes, counted, listed, optimizer_text
from analysis.load import CURVE, GOAL, StudyData
from analysis.question.stages import REFINE
from analysis.question.until import WIDTH, Until
from analysis.report.answer import infeasible
from analysis.report.answer.choices import apart
from analysis.report.answer.continued import command, folder_beside, seconds_of, words_of
from analysis.report.answer.missed import Missed, missed
from analysis.report.answer.values import curves, limit
from analysis.tables.scaling import USEFUL
from analysis.tables.steps_to_result import is_complete, is_left_censored

LARGER = (2, 4)
"""Multiples of the largest batch size that are proposed if steps still fall there."""
AXES = ("optimizer=", "batch_size=", "results=", "engine.")
"""How the words of a command begin that may differ between the studies of one sweep."""
EARLIER = 20
"""How many times earlier the first evaluation is proposed."""
FEWEST_SIZES = 3
"""Batch sizes that limits of scaling need."""
APART = 4
"""The factor between batch sizes that are proposed."""
HARDLY = 0.01
"""Share of the least error by which it hardly fell."""
Key = tuple[str, str, int]


class NextStep(NamedTuple):
    """What to run next.

    Attributes:
        known: how well the steps are known; empty without any.
        advice: what to add to the measurements and why; empty if they were imported.
        command: continues the sweep so; empty if no command is on record.
        seconds: the time that this takes at the pace of the trials on file; NaN if it is unknown.
        provided: what this time assumes; may be empty.
    """

    known: str
    advice: str
    command: str = ""
    seconds: float = np.nan
    provided: str = ""

    @property
    def cost(self) -> str:
        return "" if np.isnan(self.seconds) else f"{about(self.seconds)}{self.provided}"

    @property
    def summary(self) -> str:
        """The advice with its cost; a colon before the command, if there is one."""
        return f"{self.advice}{f' ({self.cost})' if self.cost else ''}{':' if self.command else '.'}"


class Change(NamedTuple):
    """A change to a sweep.

    Attributes:
        units: the trainings that it adds to each study, in times of one training there; none if the user must choose.
    """

    advice: str
    overrides: Mapping[str, Any] = MappingProxyType({})
    units: Mapping[Key, float] = MappingProxyType({})
    provided: str = ""


def next_step(studies: Sequence[StudyData], steps: pd.DataFrame, limits: pd.DataFrame, cost: pd.DataFrame) -> NextStep:
    """The next step for one workload and goal.

    Arguments:
        studies: the searches that give S(B), also those without a finished trial.
        steps, limits, cost: rows of this workload (and goal), from `analysis.estimates.tuned.table`,
            `analysis.estimates.limits.table` and `analysis.tables.steps_to_result.cost_table`.

    >>> tables = [pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "scaling", "cost")]
    >>> found = next_step([study], *tables)
    >>> found.known
    'Steps are known within a factor of 1.28 to either side (95 %)'
    >>> found.advice
    'train each tuned configuration with 10 fresh seeds instead of 5'
    >>> found.command.split()[-2:]
    ['results=results/published/mlp_digits', 'search.reruns=10']
    """
    known = _known(steps)
    if any(study.imported for study in studies):
        return NextStep(known, "")
    parts = [(part, _rows(part, steps)) for part in _sweeps(_counted_or_under_way(studies, steps))]
    parts.sort(key=lambda part: -_width(part[1]))
    kinds: Sequence[Callable[[Sequence[StudyData], pd.DataFrame], Change | None]] = (
        lambda mine, _: _unfinished(mine),
        _infeasible,
        lambda mine, _: _missed(mine, steps),
        _at_once,
        _left_censored,
        _some_missed,
        lambda mine, _: _few_sizes(mine, steps),
        lambda mine, rows: _larger(mine, rows, limits),
        _finer,
    )
    found = ((mine, change) for kind in kinds for mine, rows in parts if (change := kind(mine, rows)))
    mine, change = next(found)
    own = "optimizer" in change.overrides  # then the advice names them
    whose = f"for {_named(mine, studies)}, " if len(parts) > 1 and not own else ""
    if not change.units:
        return NextStep(known, whose + change.advice)
    seconds = seconds_of(mine, change.units, cost)
    continued = command(mine, {**apart(mine, studies), **change.overrides})
    return NextStep(known, whose + change.advice, continued, seconds, change.provided)


def _sweeps(studies: Sequence[StudyData]) -> list[list[StudyData]]:
    """The studies that one command can continue: those of one folder and sampler whose commands differ in optimizers
    and batch sizes alone. Studies of another folder would be trained again, and other settings are another question.
    Studies that wait for their first run have no command yet: they belong to a sweep of their folder and sampler."""
    found: dict[Any, dict[Any, list[StudyData]]] = {}
    for study in sorted(studies, key=lambda study: not study.provenance):
        same = found.setdefault((study.results, study.question["search"]["sampler"]), {})
        words = frozenset(word for word in words_of([study]) if not word.startswith(AXES))
        words = words if study.provenance else next(reversed(same), words)
        same.setdefault(words, []).append(study)
    return [mine for same in found.values() for mine in same.values()]


def _counted_or_under_way(studies: Sequence[StudyData], steps: pd.DataFrame) -> list[StudyData]:
    """Without finished searches that no row stands for (`analysis.tables.answers.counted`): a command cannot go on."""
    rows = set(zip(steps["optimizer"], steps["batch_size"], strict=True))
    return [study for study in studies if (study.optimizer, study.batch_size) in rows or not is_complete(study)]


def _rows(studies: Sequence[StudyData], steps: pd.DataFrame) -> pd.DataFrame:
    """The rows of these studies."""
    mine = {(study.optimizer, study.batch_size) for study in studies}
    return steps[[key in mine for key in zip(steps["optimizer"], steps["batch_size"], strict=True)]]


def _named(some: Sequence[StudyData], studies: Sequence[StudyData]) -> str:
    """Some of the studies by their optimizers, and by their batch sizes if others have one of these optimizers."""
    optimizers, keys = dict.fromkeys(study.optimizer for study in some), {study.key for study in some}
    shared = any(study.optimizer in optimizers for study in studies if study.key not in keys)
    sizes = f" at {batch_sizes(sorted({study.batch_size for study in some}))}" if shared else ""
    return f"{listed(optimizers)}{sizes}"


def _known(steps: pd.DataFrame) -> str:
    if not steps["reached"].any():
        return ""
    by_search = steps[steps["reached"] & (steps["read_from"] == tuned.SEARCH)]  # the points of these have no interval
    names = dict.fromkeys(by_search["optimizer"])
    width = _width(steps[~steps["optimizer"].isin(names)])
    if np.isinf(width):
        return "Steps have no interval yet"
    others = f", except with {listed(optimizer_text(name) for name in names)}" if names else ""
    return f"Steps are known within a factor of {width:.2f} to either side (95 %){others}"


def _width(steps: pd.DataFrame) -> float:
    return widest(Until(WIDTH, 2.0), steps, pd.DataFrame())


def _unfinished(studies: Sequence[StudyData]) -> Change | None:
    left = {s.key: max(1, trainings(_search(s)) - len(s.trials)) for s in studies if not is_complete(s)}
    return Change(f"continue the sweep: {counted(len(left), 'search', 'searches')} left", {}, left) if left else None


def _infeasible(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change | None:
    """Mend the command, or lower the learning rates, where no trial was feasible or most commands failed. Both need
    another folder: infeasible trials stay on file."""
    mine = _without_others(infeasible.hindered(studies, steps), studies)
    if not mine:
        return None
    sizes, optimizers = sorted({each.batch_size for each in mine}), sorted({each.optimizer for each in mine})
    why = f"because {infeasible.happened(mine)} at {batch_sizes(sizes)}"
    some = {"batch_size": ",".join(map(str, sizes))} if len(sizes) < steps["batch_size"].nunique() else {}
    if len(optimizers) < steps["optimizer"].nunique():
        some["optimizer"] = ",".join(optimizers)
        why += f" with {listed(optimizers)}"
    unknown = dict.fromkeys((study.key for study in mine), np.nan)  # such trials end early: they show no cost
    if infeasible.failed(mine):
        some["results"] = folder_beside(mine, "mended")
        return Change(f"mend the command, {why}, and sweep again", some, unknown)
    overrides = infeasible.lower(mine) | some | {"results": folder_beside(mine, "lower")}
    return Change(f"search lower learning rates, {why}", overrides, unknown)


def _without_others(mine: Sequence[StudyData], studies: Sequence[StudyData]) -> Sequence[StudyData]:
    """The largest part of `mine` that one command trains without other studies: all, or those of one optimizer. Ranges
    of learning rates differ between optimizers, too."""
    keys, ranges = {study.key for study in mine}, [study.searched.get("learning_rate") for study in mine]
    optimizers, sizes = {study.optimizer for study in mine}, {study.batch_size for study in mine}
    others = (study for study in studies if study.optimizer in optimizers and study.batch_size in sizes)
    if ranges == ranges[:1] * len(mine) and all(study.key in keys for study in others):
        return mine
    parts = [[study for study in mine if study.optimizer == optimizer] for optimizer in sorted(optimizers)]
    return max(parts, key=len)


def _missed(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change | None:
    """A larger budget if no trial reached the goal, or lower learning rates if none became better than an untrained
    model. Both ask another question, so they need a folder of their own."""
    if steps["reached"].any():
        return None
    errors = [error for study in studies if len(error := falling(study))]
    least = f"{min(each['error'].min() for each in errors):.3g}" if errors else ""
    untrained = [infeasible.never_improved(study, study.goal) for study in studies]
    if not np.isnan(untrained).any():
        why = f"because the least error, {least}, is above that of an untrained model, {min(untrained):.3g}"
        units = {study.key: float(trainings(_search(study))) for study in studies}
        overrides = infeasible.lower(studies) | {"results": folder_beside(studies, "lower")}
        return Change(f"search lower learning rates, {why}", overrides, units)
    if errors and not any(map(_still_falls, studies)):
        return Change(
            f"choose a looser goal or other ranges of hyperparameters, because the least error, {least}, "
            "hardly fell in the last half of the budget"
        )
    budget = studies[0].question["budget"]
    names = ("tokens", "epochs", "steps", "max_steps")
    doubled = {f"budget.{name}": _plain(2 * budget[name]) for name in names if budget.get(name)}
    units = {study.key: 2.0 * trainings(_search(study)) for study in studies}
    advice = f"double the budget, because no trial reached the goal{least and f'; the least error was {least}'}"
    return Change(advice, doubled | {"results": folder_beside(studies, "longer")}, units)


def _still_falls(study: StudyData) -> bool:
    """Whether the least error of any trial fell in the last half of the budget by more than a hundredth of it."""
    errors = falling(study)
    before = errors.loc[errors["step"] <= study.train_steps / 2, "error"].min()
    return not before <= errors["error"].min() / (1 - HARDLY)


def _at_once(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change | None:
    """A stricter goal, if no batch size can need fewer steps or the untrained model meets it."""
    reached = steps.loc[steps["reached"].astype(bool), "steps_to_result"]
    if not reached.empty and (reached <= 1).all():
        return Change("choose a stricter goal, because a single step meets it")
    goal = Goal(*steps[GOAL].iloc[0])
    before = (study.untrained(goal.metric) for study in studies if is_left_censored(study, goal))
    low = next((error for error in before if error < goal.threshold), None)
    if low is None:
        return None
    return Change(f"choose a stricter goal, because an untrained model may meet it: its error is {low:.3g}")


def _plain(number: float) -> str:
    """A number without an exponent where it is whole: `budget.steps=1.2e+06` is refused.

    >>> _plain(1_200_000), _plain(40.0), _plain(0.5)
    ('1200000', '40', '0.5')
    """
    return f"{number:.0f}" if float(number).is_integer() else f"{number:g}"


def _left_censored(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change | None:
    """An earlier first evaluation where steps are left-censored. It asks another question, too. A script of the
    user evaluates when it likes; once it has changed, it needs another folder."""
    sizes = sorted({size for _, curve in steps.groupby(CURVE) for size in tuned.left_censored_sizes(curve)})
    if not sizes:
        return None
    why = f"because the goal was met at the first evaluation at {batch_sizes(sizes)}"
    units = {study.key: float(trainings(_search(study))) for study in studies}
    another = {"results": folder_beside(studies, "earlier")}
    if studies[0].is_command:
        return Change(f"have the script write its first metrics earlier, {why}, and sweep again", another, units)
    first = studies[0].question["evaluation"]["first"] / EARLIER
    return Change(f"evaluate earlier, {why}", {"evaluation.first": f"{first:.2g}", **another}, units)


def _some_missed(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change | None:
    """Twice the budget at batch sizes that missed the goal, beside their searches on file; more trials at all batch
    sizes if the budget was ample, or a single pass allows no larger one."""
    most = {study.key[1:]: max(_search(study)["budgets"]) / study.branch.budget for study in studies}
    found = [each._replace(budget=round(each.budget * most[each[:2]])) for each in missed(steps)]
    if not found:
        return None
    single = studies[0].question["budget"].get("single_pass")
    short = [each for each in found if not each.ample and not single]
    sizes = sorted({each.batch_size for each in short or found})
    who = [optimizer for optimizer, _ in curves(steps) if any(each.optimizer == optimizer for each in short or found)]
    by = "" if len(who) == steps["optimizer"].nunique() else f" with {listed(who)}"
    why = f"because no trial reached the goal at {batch_sizes(sizes)}{by}"
    if short:
        mine = [study for study in studies if study.batch_size in sizes]
        multiples = sorted({multiple for study in mine for multiple in _search(study)["budgets"]})
        several = ",".join(map(_plain, [*multiples, 2 * multiples[-1]]))
        overrides = {"search.budgets": f"[{several}]", "batch_size": ",".join(map(str, sizes))}
        units = {study.key: 2.0 * multiples[-1] * trainings(_search(study)) for study in mine}
        return Change(f"search with {_plain(2 * multiples[-1])} times the budget, too, {why}", overrides, units)
    return tuned_more(studies, f", {why}" + ("" if single else f", where the budget of {_budgets(found)} was ample"))


def _budgets(found: Sequence[Missed]) -> str:
    return f"{listed(sorted({each.budget for each in found}))} steps"


def tuned_more(studies: Sequence[StudyData], why: str = "") -> Change:
    """Another round of `refine`, or twice the trials of another sampler, at all batch sizes: more trials are luckier.

    >>> tuned_more([study]).advice
    'search with 40 trials instead of 20'
    """
    most = _most(studies)
    key, value = ("added", most["added"] + 1) if most["sampler"] == REFINE else ("trials", 2 * most["trials"])
    return _raised(studies, key, value, why)


def _raised(studies: Sequence[StudyData], key: str, value: int, why: str = "") -> Change:
    """More fresh seeds (`reruns`), rounds (`added`) or `trials` at all batch sizes."""
    most = _most(studies)
    words = {
        "reruns": f"train each tuned configuration with {value} fresh seeds"
        + (f" instead of {most['reruns']}" if most["reruns"] else ""),
        "added": "tune for one more round",
        "trials": f"search with {value} trials instead of {most['trials']}",
    }
    units = {s.key: float(trainings(_search(s) | {key: value}) - trainings(_search(s))) for s in studies}
    return Change(words[key] + why, dict([override(most["sampler"], key, value)]), units)


def _most(studies: Sequence[StudyData]) -> dict[str, Any]:
    """The settings of the searches, with the most trials, fresh seeds and rounds of any of them."""
    searches = [_search(study) for study in studies]
    return searches[0] | {key: max(search[key] for search in searches) for key in ("trials", "reruns", "added")}


def _few_sizes(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change | None:
    """More batch sizes, on both sides, if no curve has the three that limits of scaling need."""
    mine = steps[steps["optimizer"].isin({study.optimizer for study in studies})]
    lacking = FEWEST_SIZES - int(mine.groupby("optimizer")["batch_size"].nunique().max())
    if lacking <= 0 or any(study.batch_schedule for study in studies):
        return None
    there = sorted({study.batch_size for study in studies})
    possible = [size for power in (1, 2) for size in (there[-1] * APART**power, there[0] // APART**power)]
    new = sorted([size for size in possible if 1 <= size <= _examples(studies)][:lacking])
    if not new:
        return None
    advice = f"sweep {batch_sizes(new)}, because limits of scaling need three"
    units = {study.key: len(new) / len(there) * float(trainings(_search(study))) for study in studies}
    return Change(advice, {"batch_size": ",".join(map(str, new))}, units)


def _examples(studies: Sequence[StudyData]) -> float:
    """The examples of the smallest training set; infinite if none is known."""
    return min((study.question["workload"].get("train_examples") or np.inf) for study in studies)


def _larger(studies: Sequence[StudyData], steps: pd.DataFrame, limits: pd.DataFrame) -> Change | None:
    """Larger batch sizes, if steps still fall at the largest one and the training set has the examples."""
    largest = int(steps["batch_size"].max())
    still = [
        optimizer
        for optimizer, curve in curves(steps)
        if (found := limit(limits, optimizer, USEFUL)).bound == ">"
        and found.size == largest == curve.dropna(subset="point")["batch_size"].max()
    ]
    times = [each for each in LARGER if each * largest <= _examples(studies)]
    mine = [study for study in studies if study.optimizer in still and study.batch_size == largest]
    if not times or not mine:
        return None
    sizes = [each * largest for each in times]
    all_fall = len(still) == steps["optimizer"].nunique()
    by = "" if all_fall else f" with {listed(still)}"
    advice = f"sweep {batch_sizes(sizes)}{by}, because steps still fall at {largest:,}"
    units = {study.key: sum(times) * float(trainings(_search(study))) for study in mine}
    some = {} if all_fall else {"optimizer": ",".join(still)}
    return Change(advice, {"batch_size": ",".join(map(str, sizes)), **some}, units, " if the steps fall no further")


def _finer(studies: Sequence[StudyData], steps: pd.DataFrame) -> Change:
    """What narrows the intervals most: fresh seeds or further tuning."""
    [(key, value)] = more(_most(studies), steps).items()
    return _raised(studies, key, value)


def _search(study: StudyData) -> dict[str, Any]:
    return {"reruns": 0, "added": 0, "budgets": [1.0], **study.question["search"]}
