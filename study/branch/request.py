"""What a branched measurement asks for: settings such as `checkpoints=[200,800] rule=square_root`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import yaml

from analysis.labels import listed
from analysis.units import sequences, tokens_in
from study.errors import UsageError, usage_errors
from study.search.transfer_rules import usual
from workloads.suggest import suggest

RULES = {"constant": 0.0, "square_root": 0.5, "linear": 1.0}
"""Rule -> p: at k times the trunk's batch size, its learning rate is multiplied by k^p."""
AUTO = "auto"
LEAST_STEPS = 16
"""Steps at the largest batch size in a window of the usual length."""


@dataclass(frozen=True)
class BranchRequest:
    """The settings of a branched measurement.

    Attributes:
        checkpoints: steps of the trunk to branch from; or their number, spread evenly over its recorded evaluations up
            to the goal.
        multiples: k, the batch sizes of the branches as multiples of that of the trunk; 1 is the one to compare with.
        window: examples that every branch trains on, or text such as `1M tokens`; None: LEAST_STEPS steps at the
            largest batch size.
        rule: how the learning rate follows the batch size, a name in RULES, or AUTO.
        factors: further factors on the learning rate; at each batch size, the one with the least loss counts.
        tolerance: the share of the small batch's loss that a larger batch may lose.
        seeds: branches of each kind, with different orders of the examples.
    """

    checkpoints: int | tuple[int, ...] = 4
    multiples: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    window: int | str | None = None
    rule: str = AUTO
    factors: tuple[float, ...] = (1.0,)
    tolerance: float = 0.01
    seeds: int = 4

    def __post_init__(self) -> None:
        _whole("checkpoints", self.checkpoints, 1 if isinstance(self.checkpoints, int) else 0)
        _whole("multiples", self.multiples, 1)
        _whole("seeds", self.seeds, 2)  # one has no interval
        if isinstance(self.window, str) and tokens_in(self.window) is None:
            raise UsageError(
                f"window must be a number of examples, or text such as '1M tokens', but got {self.window}."
            )
        if self.window is not None and not isinstance(self.window, str):
            _whole("window", self.window, 1)
        if self.rule not in (AUTO, *RULES):
            raise UsageError(f"unknown rule {self.rule!r}{suggest(str(self.rule), (AUTO, *RULES))}")
        for name, values in (("factors", self.factors), ("tolerance", (self.tolerance,))):
            if not values or not all(isinstance(each, float) and 0 < each < float("inf") for each in values):
                raise UsageError(f"{name} must be above 0, but got {listed(values)}.")
        for name in ("checkpoints", "multiples", "factors"):
            several = getattr(self, name)
            if isinstance(several, tuple) and list(several) != sorted({*several}):
                raise UsageError(f"{name} must increase, but got {list(several)}.")
        if self.multiples[:1] != (1,) or len(self.multiples) < 2:
            raise UsageError(
                "multiples must be 1, the trunk's own batch size, and larger ones, such as [1,2,4,8], but got "
                f"{list(self.multiples)}."
            )

    def rule_of(self, optimizer: str) -> str:
        """The rule for an optimizer: a name in RULES."""
        return self.rule if self.rule != AUTO else usual(optimizer)

    def batch_sizes(self, smallest: int, train_examples: int) -> list[int]:
        """The batch sizes of the branches. Raises UsageError if one is larger than the training set."""
        fit = [multiple for multiple in self.multiples if smallest * multiple <= train_examples]
        if len(fit) < len(self.multiples):
            raise UsageError(
                f"{self.multiples[-1]} times batch size {smallest:,} is more than the {train_examples:,} training "
                f"examples; give multiples=[{','.join(map(str, fit))}] or branch from a smaller batch size."
            )
        return [smallest * multiple for multiple in self.multiples]

    def examples(self, sizes: Sequence[int], tokens_per_example: int | None, name: str) -> int:
        """The examples of the window.

        Arguments:
            sizes: the batch sizes of the branches.
            name: of the workload.

        Raises:
            UsageError: they are no whole number of steps at every batch size, or no whole number of sequences.
        """
        common = math.lcm(*sizes)
        window = -(-LEAST_STEPS * sizes[-1] // common) * common if self.window is None else self.window
        if isinstance(window, str):
            tokens = tokens_in(window)
            assert tokens is not None
            with usage_errors():
                window = sequences(f"window={window}", tokens, tokens_per_example, name)
        uneven = [size for size in sizes if window % size]
        if uneven:
            raise UsageError(
                f"a window of {window:,} examples is no whole number of steps at batch size {listed(uneven, 'or')}; "
                f"give a multiple of every batch size, such as window={-(-window // common) * common}."
            )
        return window


KEYS = tuple(field.name for field in fields(BranchRequest))


def parsed(words: Sequence[str]) -> tuple[BranchRequest, list[str]]:
    """(the settings of the measurement among these words, all other words).

    >>> request, others = parsed(["checkpoints=[100,200]", "optimizer=sgd", "factors=[0.5,1]"])
    >>> request.checkpoints, request.factors, others
    ((100, 200), (0.5, 1.0), ['optimizer=sgd'])
    """
    given: dict[str, Any] = {}
    others = []
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or key not in KEYS:
            others.append(word)
        elif key in given:
            raise UsageError(f"{key} is given twice; give it once.")
        else:
            given[key] = _value(key, text)
    return BranchRequest(**given), others


def _value(key: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{key}={text} cannot be read; lists have brackets, such as {key}=[1,2].") from error
    if key in ("factors", "multiples") and not isinstance(value, list):
        value = [value]
    of_type = _real if key in ("factors", "tolerance") else _count
    return tuple(map(of_type, value)) if isinstance(value, list) else of_type(value)


def _real(value: Any) -> Any:
    try:
        return float(value)  # YAML reads 1e-2 as text
    except (TypeError, ValueError):
        return value


def _count(value: Any) -> Any:
    """A whole number that may be written as 1e6; anything else as it is."""
    number = _real(value)
    return int(number) if isinstance(number, float) and number.is_integer() else value


def _whole(name: str, value: Any, least: int) -> None:
    """Raise UsageError unless the value, or each of a tuple, is a whole number of at least `least`."""
    for each in value if isinstance(value, tuple) else (value,):
        if not isinstance(each, int) or isinstance(each, bool) or each < least:
            raise UsageError(f"{name} must be at least {least} and whole, but got {each!r}.")
