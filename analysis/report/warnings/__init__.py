"""Warnings about the curves, the most serious first. Definitions: docs/methods.md, "Warnings"."""

from collections.abc import Iterable, Sequence

import pandas as pd

from analysis.labels import listed
from analysis.load import StudyData
from analysis.report.warnings import of_curves, of_searches
from analysis.report.warnings.caution import CONTINUE, FEW_TRIALS, Answered, Caution, about, cured, lines
from analysis.tables.steps_to_result import is_complete


def sentences(
    answered: Answered, steps: pd.DataFrame, limits: pd.DataFrame, pairs: pd.DataFrame, base: float = 0.0
) -> list[str]:
    """The warnings, a line for each (kind, workload, goal); optimizers with the same text share it.

    Arguments:
        answered: study and goal of each row of `steps` (`analysis.tables.steps_to_result.table`).
        limits, pairs: tables of `analysis.estimates.limits` and `analysis.estimates.pairs`.
        base: see `analysis.tables.scaling.perfect_scaling_limit`.

    >>> from analysis.report.build import Asked, tables
    >>> from analysis.tables import steps_to_result
    >>> made = tables([study], [study], Asked())
    >>> steps, limits, pairs = (made[name] for name in ("steps_to_result", "scaling", "compare"))
    >>> (found,) = sentences(list(steps_to_result.answerable([study])), steps, limits, pairs)
    >>> for part in found.split("; "):
    ...     print(part)
    mlp_digits, sgd, batch size 64: only 3 of 20 trials reached the goal within 2 times the fewest steps
    raise search.trials, narrow the search space, or use search=refine in another results=DIR
    search.reruns=4 shows what the best trial typically needs.
    """
    found: list[Caution] = []
    for (study, goal), row in zip(answered, steps.to_dict("records"), strict=True):
        found += of_searches.cautions(study, goal, row)
    found += of_curves.cautions(answered, steps, limits, pairs, base)
    imported = {s.curve for s, _ in answered if s.imported}
    found = [cured(caution, imported=caution.curve[:2] in imported) for caution in found]
    return lines(found, several_goals=len({goal for _, goal in answered}) > 1)


def waiting(studies: Iterable[StudyData], counted: Sequence[StudyData]) -> list[str]:
    """The studies that do not count yet.

    Arguments:
        studies: the answering search of each (`analysis.tables.answers.answers`).
        counted: those that count (`analysis.tables.answers.counted`).

    >>> from dataclasses import replace
    >>> ended = load_study(f"{published}/studies/mlp_digits/sgd/32")
    >>> waiting([ended, replace(ended, trials=ended.trials[:0])], [ended])
    ['mlp_digits, sgd, batch size 32: no trial has finished yet; sweep again to continue.']
    """
    found = [_waiting(study) for study in studies if not any(study is each for each in counted)]
    return lines(found, several_goals=False)


def _waiting(study: StudyData) -> Caution:
    if not study.begun:
        return cured(about("waiting", study, study.goal, "no trial has finished yet", CONTINUE), study.imported)
    text = f"left out until its search is complete: {{}} of {study.question['search']['trials']:,} trials have ended"
    cure = CONTINUE
    if is_complete(study):
        text, cure = "left out, since the searches of other batch sizes have far more trials than {}", FEW_TRIALS
    return cured(about("waiting", study, study.goal, text, cure, f"{len(study.trials):,}"), study.imported)


def unsearched(found: Iterable[tuple[StudyData, Sequence[float]]]) -> list[str]:
    """The studies that miss a search with another step budget (from `analysis.tables.answers.unsearched_budgets`).

    >>> print(*unsearched([(load_study(f"{published}/studies/mlp_digits/sgd/32"), [2.0])]))
    mlp_digits, sgd, batch size 32: the search with 2 times the step budget is not complete; sweep again to continue.
    """
    cautions = []
    for study, multiples in found:
        times = listed(f"{multiple:g}" for multiple in multiples)
        text = f"the search with {times} times the step budget is not complete"
        cautions.append(about("unfinished", study, study.goal, text, CONTINUE))
    return lines(cautions, several_goals=False)


def imported(studies: Iterable[StudyData]) -> list[str]:
    """The warnings that the import of studies recorded.

    >>> imported([study])
    []
    """
    found = (text for study in studies for run in study.provenance for text in run.get("warnings", []))
    return list(dict.fromkeys(found))  # what holds for a whole log is recorded in each of its studies
