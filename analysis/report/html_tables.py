"""Tables as a page shows them: numbers for people, goals in words, a bound beside its value; sortable by a key."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import Any

import numpy as np
import pandas as pd

from analysis.figures import goal_text
from analysis.figures.scaling import BOUNDS, LIMITS
from analysis.load import STUDY
from analysis.tables.transfer import briefly

DASH = "–"
USUAL = {"repeat": 0, "budget_multiple": 1.0, "stage": 0}
STATUSES = ["complete", "infeasible", "incomplete"]
SAID_ONCE = ("workload", "optimizer", "goal", "stopping", "base_batch_size", "device")
"""Columns that go into the caption where all rows have the same."""
HEADERS = {
    "steps_to_result": "steps to goal",
    "examples_to_result": "examples to goal",
    "train_steps": "step budget",
    "seconds_training": "training time",
    "seconds_evaluation": "evaluation time",
    "seconds_per_step": "time per step",
    "evaluation_share": "time spent evaluating",
    "log_error": "standard error of its log",
    "information": "AICc",
}
DEFINITIONS = {
    **{name: label for name, (label, _) in LIMITS.items()},
    "critical_batch_size_mccandlish": "critical batch size, McCandlish et al. 2018 (hyperbola)",
    "critical_batch_size_shoulder": "critical batch size, sharp shoulder",
    "critical_batch_size_zhang": "critical batch size, Zhang et al. 2024",
}
"""What limits of scaling are called."""


@dataclass(frozen=True)
class Cell:
    """A cell as it is shown and the number it is sorted by; NaN is sorted last."""

    text: str
    key: float | None = None


def sections(tables: Mapping[str, pd.DataFrame]) -> str:
    """A table for each workload and goal, as the figures have panels; columns without any value are left out.

    >>> from analysis.report.build import Asked, tables
    >>> from analysis.load import load_study
    >>> studies = [load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")]
    >>> found = sections(tables(studies, studies, Asked()))
    >>> found.count("<table>"), "Table 1. Steps to result." in found
    (5, True)
    """
    if not tables:
        return ""
    steps, scaling = _with_goal(tables["steps_to_result"]), _with_goal(tables["scaling"])
    names = [name for name in ("workload", "optimizer", "goal", "batch_size") if name in steps]
    counts = [status for status in STATUSES if status in steps]
    shown = [
        *(("Steps to result", _steps_shown(part)) for part in _parts(steps.drop(columns=counts))),
        *([("Limits of scaling", _scaling_shown(scaling))] if len(scaling) else []),
        *(("Fits of steps to result", part) for part in _parts(_with_goal(tables["fits"]))),
        *(("Optimizers compared", _pairs_shown(part)) for part in _parts(_with_goal(tables["compare"]))),
        *(
            ("Workloads compared", _pairs_shown(part))
            for part in _parts(_with_goal(tables["compare_workloads"]), "optimizer")
        ),
        *(("Trials by status", part) for part in _parts(steps[[*names, *counts]])),
        *(("What was searched", _boxes_shown(part)) for part in _parts(tables["searches"])),
        *(("All searches", _steps_shown(part)) for part in _parts(_with_goal(tables["searches"])) if _several(part)),
        *(("The search repeated with other seeds", part) for part in _parts(_with_goal(tables["repeats"]))),
        *(("The tuned configurations with fresh seeds", part) for part in _parts(_with_goal(tables["reruns"]))),
        *(("Rules against tuning", part) for part in _rules_shown(_with_goal(tables["rules"]))),
        *(("Cost", part) for part in _parts(tables["cost"])),
    ]
    return "".join(
        table_html(table.dropna(axis=1, how="all"), f"Table {number}. {title}.")
        for number, (title, table) in enumerate(shown, 1)
    )


def _interval_shown(value: float, low: float, high: float, censored_at: float) -> Cell | None:
    """A value with its interval in brackets; what is infinite is known to be more than trials without the goal ran."""
    if pd.isna(value):
        return None
    if np.isinf(low):
        return Cell("not reached", np.inf)
    if np.isnan(low):
        return Cell(number(value), value)
    beyond = "…" if pd.isna(censored_at) else f"> {number(censored_at)}"
    shown, top = (beyond if np.isinf(end) else number(end) for end in (value, high))
    return Cell(f"{shown} ({number(low)} to {top})", value)


def _times_shown(value: float, low: float, high: float) -> Cell | None:
    """How many times, with the interval in brackets where there is one."""
    if pd.isna(value):
        return None
    return Cell(_times(value) + ("" if pd.isna(low) else f" ({_times(low)} to {_times(high)})"), value)


def _pairs_shown(pairs: pd.DataFrame) -> pd.DataFrame:
    """How many times fewer steps an optimizer needs than the other, with the interval."""
    rows = zip(pairs["speed_up"], pairs["low"], pairs["high"], strict=True)
    shown = [_times_shown(*each) for each in rows]
    shown = pd.Series(shown, pairs.index, dtype=object)
    return pairs.drop(columns=["speed_up", "low", "high"]).assign(**{"times fewer steps": shown})


def _rules_shown(rules: pd.DataFrame) -> list[pd.DataFrame]:
    """A table a curve and base: each value with its interval, and how many of the seeds missed the goal."""
    names = ["workload", "optimizer", "goal", "base_batch_size"]
    return [_base_shown(part, names) for _, part in rules.groupby(names, sort=False)] if len(rules) else []


def _base_shown(rules: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    def interval(*columns: str) -> pd.Series:
        rows = rules[list(columns)].itertuples(index=False)
        shown = [_times_shown(*each) for each in rows]
        return pd.Series(shown, rules.index, dtype=object)

    counts = rules[["missed", "seeds", "missed_low", "missed_high"]].itertuples(index=False)
    missed = [Cell(f"{m} of {n} ({a:.0%} to {b:.0%})", m / n) for m, n, a, b in counts]
    columns = {
        **{name: rules[name] for name in names},
        "rule": [
            briefly(rule).replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")
            for rule in rules["rule"]
        ],
        "batch_size": rules["batch_size"],
        "learning_rate": rules["learning_rate"],
        "steps": interval("steps", "low", "high"),
        "goal missed": pd.Series(missed, rules.index, dtype=object),
        "times the tuned steps": interval("steps_lost", "lost_low", "lost_high"),
        "tuned_learning_rate": rules["tuned_learning_rate"],
        "tuned_steps": rules["tuned_steps"],
        "S(B)": rules["steps_to_result"],
    }
    return pd.DataFrame(columns)


def _times(value: float) -> str:
    return "∞" if np.isinf(value) else number(value)


def _several(searches: pd.DataFrame) -> bool:
    """Whether any study was searched more than once."""
    return bool(searches.duplicated(STUDY).any())


def _boxes_shown(searches: pd.DataFrame) -> pd.DataFrame:
    """The boxes that were searched, each once, with the batch sizes at which it was."""
    searched = [name for name in searches if str(name).startswith("searched_")]
    groups = searches.groupby(["workload", "optimizer", "stage", *searched], sort=False, dropna=False)
    boxes = groups["batch_size"].agg(lambda sizes: ", ".join(map(str, dict.fromkeys(sizes)))).reset_index()
    boxes = boxes.rename(columns={name: str(name).removeprefix("searched_") for name in searched})
    return _usual_dropped(boxes.rename(columns={"batch_size": "batch sizes"}))


def _usual_dropped(table: pd.DataFrame) -> pd.DataFrame:
    """Without columns that hold what they nearly always do: said only where it is worth saying."""
    return table.drop(columns=[name for name, usual in USUAL.items() if name in table and (table[name] == usual).all()])


def _parts(table: pd.DataFrame, by: str = "workload") -> list[pd.DataFrame]:
    names = [name for name in (by, "goal") if name in table]
    return [part for _, part in table.groupby(names, sort=False)] if len(table) else []


def _with_goal(table: pd.DataFrame) -> pd.DataFrame:
    """One column for the goal, in words, instead of its metric and threshold."""
    if not {"goal_metric", "goal_threshold"} <= set(table):
        return table
    goals = [goal_text(*pair) for pair in zip(table["goal_metric"], table["goal_threshold"], strict=True)]
    return table.assign(goal=goals).drop(columns=["goal_metric", "goal_threshold"])


def _steps_shown(steps: pd.DataFrame) -> pd.DataFrame:
    """A study without a result says so in words, and is sorted after every number."""
    steps = _usual_dropped(steps.drop(columns=[name for name in steps if str(name).startswith("searched_")]))
    if "steps_n" in steps:
        interval = ["steps_n", "low", "high", "censored_at"]
        columns = (steps[name] for name in interval)
        sure = [_interval_shown(*row) for row in zip(*columns, strict=True)]
        at = steps.columns.get_loc("steps_n")
        steps = steps.drop(columns=interval)
        steps.insert(at, "median best of N/4 trials", pd.Series(sure, steps.index, dtype=object))
    pairs = zip(steps["steps_to_result"], steps["reached"], strict=True)
    cells = [value if reached else Cell("not reached", np.inf) for value, reached in pairs]
    return steps.assign(steps_to_result=pd.Series(cells, steps.index, dtype=object)).drop(columns="reached")


def _scaling_shown(scaling: pd.DataFrame) -> pd.DataFrame:
    """Bounds beside their values, definitions in words, the interval where there is one."""
    shown = scaling.drop(columns=["value", "bound", "low", "high"], errors="ignore")
    shown["definition"] = [DEFINITIONS.get(d, d.replace("_", " ")) for d in scaling["definition"]]
    pairs = zip(scaling["value"], scaling["bound"], strict=True)
    limits = [None if pd.isna(v) else Cell(BOUNDS[bound] + number(v), v) for v, bound in pairs]
    shown["batch size (examples)"] = pd.Series(limits, scaling.index, dtype=object)
    if "low" in scaling and scaling["low"].notna().any():
        pairs = zip(scaling["low"], scaling["high"], strict=True)
        shown["95 % interval"] = [None if pd.isna(a) else f"{number(a)} to {number(b)}" for a, b in pairs]
    return shown


def table_html(table: pd.DataFrame, title: str) -> str:
    """A table that can be sorted and scrolls by itself; names the same in all rows go into the caption.

    >>> shown = table_html(pd.DataFrame({"optimizer": ["sgd", "sgd"], "steps_to_result": [1725, 24]}), "Table 1.")
    >>> "optimizer sgd" in shown, "steps to goal" in shown, "1,725" in shown
    (True, True, True)
    """
    same = [name for name in SAID_ONCE if name in table and table[name].nunique() == 1]
    facts = [f"{header(name)} {html.escape(str(table[name].iloc[0]))}" for name in same]
    heads, columns = "", []
    for name in table.columns.drop(same):
        cells = [_cell(value, str(name)) for value in table[name]]
        align = ' class="n"' if any(cell.key is not None for cell in cells) else ""
        heads += f'<th scope="col"{align}><button>{header(name)}</button></th>'
        columns.append([f"<td{align}{_key(cell)}>{html.escape(cell.text)}</td>" for cell in cells])
    rows = "".join(f"<tr>{''.join(row)}</tr>\n" for row in zip(*columns, strict=True))
    caption = f"<b>{html.escape(title)}</b> {' · '.join(facts)}".strip()
    return (
        f'<figure class="table"><figcaption>{caption}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(title)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div></figure>\n"
    )


def header(name: Any) -> str:
    """What a column is called, escaped.

    >>> header("steps_to_result"), header("batch_size")
    ('steps to goal', 'batch size')
    """
    return html.escape(HEADERS.get(str(name), str(name).replace("_", " ")))


def _key(cell: Cell) -> str:
    """What the page's script sorts by; a number as it is, nothing where there is none."""
    if cell.text == DASH:
        return ' data-key=""'
    return "" if cell.key is None else f' data-key="{str(cell.key).replace("inf", "Infinity")}"'


def _cell(value: Any, column: str) -> Cell:
    """A value for people: 1,725; 0.0213; 2 h 05 min; a dash for nothing."""
    if isinstance(value, Cell):
        return value
    if pd.isna(value):
        return Cell(DASH)
    if isinstance(value, bool | np.bool_):
        return Cell("yes" if value else "no")
    if isinstance(value, str):
        return Cell(value)
    if value == np.inf:  # steps to a goal, or what no data bound
        return Cell("∞" if column == "log_error" else "not reached", value)
    if column.startswith("seconds_"):
        return Cell(duration(float(value)), float(value))
    if column.endswith("_share"):
        return Cell(f"{value:.1%}", float(value))
    return Cell(number(value), float(value))


def number(value: float) -> str:
    """Whole numbers in full, others to three digits; just below 1 the digits count from 1: 0.9987, not 0.999.

    >>> number(1725), number(999.7), number(0.02134), number(0.9987), number(0.0000123)
    ('1,725', '1,000', '0.0213', '0.9987', '1.23e-05')
    """
    if isinstance(value, int | np.integer) or (float(value).is_integer() and abs(value) >= 1):
        return f"{int(value):,}"
    if 0.9 < value < 1:
        return f"{value:.{1 - floor(log10(1 - value))}f}".rstrip("0")
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


def duration(seconds: float) -> str:
    """Seconds as a person reads them, in three digits or two units.

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
