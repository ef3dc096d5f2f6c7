"""Write numbers, durations, goals and lists for people, the same way everywhere. Standard library only."""

import re
import signal
from collections.abc import Callable, Iterable, Mapping
from math import floor, isinf, isnan, log10
from numbers import Integral
from typing import Any

SPLITS = {"val": "validation", "train": "training", "test": "test"}
ERRORS = {"classification_error": "error", "cross_entropy_error": "cross entropy"}
OPTIMIZERS = {
    **{"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "nadam": "NAdam", "rmsprop": "RMSProp", "lars": "LARS"},
    **{"lamb": "LAMB", "lion": "Lion", "kfac": "K-FAC", "soap": "SOAP", "muon": "Muon", "momentum": "Momentum"},
    **{"nesterov": "Nesterov", "folded_momentum": "Folded momentum", "unknown": "Unnamed optimizer"},
}
"""Optimizer -> its name in the literature; imported runs that name none have `unknown`."""
TIMEOUT = "timeout"
"""Why a command was stopped that hung."""
BOUNDS = {"=": "", ">": "≥ ", "<": "≤ "}
"""Bound -> its prefix before a number in a table."""
BOUNDS_IN_WORDS = {"=": "", ">": "at least ", "<": "at most "}
SYMBOLS = r"B_n|eps_max"
"""Symbols of formulas, whose underscore stands for a subscript."""


def column_text(name: str) -> str:
    """The name of a column as people read it: spaces for underscores, but not within a symbol.

    >>> column_text("batch_size"), column_text("B_n, log space"), column_text("steps_max")
    ('batch size', 'B_n, log space', 'steps max')
    """
    return re.sub(rf"\b({SYMBOLS})\b|_", lambda found: found[1] or " ", name)


def number(value: float) -> str:
    """Whole numbers in full, others to three digits.

    >>> number(1725), number(999.7), number(0.02134), number(0.9987), number(0.0000123), number(0.0)
    ('1,725', '1,000', '0.0213', '0.999', '1.23e-05', '0')
    """
    if isinstance(value, Integral) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


def within(low: float, high: float, text: Callable[[float], str] = number) -> str:
    """The ends of an interval of positive numbers; 0 and infinity are open ends.

    Arguments:
        text: writes an end.

    >>> within(60.75, 128), within(0, 128), within(60.75, float("inf")), within(0, float("inf"))
    ('60.8 to 128', 'below 128', 'above 60.8', 'open')
    """
    if isinf(high):
        return f"above {text(low)}" if low > 0 else "open"
    return f"below {text(high)}" if low <= 0 else f"{text(low)} to {text(high)}"


def size_text(value: float) -> str:
    """A batch size; one that was not measured has two digits.

    >>> size_text(61.9), size_text(4.3134)
    ('62', '4.3')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def interval_text(low: float, high: float, text: Callable[[float], str] = size_text) -> str:
    """An interval of positive numbers as text; empty if it is unknown or open on both sides.

    >>> [interval_text(*ends) for ends in ((45.8, 83.7), (170.2, float("inf")), (0.0, 64.0), (float("nan"),) * 2)]
    ['46 to 84', 'above 170', 'below 64', '']
    """
    return "" if isnan(low) or (low <= 0 and isinf(high)) else within(low, high, text)


def with_interval(value: float, low: float, high: float, text: Callable[[float], str] = number) -> str:
    """A value and its interval in brackets; the value alone if its interval is unknown.

    >>> with_interval(81.97, 60.75, 127.9), with_interval(81.97, float("nan"), float("nan"))
    ('82.0 (60.8 to 128)', '82.0')
    """
    return text(value) if isnan(low) else f"{text(value)} ({text(low)} to {text(high)})"


def value_text(value: float | str) -> str:
    """The value of a tuned parameter: a number, or a name such as that of a schedule.

    From 0.9 to 1 it has two digits of 1 - value, on which a momentum acts: 0.9987, not 0.999.

    >>> value_text(0.02134), value_text(0.9987), value_text("cosine")
    ('0.0213', '0.9987', 'cosine')
    """
    if isinstance(value, str):
        return value
    return f"{value:.{1 - floor(log10(1 - value))}f}".rstrip("0") if 0.9 < value < 1 else number(value)


def short_count(count: float) -> str:
    """A large count with a unit: two digits, or three from 100 units on.

    >>> short_count(4_096_000), short_count(900)
    ('4.1 M', '900')
    """
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:,.2g}{unit}" if count < 99.5 * size else f"{count / size:,.0f}{unit}"
    return f"{count:,.0f}"


def percent(share: float) -> str:
    """A share in percent: two digits below 10 %, so that none but 0 looks like 0, and rounded down near 100 %.

    >>> percent(0.002), percent(0.15), percent(0.6105), percent(0.9997), percent(1.0)
    ('0.2%', '15%', '61%', '99.9%', '100%')
    """
    if 0.995 <= share < 1:
        return f"{floor(1000 * share) / 10:g}%"
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.2g}%"


def duration(seconds: float) -> str:
    """A duration [seconds] with three digits or two units.

    >>> duration(3.2e-6), duration(0.0412), duration(245), duration(7500)
    ('3.2 µs', '41.2 ms', '4 min 05 s', '2 h 05 min')
    """
    if seconds < 59.95:
        units = {1e-6: "µs", 1e-3: "ms", 1.0: "s"}
        size = next(size for size in units if seconds < 999.5 * size)
        return f"{seconds / size:.3g} {units[size]}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min"


def rough(seconds: float, short: bool = False) -> str:
    """An estimated duration [seconds], with no more digits than are known of a time left or of a cost.

    Arguments:
        short: for a table.

    >>> rough(2.5e-8), rough(2.5e-8, short=True), rough(5.55), rough(133), rough(2713), rough(9000), rough(1e6)
    ('less than a second', '< 1 s', '6 s', '2 min 10 s', '45 min', '2 h 30 min', '278 h')
    """
    if seconds < 1:
        return "< 1 s" if short else "less than a second"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 3570:
        minutes, tens = divmod(round(seconds / 10), 6)
        return f"{minutes} min {10 * tens} s" if minutes < 10 and tens else f"{seconds / 60:.0f} min"
    hours, tens = divmod(round(seconds / 600), 6)
    return f"{hours} h {10 * tens} min" if hours < 10 and tens else f"{seconds / 3600:,.0f} h"


def about(seconds: float) -> str:
    """An estimated duration [seconds] in a sentence.

    >>> about(0.2), about(45)
    ('less than a second', 'about 45 s')
    """
    return rough(seconds) if seconds < 1 else f"about {rough(seconds)}"


def exit_text(status: int) -> str:
    """The exit status of a command; below 0: the number of the signal that ended it.

    >>> exit_text(1), exit_text(-9)
    ('ended with exit status 1', 'was ended by SIGKILL')
    """
    return f"ended with exit status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


def failed(ended: Mapping[str, Any]) -> bool:
    """Whether a command failed, by the record of its end (docs/reference/format.md); one that was stopped did not.

    >>> failed({"status": 1, "stopped": ""}), failed({"status": -15, "stopped": "goal"})
    (True, False)
    """
    return bool(ended["stopped"] == TIMEOUT or (ended["status"] and not ended["stopped"]))


def end_text(ended: Mapping[str, Any]) -> str:
    """How a command that failed ended. Shells add 128 to the number of the signal that ended a script.

    >>> end_text({"status": 137, "stopped": ""})
    'ended with exit status 137 (perhaps memory ran out)'
    >>> end_text({"status": -15, "stopped": "timeout"}), end_text({"status": 2, "stopped": ""})
    ('was ended because it wrote no new metrics for too long', 'ended with exit status 2')
    """
    silent = "was ended because it wrote no new metrics for too long"
    killed = ended["status"] in (-signal.SIGKILL, 128 + signal.SIGKILL)
    why = " (perhaps memory ran out)" if killed else ""
    return silent if ended.get("stopped") == TIMEOUT else f"{exit_text(ended['status'])}{why}"


def metric_text(metric: str) -> str:
    """The name of a metric; an unknown metric keeps its own name.

    >>> metric_text("val/classification_error"), metric_text("train/cross_entropy_error"), metric_text("perplexity")
    ('validation error', 'training cross entropy', 'perplexity')
    """
    split, _, error = metric.rpartition("/")
    return f"{SPLITS[split]} {ERRORS.get(error, error.replace('_', ' '))}" if split in SPLITS else metric


def optimizer_text(name: str) -> str:
    """The name of an optimizer in a heading; an unknown one keeps its own name.

    >>> optimizer_text("sgd"), optimizer_text("torch.optim.RAdam")
    ('SGD', 'torch.optim.RAdam')
    """
    return OPTIMIZERS.get(name, name)


def goal_text(metric: str, threshold: float) -> str:
    """A goal: the metric and the threshold that it must fall below.

    >>> goal_text("val/classification_error", 0.05)
    'validation error < 0.05'
    """
    return f"{metric_text(metric)} < {threshold:.10g}"  # not the last digits, which are noise in 1 - 0.9


def curve_text(workload: str, optimizer: str, metric: str, threshold: float) -> str:
    """The name of a curve: workload, optimizer and goal.

    >>> curve_text("digits", "sgd", "val/classification_error", 0.05)
    'digits with sgd to validation error < 0.05'
    """
    return f"{workload} with {optimizer} to {goal_text(metric, threshold)}"


def bounded(value: float, bound: str) -> str:
    """A batch size in a sentence, or a bound on it.

    >>> bounded(1024.0, ">")
    'at least 1,024'
    """
    return f"{BOUNDS_IN_WORDS[bound]}{value:,.0f}"


def listed(values: Iterable[object], last: str = "and", most: int | None = None) -> str:
    """Values in a sentence; whole numbers with thousands separated.

    Arguments:
        most: of more values, only the first ones are named, and the number of the others.

    >>> listed([64]), listed([64, 128, 1024]), listed(["sgd", "adam"], "or"), listed("abcde", most=3)
    ('64', '64, 128 and 1,024', 'sgd or adam', 'a, b, c and 2 more')
    """
    texts = [f"{value:,}" if isinstance(value, Integral) else str(value) for value in values]
    if most is not None and len(texts) > most:
        texts[most:] = [f"{len(texts) - most:,} more"]
    return f" {last} ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)


def batch_sizes(sizes: Iterable[int]) -> str:
    """Batch sizes in a sentence.

    >>> batch_sizes([64]), batch_sizes([8, 1024])
    ('batch size 64', 'batch sizes 8 and 1,024')
    """
    sizes = list(sizes)
    return f"batch size{'' if len(sizes) == 1 else 's'} {listed(sizes)}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count and its noun, singular or plural.

    >>> counted(1, "trial"), counted(1200, "trial"), counted(2, "search", "searches")
    ('1 trial', '1,200 trials', '2 searches')
    """
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
