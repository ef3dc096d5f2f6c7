"""Tables of the page on how well S(B) is known, and on what the same trials say of the search space and other goals."""

import numpy as np
import pandas as pd

from analysis.branched.table import rule_in_words
from analysis.labels import metric_text, number, percent, with_interval, within
from analysis.report.table import Cell, bounded, open_ends, with_cells, with_goal


def goals_shown(table: pd.DataFrame) -> pd.DataFrame:
    """Critical batch sizes with their bounds and intervals; none where trials answer one goal alone.

    Arguments:
        table: from `analysis.estimates.by_goal.table`.

    >>> found = goals_shown(pd.read_csv(f"{published}/tables/critical_by_goal.csv"))
    >>> [each.text for each in found[found["recorded"]]["95 % interval"]]  # of momentum and of SGD
    ['46.5 to 90.7', '25.2 to 43.4']
    """
    table = with_goal(table)
    table = table[table.groupby(["workload", "optimizer"])["goal"].transform("size") > 1]
    names = table[["workload", "optimizer"]].assign(**{"to reach": table["goal"], "recorded": table["recorded"]})
    cells = {
        "critical batch size": bounded(table, "critical_batch_size", "bound"),
        "95 % interval": open_ends(table, "low", "high"),
        "fewest trials": table["fewest_trials"],
    }
    return with_cells(names, cells)


def tunability_shown(table: pd.DataFrame) -> pd.DataFrame:
    """Shares with their interval in one cell.

    Arguments:
        table: from `analysis.estimates.landscape.table`.

    >>> found = tunability_shown(pd.read_csv(f"{published}/tables/tunability.csv"))
    >>> found.columns[-2:].tolist()
    ['within 1.2 times of the best', 'minimum of the model (steps)']
    """
    table = with_goal(table)
    rows = table[["share", "share_low", "share_high"]].itertuples(index=False)
    cells = [Cell(with_interval(share, low, high, "{:.1%}".format), share) for share, low, high in rows]
    names = ["workload", "optimizer", "goal", "batch_size", "sampler", "trials"]
    shares = {"within 1.2 times of the best": cells, "minimum of the model (steps)": table["model_steps"]}
    return with_cells(table[names], shares)


def budget_shown(table: pd.DataFrame) -> pd.DataFrame:
    """Errors at the largest budget of each curve of several batch sizes, with their intervals.

    Arguments:
        table: from `analysis.estimates.at_budget.table`.

    >>> rows = {"workload": "mine", "optimizer": "adam", "goal_metric": "val/cross_entropy_error", "examples": 1000,
    ...     "batch_size": [8, 16], "error": [2.04, 2.1], "low": 1.9, "high": 2.2, "within": [True, False],
    ...     "tolerance": 0.01}
    >>> found = budget_shown(pd.DataFrame(rows))
    >>> found["validation cross entropy"][0].text, found["within 1% of the best"].tolist()
    ('2.04 (1.90 to 2.20)', [True, False])
    """
    curve = table.groupby(["workload", "optimizer"], sort=False)
    several = curve["batch_size"].transform("nunique") > 1
    table = table[several & (curve["examples"].transform("max") == table["examples"])]
    if table.empty:
        return table
    names = [name for name in ("workload", "optimizer", "examples", "tokens", "batch_size") if name in table]
    near = f"within {percent(table['tolerance'].iloc[0])} of the best"
    found = table[names].assign(**{near: table["within"].astype(bool)})

    def text(value: float) -> str:
        return "…" if np.isinf(value) else number(value)

    for metric, part in table.groupby("goal_metric", sort=False):
        cells = [
            None if pd.isna(v) else Cell(with_interval(v, a, b, text), v)
            for v, a, b in part[["error", "low", "high"]].itertuples(index=False)
        ]
        found[metric_text(str(metric))] = pd.Series(cells, part.index, dtype=object)
    return found[[*names, *found.columns[len(names) + 1 :], near]]


