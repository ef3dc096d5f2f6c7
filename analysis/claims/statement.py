"""Statements with intervals, and how the verdict on a claim follows from them.

A statement is a number with an interval and the range in which a claim puts it. It is *shown* if the interval lies in
that range, *contradicted* if the interval lies outside of it, else *not shown*. A claim is a tree of statements: all of
them must hold, or one of them. Definitions: docs/methods.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

SHOWN, NOT_SHOWN, CONTRADICTED, NOT_TESTED = "shown", "not shown", "contradicted", "not tested"
TINY = 1e-6
"""The least error of a statement in a mean: one without any error would count alone."""
ROUNDING = 1e-9
"""Relative errors of rounding, and slopes that are nothing else, are below this."""
LEVEL = 0.05
"""One minus the confidence of the intervals."""


class Levels(NamedTuple):
    """The errors allowed: of saying `shown` of what does not hold, and `contradicted` of what holds."""

    shown: float = LEVEL
    contradicted: float = LEVEL


WHOLE = Levels()


class Statement(NamedTuple):
    """A number with its 95 % interval, and the range in which the claim puts it.

    Attributes:
        subject: the curve or curves that it is about.
        quantity: what the number is.
        value, low, high: NaN without an interval.
        floor, ceiling: the ends of the range.
        inside: True if the claim puts the number into the range, False if outside of it.
        log: True if the number is a ratio or a batch size, so that its interval is even on a log scale.
        free: degrees of freedom of the interval; infinite: normal.
        two_sided: False if an interval outside of the range says only that the batch sizes end too early.
        denied: the one number that a claim "outside of the range" denies; NaN: it denies the whole range.
        by_trials: True if the trials of the search settle it, rather than fresh seeds.
        widest: the workload whose measurements widen the interval most; empty if the subject names the workloads.
    """

    subject: str
    quantity: str
    value: float
    low: float
    high: float
    floor: float = -np.inf
    ceiling: float = np.inf
    inside: bool = True
    log: bool = True
    free: float = np.inf
    two_sided: bool = True
    denied: float = np.nan
    by_trials: bool = False
    widest: str = ""

    @classmethod
    def of(cls, subject: str, quantity: str, ends: Iterable[float], **range_: Any) -> "Statement":
        """A statement whose number and interval come as (value, low, high).

        >>> Statement.of("digits", "ratio of steps", (2.0, 1.5, 3.0), floor=1.0).verdict()
        'shown'
        """
        value, low, high = map(float, ends)
        return cls(subject, quantity, value, low, high, **range_)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The interval at another level: wider by the ratio of the quantiles of Student's t.

        An infinite number, such as a ratio to steps that missed the goal, has no width: its interval is that of a sign
        test, and open at smaller levels.

        >>> found = Statement("digits", "ratio of steps", 2.0, 1.0, 4.0)
        >>> [round(end, 2) for end in found.interval(0.05 / 5)]
        [0.8, 4.97]
        """
        factor = _quantile(level, self.free) / _quantile(LEVEL, self.free)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value, low, high = np.log([self.value, self.low, self.high]) if self.log else self[2:5]
            if not np.isinf(value):
                low, high = value + factor * (low - value), value + factor * (high - value)
            elif factor > 1:
                low, high = -np.inf, np.inf
            low, high = (np.exp([low, high]) if self.log else np.array([low, high])).tolist()
        return float(low), float(high)

    def verdict(self, levels: Levels = WHOLE) -> str:
        """The verdict on this statement alone.

        >>> faster = Statement("digits", "ratio of steps", 2.0, 1.5, 3.0, floor=1.0)
        >>> slower = faster._replace(value=0.5, low=0.3, high=0.9)
        >>> faster.verdict(), faster._replace(low=0.9).verdict(), slower.verdict()
        ('shown', 'not shown', 'contradicted')
        """
        if np.isnan([self.low, self.high]).any():
            return NOT_SHOWN
        within, without = (self._within, self._without) if self.inside else (self._without, self._within)
        if self.two_sided and without(*self.interval(levels.contradicted)):
            return CONTRADICTED
        low, high = self.interval(levels.shown)
        excluded = low > self.denied or high < self.denied
        return SHOWN if excluded or within(low, high) else NOT_SHOWN

    def _within(self, low: float, high: float) -> bool:
        above = not self._has_floor or not _at_most(low, self.floor)
        return above and (self.ceiling == np.inf or not _at_most(self.ceiling, high))

    def _without(self, low: float, high: float) -> bool:
        below = self._has_floor and _at_most(high, self.floor)
        return below or (self.ceiling < np.inf and _at_most(self.ceiling, low))

    @property
    def _has_floor(self) -> bool:
        return self.floor > (0 if self.log else -np.inf)

    @property
    def text(self) -> str:
        """The statement for people.

        >>> Statement("digits", "ratio of steps", 2.0, 1.5, np.inf, floor=1.0).text
        'digits: ratio of steps 2.00 (95%: above 1.50), claimed above 1'
        """
        return f"{self.subject}: {self.quantity} {short(self.value)}{self._in_brackets()}, claimed {self.claimed}"

    def _in_brackets(self) -> str:
        if np.isnan([self.low, self.high]).any():
            return " (no interval)"
        if np.isinf(self.high):
            open_below = self.low <= 0 if self.log else np.isinf(self.low)
            return " (95%: open on both sides)" if open_below else f" (95%: above {short(self.low)})"
        if self.log and self.low <= 0:
            return f" (95%: below {short(self.high)})"
        return f" (95%: {short(self.low)} to {short(self.high)})"

    @property
    def claimed(self) -> str:
        """The range for people.

        >>> Statement("digits", "slope", 0.7, 0.6, 0.8, floor=0.9, ceiling=1.1, inside=False).claimed
        'outside 0.9 to 1.1'
        """
        floor, ceiling = (f"{end:,.0f}" if abs(end) >= 100 else f"{end:.3g}" for end in (self.floor, self.ceiling))
        if np.isinf(self.ceiling):
            return f"above {floor}"
        if not np.isnan(self.denied):
            return f"not {self.denied:.3g} (agrees: {floor} to {ceiling})"
        if self.floor == -np.inf or (self.log and self.floor <= 0):
            return f"below {ceiling}"
        return f"{'' if self.inside else 'outside '}{floor} to {ceiling}"


