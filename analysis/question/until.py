"""`search.until`: the width of intervals up to which a sweep goes on."""

import math
import re
from dataclasses import dataclass
from typing import Self

from analysis.question.goals import NUMBER

FACTOR, WIDTH = "factor", "width"
_TEXT = re.compile(rf"(?P<kind>{FACTOR}|{WIDTH})\s+(?P<value>{NUMBER})")


@dataclass(frozen=True)
class Until:
    """A width that intervals must not exceed, as a factor to either side of their value.

    Attributes:
        kind: `factor`: of the comparison of each pair of optimizers over all batch sizes; `width`: of each S(B).
        value: the factor, above 1.

    Raises:
        ValueError: the factor is not above 1.
    """

    kind: str
    value: float

    def __post_init__(self) -> None:
        if not 1 < self.value < math.inf:
            raise ValueError(f"the factor of search.until must be above 1, but got {self.value:g}.")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `factor 1.3` or `width 1.5`.

        Raises:
            ValueError: the text has another form, or the factor is not above 1.

        >>> Until.parse("factor 1.3")
        Until(kind='factor', value=1.3)
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                "search.until must read 'factor 1.3' (for the comparison of optimizers) or 'width 1.5' (for S(B)), but "
                f"got {text!r}."
            )
        return cls(match["kind"], float(match["value"]))

    def __str__(self) -> str:
        return f"{self.kind} {self.value:g}"
