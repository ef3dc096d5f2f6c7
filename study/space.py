"""Search spaces: the tuned parameters, their ranges and scales, and the map between the unit cube and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeGuard

from analysis.edges import Edge, open_edges, scaled, unit
from workloads.suggest import suggest

SCALES = ("linear", "log", "reverse_log")
SIDES = ("low", "high")
BOX_MARGIN = 1e-5
"""Units of a range between the end of a wider one and the candidates in it, whose positions have six digits."""


@dataclass(frozen=True)
class Dimension:
    """One tuned parameter: a range on a scale, or a list of choices.

    Arguments:
        low, high: the range, both ends included.
        scale: `linear`; `log` (log-uniform); `reverse_log` (1 - x log-uniform, for momenta near 1).
        hard: sides ("low", "high") where the parameter itself ends, such as momentum 0; widening does not move them.
        integer: whole numbers only, with the probabilities that the scale gives them.
        choices: the values of a discrete parameter, instead of a range: numbers, or names for `schedule`; a single one
            fixes the parameter.
    """

    low: float | None = None
    high: float | None = None
    scale: str = "linear"
    hard: tuple[str, ...] = ()
    integer: bool = False
    choices: tuple[float, ...] | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.choices is not None:
            if self.low is not None or self.high is not None:
                raise ValueError("a dimension has either `choices` or `low` and `high`, but got both.")
            named = all(isinstance(choice, str) for choice in self.choices)
            if not self.choices or not (named or all(map(finite, self.choices))):
                cure = "; write 1 for true and 0 for false" if any(isinstance(c, bool) for c in self.choices) else ""
                raise ValueError(
                    "`choices` must be one or more numbers, or names for `schedule`, but got "
                    f"{list(self.choices)}{cure}."
                )
            return
        if not (finite(self.low) and finite(self.high)):
            raise ValueError(f"`low` and `high` must be numbers, but got low={self.low}, high={self.high}.")
        assert self.low is not None
        assert self.high is not None
        if not self.low < self.high:
            raise ValueError(f"`low < high` must hold, but got low={self.low:g}, high={self.high:g}.")
        if self.scale not in SCALES:
            raise ValueError(f"`scale` must be one of {', '.join(SCALES)}, but got {self.scale!r}.")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"`low > 0` must hold on a log scale, but got low={self.low:g}.")
        if self.scale == "reverse_log" and self.high >= 1:
            raise ValueError(f"`high < 1` must hold on a reverse_log scale, but got high={self.high:g}.")
        if not set(self.hard) <= set(SIDES):
            raise ValueError(f"`hard` must name sides among low and high, but got {list(self.hard)}.")
        if self.integer and (self.scale == "reverse_log" or self.low % 1 or self.high % 1):
            raise ValueError(
                "an `integer` range is linear or log between whole numbers, but got "
                f"low={self.low:g}, high={self.high:g}, scale={self.scale}."
            )

    @classmethod
    def parse(cls, config: Any) -> Dimension:
        """From YAML: a mapping of this class's fields, a list of choices, or one value that fixes the parameter."""
        if finite(config):
            return cls(choices=(float(config),))
        if isinstance(config, str):
            return cls(choices=(config,))
        if isinstance(config, Sequence):
            return cls(choices=tuple(config))
        if not isinstance(config, Mapping):
            raise ValueError(f"must be a range, a list of choices or a number, but got {config!r}.")
        known = {field.name: None for field in fields(cls)}
        for key in config:
            if key not in known:
                raise ValueError(f"unknown key {key!r}{suggest(key, known)}")
        values = dict(config)
        hard = values.get("hard") or ()
        values["hard"] = (hard,) if isinstance(hard, str) else tuple(hard)
        if values.get("choices") is not None:  # choices set on top of a range replace it
            return cls(choices=tuple(values["choices"]))
        return cls(**values)

    @property
    def tuned(self) -> bool:
        """True if the parameter can take more than one value."""
        return self.choices is None or len(self.choices) > 1

    @property
    def ends(self) -> tuple[Any, ...]:
        """Its smallest and its largest value, or its choices."""
        return (self.low, self.high) if self.choices is None else self.choices

    def value(self, unit: float) -> Any:
        """The parameter at `unit` of the scaled range: a number, or the name of a choice.

        Arguments:
            unit: in [0, 1]; beyond for a value outside the range (see `box`).
        """
        if self.choices is not None:
            return self.choices[min(int(unit * len(self.choices)), len(self.choices) - 1)]
        low, high = self._scaled_ends
        value = self._unscaled(low + unit * (high - low))
        value = round(value) if self.integer else value
        assert self.low is not None
        assert self.high is not None
        return min(max(value, self.low), self.high) if 0 <= unit <= 1 else value  # rounding must not leave the range

    def unit(self, value: Any) -> float:
        """The position of `value` in the scaled range, in [0, 1]; for a choice, the middle of its cell."""
        return unit(self.to_dict(), value)

    @property
    def _scaled_ends(self) -> tuple[float, float]:
        """The ends of the range on its scale; an integer range reaches half a unit beyond both ends."""
        assert self.low is not None
        assert self.high is not None
        half = 0.5 if self.integer else 0.0
        return scaled(self.low - half, self.scale), scaled(self.high + half, self.scale)

    def widened(self, side: str, factor: float, legal: Legal) -> Dimension:
        """The range made `factor` times as wide on its scale by moving one side out, to three digits.

        A side stays within the legal interval: it stops at an included end and becomes hard there, or goes half the
        way to an excluded end.
        """
        assert self.low is not None
        assert self.high is not None
        low, high = scaled(self.low, self.scale), scaled(self.high, self.scale)
        out = (factor - 1) * (high - low)
        wanted = self._unscaled(low - out if side == "low" else high + out)
        coarse = 1 - _three_digits(1 - wanted) if self.scale == "reverse_log" else _three_digits(wanted)
        if (
            (coarse < self.low) if side == "low" else (coarse > self.high)
        ):  # otherwise rounding would not widen this side
            wanted = coarse
        if self.integer:
            wanted = math.floor(wanted) if side == "low" else math.ceil(wanted)
        end = self._last(side, legal)
        if (wanted > end) if side == "low" else (wanted < end):
            return self._with_end(side, wanted)
        if end in legal:
            return replace(self._with_end(side, end), hard=(*self.hard, side))
        return self._with_end(side, (getattr(self, side) + end) / 2)

    def box(self, wider: Dimension) -> tuple[float, float]:
        """The positions of the ends of a wider range on this one, a little inside, so that rounding does not leave it.

        Exactly 0 and 1 for the sides that both share.
        """
        if self.choices is not None:
            return 0.0, 1.0
        ends = wider._scaled_ends
        low, high = self._scaled_ends
        first, last = ((end - low) / (high - low) for end in ends)
        return (
            0.0 if wider.low == self.low else first + BOX_MARGIN,
            1.0 if wider.high == self.high else last - BOX_MARGIN,
        )

    def _with_end(self, side: str, value: float) -> Dimension:
        return replace(self, low=value) if side == "low" else replace(self, high=value)

    def hardened(self, legal: Legal) -> Dimension:
        """The same range; sides at the end of the legal interval become hard."""
        if self.choices is not None:
            return self
        ended = [side for side in SIDES if getattr(self, side) == self._last(side, legal)]
        return replace(self, hard=tuple(dict.fromkeys((*self.hard, *ended))))

    def _last(self, side: str, legal: Legal) -> float:
        """The last legal value on this side. For integers it is a whole number, on a log scale at least 1."""
        end = legal.ends[SIDES.index(side)]
        if self.integer and math.isfinite(end):
            whole, inwards = (math.ceil(end), 1) if side == "low" else (math.floor(end), -1)
            end = whole if whole in legal else whole + inwards
        return max(end, 1) if self.integer and (side, self.scale) == ("low", "log") else end

    def _unscaled(self, position: float) -> float:
        if self.scale == "log":
            return math.exp(position)
        return 1 - math.exp(-position) if self.scale == "reverse_log" else position

    def to_dict(self) -> dict[str, Any]:
        """Plain data for study.json; `parse` reads it back."""
        used = ("choices",) if self.choices is not None else ("low", "high", "scale", "hard", "integer")
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items() if key in used}