class Ruling(NamedTuple):
    """A statement of a tree, the name of its part, and its verdict at its level in the tree."""

    part: str
    statement: Statement
    verdict: str


class Tree(NamedTuple):
    """Statements that must all hold, or one of them.

    Attributes:
        every: True if all must hold.
        parts: statements and trees; empty if nothing was measured.
        name: what it says; may be empty.
        pooled: True if all must hold and all are about the same number: their mean over curves must lie in the range.
    """

    every: bool
    parts: Sequence["Statement | Tree"]
    name: str = ""
    pooled: bool = False

    def verdict(self, levels: Levels = WHOLE) -> str:
        """The verdict on all statements together.

        If all must hold, each is judged at the whole level to call the tree shown, because one that fails is enough to
        prevent it (intersection-union test, Berger 1982), and at the n-th part of the level to call it contradicted
        (Bonferroni). If one must hold, it is the other way round. Parts without measurements keep a tree from being
        shown.

        >>> low, high = (Statement("a", "ratio", *ends, floor=1.0) for ends in ((0.5, 0.4, 0.6), (2.0, 1.5, 3.0)))
        >>> Tree(True, [low, high]).verdict(), Tree(False, [low, high]).verdict(), Tree(True, []).verdict()
        ('contradicted', 'shown', 'not tested')
        """
        found = [part.verdict(self._each(levels)) for part in self.parts]
        decisive, other = (CONTRADICTED, SHOWN) if self.every else (SHOWN, CONTRADICTED)
        if all(each == NOT_TESTED for each in found):
            return NOT_TESTED
        if decisive in found:
            return decisive
        if all(each == other for each in found):
            return other
        mean = self.mean if self.pooled else None
        return NOT_SHOWN if mean is None else mean.verdict(levels._replace(contradicted=levels.contradicted / 2))

    @property
    def mean(self) -> Statement | None:
        """The mean of its statements over curves."""
        return pooled([part for part in self.parts if isinstance(part, Statement)])

    def _each(self, levels: Levels) -> Levels:
        """The levels of its parts."""
        count = max(1, sum(not isinstance(part, Tree) or bool(statements(part)) for part in self.parts))
        if self.every:
            return Levels(levels.shown, levels.contradicted / count / (2 if self.pooled else 1))
        return Levels(levels.shown / count, levels.contradicted)

    def judged(self, levels: Levels = WHOLE) -> Iterator[Ruling]:
        """The verdict on every statement, at its level in this tree.

        >>> ratio = Statement("a", "ratio", 2.0, 1.5, 3.0, floor=1.0)
        >>> [(name, verdict) for name, _, verdict in Tree(True, [Tree(True, [ratio], "faster")]).judged()]
        [('faster', 'shown')]
        """
        for part in self.parts:
            if isinstance(part, Tree):
                for found in part.judged(self._each(levels)):
                    yield found._replace(part=" / ".join(filter(None, [self.name, found.part])))
            else:
                yield Ruling(self.name, part, part.verdict(self._each(levels)))

    def undecided(self, levels: Levels = WHOLE) -> Iterator["Statement"]:
        """The statements not shown in those of its parts that are not shown.

        >>> open_one, shown = (Statement("a", "ratio", 2.0, low, 3.0, floor=1.0) for low in (0.5, 1.5))
        >>> likely = Tree(False, [open_one, shown], "one is shown")
        >>> [each.low for each in Tree(True, [likely, open_one]).undecided()]
        [0.5]
        """
        each = self._each(levels)
        for part in self.parts:
            if part.verdict(each) == NOT_SHOWN:
                yield from part.undecided(each) if isinstance(part, Tree) else [part]

    def named(self, levels: Levels = WHOLE) -> Iterator[tuple["Tree", str, list[Ruling]]]:
        """(part, its verdict, those on its statements) of each named part that has statements, or of the whole tree.

        >>> ratio = Statement("a", "ratio", 2.0, 1.5, 3.0, floor=1.0)
        >>> tree = Tree(True, [Tree(True, [ratio], "faster")])
        >>> [(part.name, verdict, len(found)) for part, verdict, found in tree.named()]
        [('faster', 'shown', 1)]
        """
        parts = [part for part in self.parts if isinstance(part, Tree) and part.name]
        inner = self._each(levels) if parts else levels
        for part in parts or [self]:
            if found := list(part.judged(inner)):
                yield part, part.verdict(inner), found


