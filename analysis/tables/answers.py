"""The search of each study that S(B) is read from; repeats and reruns."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, INCOMPLETE, Branch, Goal
from analysis.edges import widening
from analysis.intervals import PART, median, with_before
from analysis.labels import goal_text
from analysis.load import ANSWER, LoadError, StudyData
from analysis.tables import audits, steps_to_result
from analysis.tables.scaling import FEWEST


def answers(studies: Iterable[StudyData]) -> list[StudyData]:
    """The search that S(B) is read from, for each (workload, optimizer, batch size) in order of appearance.

    It is the last complete stage of the search with the study's own seeds. Among several step budgets, the search with
    the fewest steps counts; if none is complete and reached the goal, the search with the budget multiple 1 counts.

    >>> from analysis import load
    >>> from analysis.tables import answers
    >>> made = list(load.load(published))
    >>> len(made), len(answers.answers(made))  # without the reruns
    (44, 22)
    """
    return [answer(searches) for searches in by_study(studies)]


def each_once(studies: Iterable[StudyData]) -> list[StudyData]:
    """These searches, for numbers in which each must count once.

    Raises:
        LoadError: two folders hold the same search, as where one is a copy.

    >>> folder = f"{published}/studies/mlp_digits/sgd/64"
    >>> len(each_once([load_study(folder), load_study(f"{folder}/rerun-1")]))
    2
    """
    seen: dict[tuple[tuple[str, str, int], Branch], StudyData] = {}
    for study in studies:
        other = seen.setdefault((study.key, study.branch), study)
        if other is not study:
            raise LoadError(
                f"{other.folder} and {study.folder} both hold {study.workload}, {study.optimizer}, batch size "
                f"{study.batch_size}; move one of them elsewhere, or sweep under another workload.name."
            )
    return list(seen.values())


def by_study(studies: Iterable[StudyData]) -> list[dict[Branch, StudyData]]:
    """The searches of each (workload, optimizer, batch size) whose first search is on file, in order of appearance.

    >>> folder = f"{published}/studies/mlp_digits/sgd/64"
    >>> [[str(branch) for branch in made] for made in by_study([load_study(folder), load_study(f"{folder}/rerun-1")])]
    [['', 'reruns of trial 1']]
    """
    found: dict[tuple[str, str, int], dict[Branch, StudyData]] = {}
    for study in studies:
        found.setdefault(study.key, {})[study.branch] = study
    return [searches for searches in found.values() if Branch() in searches]


def counted(made: Sequence[StudyData]) -> list[StudyData]:
    """The `answers` that stand for their batch sizes: some trial has ended, and their search is not just beginning.

    A search that is just beginning lies far above S(B) and would bend its whole curve. It is left out where at least
    three other batch sizes of the curve remain. It has fewer than a quarter of the trials that are usual on its curve
    (S_n is the median best of a quarter), or it is incomplete and lacks the fresh seeds that complete ones have.

    Arguments:
        made: all searches.

    >>> from dataclasses import replace
    >>> made = [load_study(f"{published}/studies/mlp_digits/sgd/{size}") for size in (16, 32, 64, 128)]
    >>> len(counted(made)), len(counted([*made[:3], replace(made[3], trials=made[3].trials[:4], derived={})]))
    (4, 3)
    """
    rerun = {search.key for search, _ in filter(None, map(fresh_seeds, by_study(made)))}
    begun = [study for study in answers(made) if study.begun]
    curves: dict[Hashable, list[StudyData]] = {}
    for study in begun:
        curves.setdefault((*study.curve, study.batch_schedule and study.batch_schedule.label), []).append(study)
    left_out = set()
    for curve in curves.values():
        usual = np.median([len(study.trials) for study in curve])
        complete = {study.key for study in curve if steps_to_result.is_complete(study)}
        few = {study.key for study in curve if len(study.trials) * PART < usual}
        if complete & rerun:
            few |= {study.key for study in curve} - complete - rerun
        if len(curve) - len(few) >= FEWEST:
            left_out |= few
    return [study for study in begun if study.key not in left_out]


def orphans(studies: Sequence[StudyData]) -> list[str]:
    """A line for each study whose first search is missing; its other searches are left out.

    >>> folder = f"{published}/studies/mlp_digits/sgd/64"
    >>> orphans([load_study(folder), load_study(f"{folder}/rerun-1")])
    []
    """
    searched = {study.key for study in studies if study.branch == Branch()}
    orphaned = dict.fromkeys(study.key for study in studies if study.key not in searched)
    return [
        f"{workload}, {optimizer}, batch size {size:,}: its first search is missing, so its other searches are left "
        "out; sweep again."
        for workload, optimizer, size in orphaned
    ]


def unsearched_budgets(studies: Iterable[StudyData]) -> list[tuple[StudyData, list[float]]]:
    """(the search that S(B) is read from, budget multiples without a complete search) of each study of several budgets
    that has any.

    >>> study.question["search"]["budgets"] = [1.0, 2.0]  # as if the sweep had these
    >>> [missing for _, missing in unsearched_budgets([study])]
    [[2.0]]
    """
    found = [(answer(searches), _missing(searches)) for searches in by_study(studies) if len(_budgets(searches)) > 1]
    return [(study, missing) for study, missing in found if missing and study.begun]


def _budgets(searches: Mapping[Branch, StudyData]) -> list[float]:
    """The budget multiples that the study asks for."""
    return list(searches[Branch()].question["search"].get("budgets", [1.0]))


def _missing(searches: Mapping[Branch, StudyData], repeat: int = 0) -> list[float]:
    """The budget multiples of the study whose search with these seeds is missing or incomplete."""
    made = {multiple: searches.get(Branch(repeat, multiple)) for multiple in _budgets(searches)}
    return [multiple for multiple, study in made.items() if study is None or not steps_to_result.is_complete(study)]


def answer(searches: Mapping[Branch, StudyData], repeat: int = 0) -> StudyData:
    """The search of one study that S(B) is read from (see `answers`).

    Arguments:
        searches: all searches of the study, by branch.
        repeat: choose among the searches with the seeds of this repeat.

    >>> answer({study.branch: study}) is study
    True
    """
    # The first stage with these seeds under each budget.
    starts = [start for branch, start in searches.items() if branch == Branch(repeat, branch.budget)]
    last = {start.branch.budget: last_stage(start, searches) for start in starts}
    fewest = {
        budget: steps_to_result.row(search)["steps_to_result"]
        for budget, search in last.items()
        if steps_to_result.is_complete(search) and steps_to_result.row(search)["reached"]
    }
    return last[min(fewest, key=lambda budget: (fewest[budget], budget), default=1.0)]


def last_stage(search: StudyData, searches: Mapping[Branch, StudyData]) -> StudyData:
    """The last complete stage that follows a search; the search itself if it is incomplete.

    >>> last_stage(study, {study.branch: study}) is study  # there is no further stage
    True
    """
    while steps_to_result.is_complete(search):  # not limited by search.extend_limit, which may have changed
        widened = (*search.branch.widened, widening(audits.edges(search)))
        following = searches.get(search.branch._replace(widened=widened))
        if following is None or not steps_to_result.is_complete(following):
            break
        search = following
    return search


def table(studies: Sequence[StudyData]) -> pd.DataFrame:
    """Every search, without reruns and transfers.

    Returns:
        A row for each (workload, optimizer, batch_size, repeat, budget_multiple, stage): the goal, answer (True if S(B)
        is read from it), reached, steps_to_result (NA if not reached), the counts complete, infeasible and incomplete,
        train_steps, and `searched_NAME`, the range of each tuned parameter.

    >>> found = table([study])
    >>> found[["batch_size", "stage", "answer", "steps_to_result", "searched_learning_rate"]]
       batch_size  stage  answer  steps_to_result searched_learning_rate
    0          64      0    True               21       0.001 to 10, log
    """
    chosen = {study.folder for study in answers(studies)}
    rows: list[dict[str, Any]] = []
    for study in sorted(studies, key=lambda s: (*s.key, s.branch[:3])):
        if study.branch.rerun is None:
            row = steps_to_result.row(study)
            kept = (*ANSWER, "reached", "steps_to_result", "complete", "infeasible", "incomplete", "train_steps")
            names = {"repeat": study.branch.repeat, "budget_multiple": study.branch.budget, "stage": study.branch.stage}
            searched = {f"searched_{name}": in_words(study.searched[name]) for name in study.hyperparameters}
            rows.append({**{key: row[key] for key in kept}, **names, "answer": study.folder in chosen, **searched})
    names_first = [*ANSWER, "repeat", "budget_multiple", "stage", "answer"]
    columns = list(dict.fromkeys([*names_first, *(key for row in rows for key in row)]))
    return pd.DataFrame(rows, columns=columns).astype({"steps_to_result": "Int64"})


def in_words(dimension: Mapping[str, Any]) -> str:
    """A dimension of a search space as text for people.

    >>> in_words({"low": 0.001, "high": 1, "scale": "log", "hard": [], "integer": False})
    '0.001 to 1, log'
    >>> in_words({"choices": [0.9]}), in_words({"choices": ["constant", "cosine"]})
    ('0.9', 'constant, cosine')
    """
    if "choices" in dimension:
        return ", ".join(value if isinstance(value, str) else f"{value:g}" for value in dimension["choices"])
    scale = dimension["scale"].replace("_", " ")
    whole = ", whole numbers" if dimension["integer"] else ""
    return f"{dimension['low']:.6g} to {dimension['high']:.6g}, {scale}{whole}"


def repeats(studies: Sequence[StudyData]) -> pd.DataFrame:
    """How much S(B) varies from one repeat of a search to the next.

    Returns:
        A row for each (workload, optimizer, batch_size) with at least two complete repeats, the first search included
        (complete: under every budget): the goal, searches (their number), reached (how many reached the goal), and the
        least, median and greatest steps-to-result (infinite where a search missed the goal).

    >>> from analysis import load
    >>> repeats(list(load.load(published))).empty  # no search was repeated
    True
    """
    rows = []
    for searches in by_study(studies):
        numbers = [branch.repeat for branch in searches if branch == Branch(branch.repeat)]
        made = [answer(searches, repeat) for repeat in numbers if not _missing(searches, repeat)]
        found = [steps_to_result.row(search) for search in made]
        if len(found) > 1:
            steps = np.array([row["steps_to_result"] if row["reached"] else np.inf for row in found], dtype=float)
            counts = {"searches": len(found), "reached": int(np.isfinite(steps).sum())}
            spread = {"least": steps.min(), "median": float(np.median(steps)), "greatest": steps.max()}
            rows.append({**{key: found[0][key] for key in ANSWER}, **counts, **spread})
    columns = [*ANSWER, "searches", "reached", "least", "median", "greatest"]
    return pd.DataFrame(rows, columns=columns)


def fresh_seeds(searches: Mapping[Branch, StudyData], goal: Goal | None = None) -> tuple[StudyData, StudyData] | None:
    """(the search, the trainings of its tuned configuration with fresh seeds); None if there are none.

    Seeds are fresh if they had no part in choosing the configuration. With `refine`, the configuration is always
    the one that it confirmed for the study's own goal. The trial index numbers the seeds, and equal numbers are equal
    seeds at every batch size and for every optimizer. Every estimate of S(B) is read from here.

    Arguments:
        searches: all searches of one study, by branch.
        goal: the goal to read; by default, the study's own. Without `refine`, it chooses the configuration.

    >>> folder = f"{published}/studies/mlp_digits/sgd/64"
    >>> search, again = fresh_seeds({study.branch: study for study in (study, load_study(f"{folder}/rerun-1"))})
    >>> str(again.branch), len(again.trials)
    ('reruns of trial 1', 5)
    """
    chosen = answer(searches)
    goal = goal or chosen.goal
    if not chosen.begun or steps_to_result.unanswerable(chosen, goal):
        return None
    trial = steps_to_result.row(chosen, goal)["tuned_trial"]
    again = None if trial is None else searches.get(chosen.branch._replace(rerun=trial))
    if again is None or steps_to_result.unanswerable(again, goal):
        return None
    return chosen, again


def rerun_steps(studies: Sequence[StudyData], goals: Sequence[Goal | None] = (None,)) -> pd.DataFrame:
    """Every finished training of a tuned configuration with fresh seeds.

    Arguments:
        studies: all searches.
        goals: the goals to read from the curves, where they can answer them; None is each study's own.

    Returns:
        A row for each (workload, optimizer, batch_size, goal, rerun): trial and steps_to_result of the search, status
        of the run, its steps (to the goal; infinite if it was not reached), step_before (the last measured step before;
        NA if it was not reached), and tuned_for, the goal that the
        configuration was tuned for if it is not this one (else None).

    >>> folder = f"{published}/studies/mlp_digits/sgd/64"
    >>> search = load_study(folder)
    >>> found = rerun_steps([search, load_study(f"{folder}/rerun-1")])
    >>> found[["trial", "steps_to_result", "rerun", "steps"]].head(2)
       trial  steps_to_result  rerun  steps
    0      1               21      0   35.0
    1      1               21      1   31.0
    """
    frames = []
    for searches in by_study(studies):
        for goal in goals:
            found = fresh_seeds(searches, goal)
            if found is not None:
                search, again = found
                row = steps_to_result.row(search, goal)
                frame = steps_to_result.outcomes(again, goal or search.goal).rename_axis("rerun").reset_index()
                frame = frame[frame["status"] != INCOMPLETE]
                steps = frame["steps_to_goal"].where(frame["status"] == COMPLETE).astype("float64").fillna(np.inf)
                kept = {key: row[key] for key in (*ANSWER, "trial", "steps_to_result")}
                other = search.refines and goal not in (None, search.goal)  # `refine` confirms one for its own goal
                kept["tuned_for"] = goal_text(search.goal.metric, search.goal.threshold) if other else None
                before = frame["step_before"].where(np.isfinite(steps))
                frames.append(frame[["rerun", "status"]].assign(steps=steps, step_before=before, **kept))
    columns = [*ANSWER, "trial", "steps_to_result", "rerun", "status", "steps", "step_before", "tuned_for"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def reruns(runs: pd.DataFrame) -> pd.DataFrame:
    """The steps that each tuned configuration needs with fresh seeds.

    Arguments:
        runs: from `rerun_steps`.

    Returns:
        A row for each (workload, optimizer, batch_size) that was rerun: the goal, trial and steps_to_result of the
        search, reruns, infeasible and reached (counts), and the least, median (`analysis.intervals.median`) and
        greatest steps to the goal of the reruns (infinite where the goal was not reached), and tuned_for as in
        `rerun_steps`.

    >>> runs = pd.read_csv(f"{published}/tables/rerun_steps.csv")
    >>> reruns(runs)[["batch_size", "steps_to_result", "reruns", "reached", "least", "median"]].head(2)
       batch_size  steps_to_result  reruns  reached  least  median
    0           1              759       5        5  519.0   628.0
    1           2              293       5        5  242.0   390.0
    """
    if runs.empty:
        counts = ["reruns", "infeasible", "reached", "least", "median", "greatest", "tuned_for"]
        return pd.DataFrame(columns=[*ANSWER, "trial", "steps_to_result", *counts])
    by = runs.groupby([*ANSWER, "trial", "steps_to_result"], sort=False, dropna=False)
    table = by.agg(
        reruns=("steps", "size"),
        infeasible=("status", lambda status: int((status != COMPLETE).sum())),
        reached=("steps", lambda steps: int(np.isfinite(steps).sum())),
        least=("steps", "min"),
        median=("steps", lambda steps: median(*with_before(runs.loc[steps.index]))),
        greatest=("steps", "max"),
        tuned_for=("tuned_for", "first"),
    )
    return table.reset_index()