@dataclass(frozen=True)
class Legal:
    """The interval of values that a parameter accepts, such as `[0, 1)`; every search space lies within it."""

    interval: str

    @property
    def ends(self) -> tuple[float, float]:
        """(low, high), whether or not the interval includes them."""
        low, high = self.interval[1:-1].split(",")
        return float(low), float(high)

    def __contains__(self, value: float) -> bool:
        low, high = self.ends
        above = low <= value if self.interval[0] == "[" else low < value
        below = value <= high if self.interval[-1] == "]" else value < high
        return above and below

    def check(self, name: str, dimension: Dimension) -> None:
        """Raise ValueError if the dimension leaves the interval."""
        for value in dimension.ends:
            if isinstance(value, str):
                raise ValueError(
                    f"search.space.{name} takes numbers in {self.interval}, but got {value!r}; a range is "
                    f"search.space.{name}='{{low: 0.1, high: 0.9}}', and choices are search.space.{name}=[0.1,0.9]."
                )
            if value not in self:
                raise ValueError(f"search.space.{name} must lie in {self.interval}, but got {value:g}.")

    def __and__(self, other: Legal) -> Legal:
        """The values that both accept."""
        lows, highs = zip(*(each.interval.split(", ") for each in (self, other)), strict=True)
        low = max(lows, key=lambda end: (float(end[1:]), end[0] == "("))
        high = min(highs, key=lambda end: (float(end[:-1]), end[-1] == "]"))
        return Legal(f"{low}, {high}")


Space = Mapping[str, Dimension]
"""Parameter name -> its dimension."""
Values = Mapping[str, Any]
"""Parameter name -> its value in one trial: a number, or a name for `schedule`."""


def parse_space(config: Mapping[str, Any]) -> dict[str, Dimension]:
    """Read `search.space`. Raises ValueError, which names the parameter."""
    space = {}
    for name in sorted(config):
        try:
            space[name] = Dimension.parse(config[name])
        except (ValueError, TypeError) as error:
            raise ValueError(f"search.space.{name}: {error}") from error
    return space


def values(space: Space, point: Sequence[float]) -> dict[str, Any]:
    """The hyperparameters at a point [D] of the unit cube, with one coordinate per parameter in sorted order."""
    return {name: space[name].value(unit) for name, unit in zip(sorted(space), point, strict=True)}


def extended(
    space: Space, best: Sequence[Values], factor: float, legal: Callable[[str], Legal]
) -> tuple[dict[str, Dimension], list[Edge]]:
    """The space, `factor` times as wide at its open edges where the best trials lie; and these edges.

    Arguments:
        best: hyperparameters of the best trials, the best first.
        legal: parameter -> the values that it accepts.
    """
    found = open_edges({name: dimension.to_dict() for name, dimension in space.items()}, best)
    wider = dict(space)
    for name, side, *_ in found:
        wider[name] = wider[name].widened(side, factor, legal(name))
    return wider, found


def middle(space: Space) -> dict[str, Any]:
    """The hyperparameters in the middle of every scale, for checks that train a few steps outside any trial."""
    return values(space, [0.5] * len(space))


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def finite(value: Any) -> TypeGuard[float]:
    """True for a finite number; False for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
