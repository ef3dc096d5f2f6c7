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
VERDICTS = (CONTRADICTED, NOT_SHOWN, SHOWN, NOT_TESTED)
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

        >>> found = Statement("digits", "ratio of steps", 2.0, 1.0, 4.0)
        >>> [round(end, 2) for end in found.interval(0.05 / 5)]
        [0.8, 4.97]
        """
        factor = _quantile(level, self.free) / _quantile(LEVEL, self.free)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value, low, high = np.log([self.value, self.low, self.high]) if self.log else self[2:5]
            ends = np.array([value + factor * (low - value), value + factor * (high - value)])
            low, high = (np.exp(ends) if self.log else ends).tolist()
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
        above = self.floor == -np.inf or (self.log and self.floor <= 0) or not _at_most(low, self.floor)
        return above and (self.ceiling == np.inf or not _at_most(self.ceiling, high))

    def _without(self, low: float, high: float) -> bool:
        return _at_most(high, self.floor) or _at_most(self.ceiling, low)

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


class Tree(NamedTuple):
    """Statements that must all hold, or one of them.

    Attributes:
        every: True if all must hold.
        parts: statements and trees; empty if nothing was measured.
        name: what it says; may be empty.
    """

    every: bool
    parts: Sequence["Statement | Tree"]
    name: str = ""

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
        return other if all(each == other for each in found) else NOT_SHOWN

    def _each(self, levels: Levels) -> Levels:
        """The levels of its parts."""
        count = max(1, sum(not isinstance(part, Tree) or bool(statements(part)) for part in self.parts))
        if self.every:
            return Levels(levels.shown, levels.contradicted / count)
        return Levels(levels.shown / count, levels.contradicted)

    def judged(self, levels: Levels = WHOLE) -> Iterator[tuple[str, "Statement", str]]:
        """(name of its part, statement, its verdict at its level in this tree) of every statement.

        >>> ratio = Statement("a", "ratio", 2.0, 1.5, 3.0, floor=1.0)
        >>> [(name, verdict) for name, _, verdict in Tree(True, [Tree(True, [ratio], "faster")]).judged()]
        [('faster', 'shown')]
        """
        for part in self.parts:
            if isinstance(part, Tree):
                for name, statement, verdict in part.judged(self._each(levels)):
                    yield " / ".join(filter(None, [self.name, name])), statement, verdict
            else:
                yield self.name, part, part.verdict(self._each(levels))

    def named(self, levels: Levels = WHOLE) -> Iterator[tuple[str, str, list[tuple["Statement", str]]]]:
        """(name, verdict, statements with their verdicts) of each named part that has statements, or of the whole tree.

        >>> ratio = Statement("a", "ratio", 2.0, 1.5, 3.0, floor=1.0)
        >>> tree = Tree(True, [Tree(True, [ratio], "faster")])
        >>> [(name, verdict, len(found)) for name, verdict, found in tree.named()]
        [('faster', 'shown', 1)]
        """
        parts = [part for part in self.parts if isinstance(part, Tree) and part.name]
        inner = self._each(levels) if parts else levels
        for part in parts or [self]:
            found = [(statement, verdict) for _, statement, verdict in part.judged(inner)]
            if found:
                yield part.name, part.verdict(inner), found


def statements(tree: Tree) -> list[Statement]:
    """Every statement of a tree.

    >>> len(statements(Tree(True, [Tree(False, []), Statement("a", "ratio", 2.0, 1.5, 3.0)])))
    1
    """
    found: list[Statement] = []
    for part in tree.parts:
        found += statements(part) if isinstance(part, Tree) else [part]
    return found


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


def short(value: float) -> str:
    """A number in a statement; NaN is a dash.

    >>> short(61.93), short(1234.0), short(np.nan)
    ('61.9', '1,234', '–')
    """
    return "–" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


def _at_most(value: float, end: float) -> bool:
    """Whether a value is at most this end of a range, but for errors of rounding."""
    return value <= end or bool(np.isclose(value, end, rtol=1e-9, atol=0.0))


def _quantile(level: float, free: float) -> float:
    return float(ndtri(1 - level / 2) if np.isinf(free) else stdtrit(free, 1 - level / 2))
