"""The kinds of figures: for each, the table that it draws, the data that it needs and its caption."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.figures import along_runs, best_errors, critical, learning_curves, scaling, transfer, tuning
from analysis.figures.canvas import evenly
from analysis.load import CURVE, GOAL, TASK
from analysis.tables.scaling import CRITICAL


def _with_values(*columns: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Selects panels in which each of these columns has a value at a batch size that reached the goal."""

    def rows(table: pd.DataFrame) -> pd.DataFrame:
        if not {*columns} <= set(table):
            return table.iloc[:0]
        return table.groupby(TASK, sort=False).filter(
            lambda part: all(part.loc[part["reached"].astype(bool), column].notna().any() for column in columns)
        )

    return rows


def _several_goals(table: pd.DataFrame) -> pd.DataFrame:
    curve = table.groupby(["workload", "optimizer"], sort=False)
    return curve.filter(lambda part: len(part[GOAL].drop_duplicates()) > 1 and part["reached"].any())


def _compared(kind: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table[table["compared"] == kind]


def _of_unit(unit: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: _three_batch_sizes(table[table["unit"] == unit])


def _three_batch_sizes(table: pd.DataFrame) -> pd.DataFrame:
    """The smallest, a middle and the largest batch size of each curve."""
    curve = [table[name] for name in CURVE]
    return table[table.groupby(curve, sort=False)["batch_size"].transform(lambda b: b.isin(evenly(sorted(set(b)), 3)))]


def _several_counts(table: pd.DataFrame) -> pd.DataFrame:
    return table.groupby(CURVE, sort=False).filter(
        lambda part: part["n"].max() > 3 and (part["steps"] < float("inf")).any()
    )


def _several_smoothings(table: pd.DataFrame) -> pd.DataFrame:
    several = table.groupby(CURVE, sort=False).filter(lambda part: part["label_smoothing"].nunique() > 1)
    return several[several["error"] < float("inf")]


@dataclass(frozen=True)
class Drawing:
    """A kind of figure.

    Attributes:
        draw: `(ax, table, **overlays)` draws the rows of a panel onto axes.
        needs: text for the reader: the data without which the figure is missing.
        table, overlays: names of the tables to draw.
        rows: selects the rows that can be drawn.
        figure: columns; each combination of their values is a separate figure.
        panel: columns; each combination within a figure is a panel.
        small: draw small panels, because there are many simple ones.
    """

    title: str
    caption: str
    draw: Callable[..., None]
    needs: str
    table: str = "steps_to_result"
    overlays: tuple[str, ...] = ()
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    figure: Sequence[str] = ()
    panel: Sequence[str] = tuple(TASK)
    small: bool = False


ONE_MODEL = "one model that reached its"
RELATIVE = (
    ("models", "several models on the same data", "two models on one data set that reached one goal"),
    ("data sets", "one model on several data sets", f"{ONE_MODEL} goals on two data sets"),
    ("subsets", "one model on parts of one data set", f"{ONE_MODEL} goal on two parts of a data set"),
)
REACHED = "and a batch size at which the goal was reached"
FULL_BUDGETS = "studies with stopping=budget"
SIZE_PANEL = ["of", *GOAL, "axis", "definition"]
MAP: Any = {"table": "maps", "figure": CURVE, "panel": ("batch_size",), "small": True}
FIGURES: dict[str, Drawing] = {
    "steps_to_result": Drawing(
        "Steps to result",
        "Training steps to the goal, with everything retuned at each batch size B: medians of the tuned "
        "configurations with fresh seeds, and the fewest steps S(B) of each search as dashes; without fresh seeds, "
        "S(B) alone. Bars: 95 % interval of the tuned optimum; of the noise of seeds alone, with fewer than six batch "
        "sizes; of the median best of a quarter of the trials, without fresh seeds. A bar that reaches the top has no "
        "upper end. Pale line: the convex curve that limits are read from. Dashed: perfect scaling (twice the batch, "
        "half the steps) from the smallest batch size that met the goal, on the lowest curve. Open triangles: the goal "
        "was missed within the step budget drawn. Vertical lines: critical batch size (solid), perfect-scaling limit "
        "(dotted) and maximum useful batch size (dash-dotted), with an "
        "arrowhead if the data show no end; with several curves, only limits that the data establish are drawn. "
        "Across the curve: 95 % interval of the critical batch size. Long dashes (search=refine): the minimum of the "
        "model, which is no measurement. With three curves or more, dashes and all limits but the critical batch size"
        " are left out; tables have them.",
        scaling.steps_to_result,
        "a study",
        overlays=("scaling", "tunability"),
    ),
    "examples_to_result": Drawing(
        "Examples to result",
        "Training examples until the goal is met: B times the steps of the first figure. A level line (dashed) is "
        "perfect scaling; a rise is the extra cost of larger batches. Other marks as for the steps.",
        scaling.examples_to_result,
        "a study",
        overlays=("scaling",),
    ),
    "seconds_to_result": Drawing(
        "Time to result",
        "The steps of the first figure times the measured time of a training step, on the device named; trials that "
        "were trained at once share the time equally. Time falls with the steps only while a step on a larger batch "
        "takes no longer.",
        scaling.seconds_to_result,
        f"trials whose time was measured, {REACHED}",
        table="seconds",
        rows=_with_values("seconds_per_step"),
    ),
    "time_and_examples": Drawing(
        "Time against examples",
        "A larger batch saves steps and costs examples: a point for each batch size, larger ones to the left, with the "
        "same steps as in the first figure. "
        "Dashed: the hyperbola S = S_min + E_min / B; dotted: the sharp shoulder, whose bend is free.",
        scaling.time_and_examples,
        "three batch sizes at which the goal was reached",
        rows=lambda table: table.groupby(TASK, sort=False).filter(lambda part: part["reached"].sum() > 2),
        overlays=("fits",),
    ),
    "several_goals": Drawing(
        "Several goals",
        "S(B) to each goal, with the best trial of each goal. A harder goal moves the curve up; compare the shapes of "
        "the curves.",
        scaling.by_goal,
        "two goals, one of them reached: give --goal twice, or goals=[...] in Python",
        rows=_several_goals,
        panel=("workload", "optimizer"),
    ),
    "critical_by_goal": Drawing(
        "Critical batch size against the goal",
        "Critical batch size by the hyperbola through the fewest steps of each search, to goals that the same trials "
        "reached on their way and beyond. Bars: 95 % interval, up to an edge where it is open. Carets: the limit lies "
        "outside the measured batch sizes. Dotted: the goal that was tuned for.",
        critical.critical_by_goal,
        "four batch sizes whose trials run past the goal: sweep with stopping=budget",
        table="critical_by_goal",
        rows=lambda table: table.groupby(["workload", "optimizer"], sort=False).filter(lambda part: len(part) > 1),
        panel=("workload", "goal_metric"),
    ),
    "critical_by_size": Drawing(
        "Critical batch size across sizes",
        "Critical batch size by the hyperbola against the size of the model or the data. Bars: 95 % interval, up to an "
        "edge where it is open. Carets: only a bound is known, which the fit leaves out. Dashed: the power law a·N^b, "
        "with the 95 % interval of the law.",
        critical.critical_by_size,
        "three workloads that differ in one number only, with a critical batch size: sweep workload.width=128,256,512",
        table="sizes",
        rows=lambda table: (
            table[table["definition"] == CRITICAL]
            .groupby(SIZE_PANEL, sort=False)
            .filter(lambda part: part["size"].nunique() > 2)
        ),
        overlays=("size_laws",),
        panel=SIZE_PANEL,
    ),
    **{
        f"relative_{kind.replace(' ', '_')}": Drawing(
            kind.capitalize(),
            f"S(B) of {what}, each divided by its own steps at one batch size. Dashed: perfect scaling.",
            scaling.relative_steps,
            needs,
            table="relative",
            rows=_compared(kind),
            panel=("of", "optimizer", *GOAL) if kind == "models" else ("of", "optimizer"),
        )
        for kind, what, needs in RELATIVE
    },
    "best_learning_rate": Drawing(
        "Best learning rate",
        "Learning rate η of the tuned configuration. Dashed: the linear rule, η ∝ B; dotted: the "
        "square-root rule, η ∝ √B; both from the smallest batch size that met the goal.",
        tuning.best_learning_rate,
        f"a learning rate, {REACHED}",
        rows=_with_values("learning_rate"),
    ),
    "best_effective_learning_rate": Drawing(
        "Best effective learning rate",
        "Effective learning rate η / (1 − m) of the same trials; without momentum, m is 0.",
        tuning.best_effective_learning_rate,
        f"a learning rate and a momentum, {REACHED}",
        rows=_with_values("learning_rate", "momentum"),
    ),
    "best_momentum": Drawing(
        "Best momentum",
        "1 − m of the same trials on a log scale: half of 1 − m averages over twice as many gradients.",
        tuning.best_momentum,
        f"a momentum, {REACHED}",
        rows=_with_values("momentum"),
    ),
    "best_of_n": Drawing(
        "How many trials it takes",
        "The median best of n trials drawn from the finished ones, for up to six batch sizes. If a curve still falls "
        "at two thirds of its trials, more trials would find fewer steps; beyond that it is flat by construction.",
        tuning.best_of_n,
        f"four trials a study that do not depend on one another (search=sobol), {REACHED}",
        table="best_of_n",
        rows=_several_counts,
        panel=CURVE,
    ),
    "tunability": Drawing(
        "Tunability",
        "The share of the search space in which a configuration needs at most 1.2 times the steps of the best one, as "
        "a model of all trials sees it. The smaller the share, the more trials a search needs. Bars: 95 % interval.",
        tuning.tunability,
        "15 trials a study that search ranges of numbers, and a batch size at which the goal was reached",
        table="tunability",
    ),
    "reruns": Drawing(
        "The tuned configurations with fresh seeds",
        "Steps to the goal of each batch size's tuned configuration, retrained with other seeds, beside the search "
        "that found it: the best of many trials was partly lucky.",
        tuning.reruns,
        "reruns: sweep with search.reruns=10",
        table="rerun_steps",
    ),
    "rules": Drawing(
        "Rules against tuning",
        "Steps to the goal with the hyperparameters of one batch size, transferred to others by rules, divided by the "
        "steps of the retuned ones, with the same seeds. Bars: 95 % interval of the median over seeds. Open marks: "
        "some seeds missed the goal; open triangles on top: more than half did. The linear rule adds warmup "
        "when the batch grows.",
        transfer.steps_lost,
        "transferred configurations: run study rules RESULTS",
        table="rules",
        rows=lambda table: table[table["steps_lost"].notna()],
        panel=(*CURVE, "base_batch_size"),
    ),
    "noise_scale": Drawing(
        "Gradient noise scale",
        "The gradient noise scale tr(Σ) / |G|² along the tuned run of one batch size, by its two estimators, up to the "
        "goal. For Adam and its relatives also of preconditioned gradients. Bars: 95 % interval. Triangles: lower end "
        "of an interval without an upper end.",
        along_runs.noise_scale,
        "measured gradients: run study noise RESULTS",
        table="noise_scale",
        rows=lambda table: table[table["low"] > 0],
        panel=(*CURVE, "batch_size"),
    ),
    "one_step": Drawing(
        "Best learning rate of one step",
        "The learning rate with the least loss after one step, against the batch size of that step, at points along "
        "the tuned run of one batch size. Bars: 95 % interval. Lines: ε(B) = ε_max / (1 + B_n / B), fitted in log "
        "space (solid) and in linear space (dashed). At B_n the best learning rate is half of ε_max.",
        along_runs.one_step,
        "losses after one step: run study noise RESULTS --one-step",
        table="one_step_rates",
        rows=lambda table: table.dropna(subset="learning_rate"),
        overlays=("one_step",),
        panel=(*CURVE, "batch_size", "form"),
    ),
    "branched": Drawing(
        "Critical batch size by branches",
        "The largest batch size that loses no more than the tolerance against the small batch of the run, after a "
        "window of the same examples from the same checkpoint, along the tuned run of one batch size. Bars: 95 % "
        "interval over the orders of the examples in the branches; it ends at the smallest batch size that loses more "
        "for certain. "
        "Triangles: all batch sizes that were tried are within the tolerance, or upside down none of the larger ones.",
        along_runs.branched,
        "branches of a run: run study branch RESULTS",
        table="branched",
        rows=lambda table: table[table["examples_seen"] > 0],
        panel=("workload", "batch_size"),
    ),
    "proxies": Drawing(
        "Proxies of the critical batch size",
        "Each proxy as a multiple of the critical batch size that steps to the goal show. Proxies along a run are "
        "those of its last point before the goal. Bars: 95 % interval, of both together. Triangles: only a bound of "
        "the proxy is known.",
        along_runs.proxies,
        "something measured along a run: run study noise or study branch RESULTS",
        table="proxies",
        rows=lambda table: table.dropna(subset="ratio"),
    ),
    "batch_phases": Drawing(
        "Batch-size schedules",
        "The batch size against the examples seen of each curve whose batch size grows, up to its budget. Mark: where "
        "its tuned configuration met the goal. Such curves are no points of S(B).",
        learning_curves.batch_phases,
        "a sweep with batch_schedule=step, ramp or doubling",
        table="batch_phases",
        overlays=("batch_schedules",),
    ),
    "verified": Drawing(
        "A schedule against constant batch sizes",
        "The error at the end of the same budget of examples against the steps that it took, with fresh seeds: "
        "constantly the first batch size, constantly the last one, and the schedule. Bars: 95 % interval of the mean.",
        learning_curves.verified,
        "a verified schedule: run study verify RESULTS",
        table="verified",
        panel=(*CURVE, "batch_size"),
    ),
    "label_smoothing": Drawing(
        "Label smoothing",
        "The best error with each label smoothing and everything else tuned, within the step budget of each batch "
        "size, for up to six batch sizes.",
        best_errors.label_smoothing,
        f"several values of label_smoothing, and {FULL_BUDGETS}",
        table="smoothing",
        rows=_several_smoothings,
        panel=CURVE,
    ),
    "error_against_budget": Drawing(
        "Error against budget",
        "The least error that any trial had reached by each step, for up to six batch sizes.",
        best_errors.against_budget,
        FULL_BUDGETS,
        table="best_errors",
        panel=("workload", "optimizer", "goal_metric"),
    ),
    "error_against_batch_size": Drawing(
        "Error against batch size",
        "The least error of any trial when all batch sizes have the same step budgets, and when they have the same "
        "example budgets. Budgets of steps favour large batches, budgets of examples small ones.",
        best_errors.against_batch_size,
        FULL_BUDGETS,
        table="budgets",
        panel=("workload", "optimizer", "goal_metric", "unit"),
    ),
    "error_at_budget": Drawing(
        "Error at a fixed number of examples or tokens",
        "The least error of any trial within the same number of examples (tokens, where a workload has them) at every "
        "batch size; for a search that learns, the mean of the fresh seeds of its tuned configuration. Bars: 95 % "
        "interval at the largest budget. Filled: within the tolerance of the best batch size. A schedule that decays "
        "ends at the largest budget; at smaller ones, its learning rate is still high.",
        best_errors.at_budget,
        f"two batch sizes, and {FULL_BUDGETS}",
        table="at_budget",
        rows=lambda table: table.groupby(CURVE[:3], sort=False).filter(lambda part: part["batch_size"].nunique() > 1),
        panel=CURVE[:3],
    ),
    "map_at_fixed_examples": Drawing(
        "What works within the same examples",
        "Learning rate against 1 − momentum, a point for each trial, at three batch sizes, if every batch size may use "
        "the same number of training examples. Filled: reached the goal; open: did not; crosses: diverged; star: the "
        "fastest. Grey: equal effective learning rate. The budget is the need of the slowest batch size's best trial, "
        "or the largest number that every batch size trained for.",
        tuning.working_region,
        f"a learning rate and a momentum, and {FULL_BUDGETS}; one of them reached the goal",
        rows=_of_unit("examples"),
        **MAP,
    ),
    "map_at_fixed_steps": Drawing(
        "What works within the same steps",
        "As for examples, if every batch size may take the same number of steps.",
        tuning.working_region,
        f"a learning rate and a momentum, and {FULL_BUDGETS}; one of them reached the goal",
        rows=_of_unit("steps"),
        **MAP,
    ),
    "learning_curves": Drawing(
        "Learning curves",
        "The goal's metric of each trial against training steps, at the smallest, a middle and the largest batch size. "
        "Bold: the trial that gave S(B). Blue: reached the goal; grey: did not; crosses: diverged. Of more than 20 "
        "trials, the best, the worst and evenly spaced ranks between are drawn. Errors above twice the range of the "
        "trials that reached the goal are cut off.",
        learning_curves.learning_curves,
        "a trial with a measured error",
        table="learning_curves",
        rows=_three_batch_sizes,
        figure=CURVE,
        panel=("batch_size",),
        small=True,
    ),
    "along_axes": Drawing(
        "Every trial, along each parameter",
        "Steps to the goal of every trial against the value of one parameter, while the search drew the others, at the "
        "smallest, a middle and the largest batch size. Filled: reached the goal. Triangles: stopped or "
        "at the end of the budget without it. Crosses at the top: diverged. The lower edge of the cloud shows the "
        "best steps for each value; if it still falls at a side, widen the search space there.",
        tuning.along_axis,
        "a parameter that was tuned",
        table="axes",
        rows=_three_batch_sizes,
        figure=CURVE,
        panel=("parameter", "batch_size"),
        small=True,
    ),
}
