"""What a warning is, its cure, and how warnings become lines."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analysis.counting import Goal
from analysis.labels import batch_sizes, goal_text, listed
from analysis.load import StudyData

KINDS = (
    *("waiting", "edge", "rising", "inclusion", "unequal", "adaptive", "unfinished", "few near"),
    *("noise", "never", "at once", "coarse", "doubling", "late", "base", "end"),
)
"""Kinds of warnings, the most serious first."""

MORE_TRIALS = "raise search.trials, narrow the search space, or use search=refine in another results=DIR"
FEW_TRIALS = "raise search.trials"
MORE_ROUNDS = "add rounds (search.added=1) or narrow the search space"
TYPICAL = "; search.reruns=4 shows what the best trial typically needs"
STRICTER = "choose a stricter goal: an untrained model may nearly meet this one"
CONTINUE = "sweep again to continue"
OF_IMPORTED = {
    "edge": "a wider search may find fewer steps",
    "unfinished": "import with a lower --trials, or all",
    "few": "import more runs",
    "few near": "choose a looser goal",
    "rising": "choose a goal that the curves cross steeply",
    "noise": "choose a goal that the curves cross steeply",
    "at once": STRICTER,
    "never": "choose a looser goal or leave out the batch size",
}
"""Kind -> the cure for imported studies, which cannot be measured again; other kinds have none."""

Row = Mapping[str, Any]
Answered = Sequence[tuple[StudyData, Goal]]


class Caution(NamedTuple):
    """A warning about one study or, without a batch size, one curve.

    Attributes:
        text: the broken rule, with {} for each value and no full stop.
        cure: the change to the sweep; may have {} too.
        values: fill the {} of the text, then of the cure; they may differ between batch sizes.
    """

    kind: str
    curve: tuple[str, str, Goal]
    batch_size: int | None
    text: str
    cure: str
    values: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The text, and the cure if there is one."""
        return "; ".join(filter(None, (self.text, self.cure)))


def about(kind: str, study: StudyData, goal: Goal, text: str, cure: str, *values: str) -> Caution:
    """A warning about one study; `values` fill the {} of the text, then of the cure.

    >>> about("late", study, study.goal, "the goal was met late", "a larger budget may find fewer steps").sentence
    'the goal was met late; a larger budget may find fewer steps'
    """
    return Caution(kind, (*study.curve, goal), study.batch_size, text, cure, values)


def cured(caution: Caution, imported: bool) -> Caution:
    """The warning with a cure that needs no new measurements, if its study is imported.

    >>> few = about("few near", study, study.goal, "fewer than 4 trials", FEW_TRIALS)
    >>> cured(few, imported=False).cure, cured(few, imported=True).cure
    ('raise search.trials', 'import more runs')
    """
    if not imported:
        return caution
    return caution._replace(cure=OF_IMPORTED.get("few" if caution.cure == FEW_TRIALS else caution.kind, ""))


def lines(found: Iterable[Caution], several_goals: bool) -> list[str]:
    """A line for each (kind, workload, goal), the most serious first; optimizers with the same text share it.

    >>> late = about("late", study, study.goal, "the goal was met after {} of the budget", "", "90 %")
    >>> lines([late, late._replace(batch_size=128, values=("95 %",))], several_goals=False)
    ['mlp_digits, sgd, batch sizes 64 and 128: the goal was met after 90 % and 95 % of the budget.']
    """
    grouped: dict[tuple[str, tuple[str, str, Goal]], dict[str, list[Caution]]] = {}
    for caution in sorted(found, key=lambda caution: KINDS.index(caution.kind)):
        grouped.setdefault((caution.kind, caution.curve), {}).setdefault(caution.sentence, []).append(caution)
    optimizers: dict[tuple[str, str], list[str]] = {}
    for (_, (workload, optimizer, goal)), by_text in grouped.items():
        to_goal = f" to {goal_text(goal.metric, goal.threshold)}" if several_goals else ""
        parts = [_part(text, cautions) for text, cautions in by_text.items()]
        others = [part[2].upper() + part[3:] for part in parts[1:]]
        optimizers.setdefault((workload, " ".join([f"{to_goal}{parts[0]}", *others])), []).append(optimizer)
    return [f"{workload}, {listed(names)}{said}" for (workload, said), names in optimizers.items()]


def _part(text: str, cautions: Sequence[Caution]) -> str:
    """One sentence for all batch sizes that share a text; differing values are listed in the order of the sizes."""
    columns = zip(*(caution.values for caution in cautions), strict=True)
    said = text.format(*(listed(column if len(set(column)) > 1 else column[:1]) for column in columns))
    sizes = [caution.batch_size for caution in cautions if caution.batch_size is not None]
    return f", {batch_sizes(sizes)}: {said}." if sizes else f": {said}."