def statements(tree: Tree) -> list[Statement]:
    """Every statement of a tree.

    >>> len(statements(Tree(True, [Tree(False, []), Statement("a", "ratio", 2.0, 1.5, 3.0)])))
    1
    """
    found: list[Statement] = []
    for part in tree.parts:
        found += statements(part) if isinstance(part, Tree) else [part]
    return found


def pooled(parts: Sequence[Statement]) -> Statement | None:
    """The mean of statements about the same number, over curves that may differ (random effects); None without two.

    Variances between curves by DerSimonian & Laird (1986), the interval by Hartung & Knapp (2001) with n - 1 degrees of
    freedom, never narrower than the errors of the statements say. Statements with open intervals are left out.

    >>> values = (1.4, 1.45, 1.4, 1.48)
    >>> ratios = [Statement("a", "ratio", each, each / 1.5, each * 1.5, floor=1.0) for each in values]
    >>> pooled(ratios).text, {each.verdict() for each in ratios}
    ('4 curves: mean ratio 1.43 (95%: 1.03 to 1.99), claimed above 1', {'not shown'})
    """
    closed = [part for part in parts if np.isfinite(_ends(part)).all()]
    if len(closed) < 2:
        return None
    value, low, high = np.array([_ends(part) for part in closed]).T
    errors = (high - low) / 2 / np.array([_quantile(LEVEL, part.free) for part in closed])
    errors = np.maximum(errors, TINY)
    fixed = 1 / errors**2
    spread = (fixed * (value - np.average(value, weights=fixed)) ** 2).sum() - (len(closed) - 1)
    between = max(0.0, spread / (fixed.sum() - (fixed**2).sum() / fixed.sum()))
    weights = 1 / (errors**2 + between)
    mean = np.average(value, weights=weights)
    scatter = max(1.0, (weights * (value - mean) ** 2).sum() / (len(closed) - 1))
    half = _quantile(LEVEL, len(closed) - 1) * np.sqrt(scatter / weights.sum())
    ends = np.array([mean, mean - half, mean + half])
    subject, quantity = f"{len(closed)} curves", f"mean {closed[0].quantity}"
    found = Statement.of(subject, quantity, np.exp(ends) if closed[0].log else ends, free=len(closed) - 1)
    kept = ("floor", "ceiling", "inside", "log", "denied")
    return found._replace(**{name: getattr(closed[0], name) for name in kept})


def _ends(statement: Statement) -> list[float]:
    """(value, low, high) on the scale on which the interval is even."""
    ends = [statement.value, statement.low, statement.high]
    with np.errstate(divide="ignore", invalid="ignore"):
        return [float(end) for end in (np.log(ends) if statement.log else ends)]


def every(parts: Sequence[Statement | Tree], name: str = "") -> Tree:
    """A tree whose parts must all hold.

    >>> every([]).every
    True
    """
    return Tree(True, parts, name)


def some(parts: Sequence[Statement | Tree], name: str = "") -> Tree:
    """A tree with one part that must hold.

    >>> some([]).every
    False
    """
    return Tree(False, parts, name)


def same(parts: Sequence[Statement], name: str = "") -> Tree:
    """A tree of statements about the same number on several curves: their mean must hold, and none be contradicted.

    >>> same([]).pooled
    True
    """
    return Tree(True, parts, name, pooled=True)


def short(value: float) -> str:
    """A number in a statement; NaN is a dash, and an error of rounding is 0.

    >>> short(61.93), short(1234.0), short(-1.41e-16), short(np.nan)
    ('61.9', '1,234', '0', '–')
    """
    if abs(value) < ROUNDING:
        return "0"
    return "–" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


def _at_most(value: float, end: float) -> bool:
    """Whether a value is at most this end of a range, but for errors of rounding."""
    return value <= end or bool(np.isclose(value, end, rtol=ROUNDING, atol=0.0))


def _quantile(level: float, free: float) -> float:
    return float(ndtri(1 - level / 2) if np.isinf(free) else stdtrit(free, 1 - level / 2))