def split_shown(split: pd.DataFrame) -> pd.DataFrame:
    """The parts of the error of S(B) as percentages of the steps; a shortfall goes one way.

    Arguments:
        split: from `analysis.estimates.split.table`.

    >>> found = split_shown(pd.read_csv(f"{published}/tables/split.csv"))
    >>> found["noise of the median"][0].text, found["shortfall of tuning, 95 %"][0].text
    ('±12%', '+8% (at most +28%)')
    """
    split = with_goal(split)
    ends = ["no upper end" if np.isinf(high) else f"at most +{np.expm1(high):.0%}" for high in split["shortfall_high"]]
    shortfall = [
        None if pd.isna(value) else Cell(f"+{np.expm1(value):.0%} ({end})", value)
        for value, end in zip(split["shortfall"], ends, strict=True)
    ]
    columns = {
        "noise of one seed": [_either_way(value) for value in split["seed_sd"]],
        "noise of the median": [_either_way(value) for value in split["seed_error"]],
        "shortfall of tuning, 95 %": shortfall,
        "tuned / S(B)": split["luck"],
        "least": split["luck_least"],
        "greatest": split["luck_greatest"],
    }
    return with_cells(split[["workload", "optimizer", "goal", "batch_sizes", "seeds"]], columns)


def _either_way(log_error: float) -> Cell | None:
    return None if pd.isna(log_error) else Cell(f"±{np.expm1(log_error):.0%}", log_error)


def branched_shown(table: pd.DataFrame) -> pd.DataFrame:
    """Critical batch sizes by branches, with bound and interval.

    Arguments:
        table: `branched` from `analysis.branched.table.tables`.

    >>> row = {"workload": "mine", "optimizer": "sgd", "batch_size": 8, "examples_seen": 800, "bound": "=", "seeds": 4,
    ...     "critical_batch_size": 32, "low": 16.0, "high": 64.0, "rule": "linear", "factors": "1", "window": 4096,
    ...     "tolerance": 0.01, "loss_at_start": 0.5, "loss": 0.4}
    >>> found = branched_shown(pd.DataFrame([row]))
    >>> found["critical batch size"][0].text, found["95 % interval"][0].text, found["learning rate"][0]
    ('32', '16 to 64', 'linear')
    """
    names = table[["workload", "optimizer", "batch_size", "examples_seen"]].rename(
        columns={"batch_size": "branched from"}
    )
    cells = {
        "critical batch size": bounded(table, "critical_batch_size", "bound"),
        "95 % interval": open_ends(table, "low", "high"),
        "loss at the checkpoint": table["loss_at_start"],
        "loss after the window": table["loss"],
        "learning rate": [rule_in_words(row) for row in table.to_dict("records")],
        "window": table["window"],
        "tolerance": [f"{value:.1%}" for value in table["tolerance"]],
        "seeds": table["seeds"],
    }
    return with_cells(names, cells)


def proxies_shown(table: pd.DataFrame) -> pd.DataFrame:
    """Proxies of the critical batch size, each with its ratio to the measured one.

    Arguments:
        table: from `analysis.proxies.table.table`.

    >>> row = {"workload": "mine", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.1, "step": 90,
    ...     "proxy": "gradient noise scale", "batch_size": 8, "value": 30.0, "low": 20.0, "high": 45.0, "bound": "=",
    ...     "measured": 40.0, "measured_low": 32.0, "measured_high": 50.0, "measured_bound": "=", "ratio": 0.75,
    ...     "ratio_low": 0.48, "ratio_high": 1.2}
    >>> found = proxies_shown(pd.DataFrame([row])).iloc[0]
    >>> found["batch size"].text, found["times the measured"].text, found["its interval"].text
    ('30', '0.750 (0.480 to 1.20)', '32 to 50')
    """
    table = with_goal(table)
    ratios = [
        None if pd.isna(ratio) else Cell(f"{ratio:.3g}" if pd.isna(low) else _ratio(ratio, low, high), ratio)
        for ratio, low, high in table[["ratio", "ratio_low", "ratio_high"]].itertuples(index=False)
    ]
    cells = {
        "batch size": bounded(table, "value", "bound"),
        "95 % interval": open_ends(table, "low", "high"),
        "times the measured": ratios,
        "measured by steps": bounded(table, "measured", "measured_bound"),
        "its interval": open_ends(table, "measured_low", "measured_high"),
        "run at": table["batch_size"],
        "step": table["step"],
    }
    names = table[["workload", "optimizer", "goal", "proxy"]]
    return with_cells(names, cells)


def _ratio(ratio: float, low: float, high: float) -> str:
    return f"{number(ratio)} ({within(low, high)})"
