"""The findings of a report in sentences, the conclusion first; then how the steps were measured."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.counting import COMPLETE, RACE, Goal
from analysis.estimates import at_budget, by_goal, verdicts
from analysis.labels import batch_sizes, goal_text, listed, number, percent
from analysis.load import STUDY, TASK, StudyData
from analysis.question.branches import SPLIT, VALIDATION
from analysis.report import headlines
from analysis.tables import steps_to_result, transfer

FRESH_DATA = {
    SPLIT: "each fresh seed has another split into training and validation data, so that the spread over seeds, and "
    "the intervals made of it, hold the luck of the split, too",
    VALIDATION: "each fresh seed is evaluated on another random part of the validation set, so that the spread over "
    "seeds, and the intervals made of it, hold the luck of this part, too",
}
"""`search.fresh_data` -> the sentence about fresh seeds."""


def sentences(
    studies: Sequence[StudyData], tables: Mapping[str, pd.DataFrame], goals: Sequence[Goal], base: float = 0.0
) -> list[str]:
    """Every finding of a report.

    Arguments:
        studies: the searches that give S(B) (`analysis.tables.answers.answers`) and have a finished trial.
        tables: by name (`analysis.report.derived.tables`).
        goals: evaluated on the recorded curves; empty: each study's own goal.
        base: of the perfect-scaling limit; 0: the smallest batch size.

    >>> from analysis.report.build import Asked, tables
    >>> studies = [study]
    >>> sentences(studies, tables(studies, studies, Asked()), [])[0]
    'mlp_digits with sgd to validation cross entropy < 0.2: reached at batch size 64 alone, in 21 steps.'
    """
    limits = tables["scaling"]
    return [
        *compared(studies, tables),
        *_tuned_for(tables["steps_to_result"]),
        *about_fresh_data(studies, tables["steps_to_result"]),
        *headlines.sentences(tables["steps_to_result"], limits, base),
        *by_goal.sentences(tables["critical_by_goal"], studies),
        *at_budget.sentences(tables["at_budget"]),
        *transfer.sentences(tables["rules"]),
        *stopping_sentences(studies),
        *grid_sentences(studies, goals),
    ]


def compared(studies: Sequence[StudyData], tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """The findings about pairs of optimizers and of workloads.

    >>> from analysis.report.build import Asked, tables
    >>> compared([study], tables([study], [study], Asked()))  # one curve
    []
    """
    limits, trainable = tables["scaling"], not any(study.imported for study in studies)
    return [
        *verdicts.sentences(tables["compare"], limits, cure=trainable),
        *verdicts.sentences(tables["compare_workloads"], limits, by="workload", cure=trainable),
    ]


def _tuned_for(steps: pd.DataFrame) -> list[str]:
    """What the configurations of all statements were tuned for, if that is not the goal of the statements."""
    known = steps.dropna(subset="tuned_for").drop_duplicates([*TASK, "tuned_for"])
    return [
        f"{row.workload} to {goal_text(row.goal_metric, row.goal_threshold)}: fresh seeds trained the configurations "
        f"tuned for {row.tuned_for}, which are read as they are."
        for row in known.itertuples()
    ]


def about_fresh_data(studies: Sequence[StudyData], steps: pd.DataFrame) -> list[str]:
    """What the spread over fresh seeds holds beside that of initialisation and order, if the data differed too.

    Arguments:
        steps: from `analysis.estimates.tuned.table`.

    >>> steps = pd.read_csv(f"{published}/tables/steps_to_result.csv")
    >>> about_fresh_data([study], steps)  # all seeds had the same data
    []
    >>> study.question["search"]["fresh_data"] = "split"  # as if the sweep had this
    >>> [said.partition(",")[0] for said in about_fresh_data([study], steps)]
    ['mlp_digits with sgd: each fresh seed has another split into training and validation data']
    """
    seen = {tuple(key) for key in steps.loc[steps["seeds"] > 0, STUDY].itertuples(index=False)}
    curves: dict[str, dict[str, None]] = {}
    for study in studies:
        what = study.question["search"].get("fresh_data")
        if what and study.key in seen:
            curves.setdefault(what, {})[" with ".join(study.curve)] = None
    return [f"{', '.join(names)}: {FRESH_DATA[what]}." for what, names in curves.items()]


def stopping_sentences(studies: Sequence[StudyData]) -> list[str]:
    """The share of steps that early stopping skipped or, where full budgets ran, would have skipped.

    Judged for each study's own goal.

    >>> stopping_sentences([study])
    ['With stopping=race, 88% of the steps would have been skipped, with the same steps to result.']
    """
    ran = [study for study in studies if not study.imported]
    stopped = [study for study in ran if study.stops_early]
    whole = [study for study in ran if study.ran_under.runs_whole_budget]
    said = []
    for text, some in ((_skipped(stopped), stopped), (_could_skip(whole), whole)):
        curves = ", ".join(dict.fromkeys(" with ".join(study.curve) for study in some))
        said += [f"{curves}: {text[0].lower()}{text[1:]}" if stopped and whole else text] if text else []
    return said


def _skipped(studies: Sequence[StudyData]) -> str:
    ends, budgets = 0, 0
    for study in studies:
        counted = steps_to_result.counted_trials(study)
        complete = counted[counted["status"] == COMPLETE]
        ends, budgets = ends + int(complete["end"].sum()), budgets + len(complete) * study.train_steps
    rules = listed(sorted({study.stopped_by for study in studies}))
    if not budgets:
        return ""
    return f"Early stopping ({rules}) skipped {percent(1 - ends / budgets)} of the steps of full budgets."


def _could_skip(studies: Sequence[StudyData]) -> str:
    if not studies:
        return ""
    ran, raced = steps_to_result.table(studies), steps_to_result.table(studies, stopping=RACE)
    share = 1 - raced["steps_trained"].sum() / max(1, ran["steps_trained"].sum())
    other = raced["batch_size"][raced["steps_to_result"].fillna(0) != ran["steps_to_result"].fillna(0)]
    same = f"other steps to result at {batch_sizes(sorted(set(other)))}" if len(other) else "the same steps to result"
    return f"With stopping={RACE}, {percent(share)} of the steps would have been skipped, with {same}."


def grid_sentences(studies: Sequence[StudyData], goals: Sequence[Goal] = ()) -> list[str]:
    """The step budgets, and how finely the evaluation grid resolves steps.

    Arguments:
        goals: evaluated on the recorded curves; empty: each study's own goal.

    >>> (found,) = grid_sentences([study])
    >>> found.split(". ")[0]
    'Step budget: the larger of 20 epochs and 200 steps, at most 10,000'
    """
    curves: dict[str, dict[tuple[str, str], None]] = {}
    for study in studies:
        curves.setdefault(_grid_sentence(study, goals or [study.goal]), {})[study.curve] = None
    if len(curves) == 1:
        return list(curves)
    alike = Counter(workload for found in curves.values() for workload in {workload for workload, _ in found})
    return [
        f"{', '.join({w if alike[w] == 1 else f'{w} with {o}': None for w, o in found})}: {text}"
        for text, found in curves.items()
    ]


def _grid_sentence(study: StudyData, goals: Sequence[Goal]) -> str:
    if study.imported:
        return _imported_sentence(study)
    budget, grid = study.question["budget"], study.question["evaluation"]
    only_steps = not (budget["epochs"] or budget.get("tokens"))
    capped = "" if only_steps or budget["max_steps"] is None else f", at most {budget['max_steps']:,}"
    multiples = study.question["search"]["budgets"]
    each = "" if len(multiples) == 1 else f" Searches ran with {listed(f'{m:g}' for m in multiples)} times this budget."
    once = " No training example is seen twice." if budget.get("single_pass") else ""
    terms = f"Step budget: {_terms(budget)}{capped}.{once}{each}"
    if study.is_command:
        return f"{terms} Errors are known where the script logged them, so S(B) is as fine as the lines of its log."
    rarely = ""
    if grid["every"] and not all(goal.metric.startswith("val/") for goal in goals):
        apart = grid["ratio"] ** grid["every"] - 1
        rarely = (
            f" Training and test errors are measured every {percent(apart)} more steps, so goals on them are as coarse."
        )
    short = "" if study.exact else " Evaluations ended when they missed the goal, so errors above it are not known."
    return (
        f"{terms} Validation errors are measured first at {percent(grid['first'])} of the budget, then every "
        f"{percent(grid['ratio'] - 1)} more steps, so a steps-to-result may be too large by as much.{rarely}{short}"
    )


def _imported_sentence(study: StudyData) -> str:
    """Where the numbers of an imported study come from."""
    log = study.provenance[-1].get("log") if study.provenance else None
    said = f"Imported{f' from {log}' if log else ''}: trials end, and errors are known, as they were recorded."
    if log is None:
        return said
    facts = "".join(f" {fact}." for fact in study.provenance[-1].get("read", []))
    return (
        f"{said}{facts} This tool trained and tuned none of them. S(B) is the best of the runs there are, and "
        "intervals take the runs of a batch size as drawn independently, as in a random or grid search."
    )


def _terms(budget: Mapping[str, Any]) -> str:
    """The terms of a step budget that are not 0; the largest counts.

    >>> _terms({"epochs": 1, "steps": 200}), _terms({"epochs": 0, "steps": 60}), _terms({"epochs": 1.5, "steps": 0})
    ('the larger of 1 epoch and 200 steps', '60 steps', '1.5 epochs')
    """
    values = {name: budget[name] for name in ("epochs", "tokens", "steps") if budget.get(name)}
    texts = [f"{value:g}" if name == "epochs" else number(value) for name, value in values.items()]
    terms = [f"{text} {name.removesuffix('s' * (text == '1'))}" for text, name in zip(texts, values, strict=True)]
    return f"the {'larger' if len(terms) == 2 else 'largest'} of {listed(terms)}" if len(terms) > 1 else terms[0]
