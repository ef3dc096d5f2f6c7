"""The searches of one study: stages in wider search spaces, multiples of the budget, repetitions, and reruns.

Only the curves on file decide the next search, so that an interruption loses nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from analysis.counting import STOPPING, Branch
from analysis.edges import widening
from study.records import Curve, Study
from study.search.tuner import Tuner
from study.settings import Search
from study.space import Dimension
from study.space import extended as extended_space

Load = Callable[[Study], Sequence[Curve]]
"""A search -> the curves of its finished trials."""


def planned(study: Study) -> list[Study]:
    """The searches that are known before training: each multiple of the budget in each repetition."""
    repeats = range(study.search.repeats + 1)
    return [_on_budget(study, repeat, budget) for repeat in repeats for budget in _budgets(study)]


def missing(study: Study, load: Load) -> list[Tuner]:
    """The incomplete searches that are known now, the next one first."""
    following, known = next_search(study, load), planned(study)
    if following is not None and following not in known:
        known.insert(0, following)
    return [tuner for search in known if not (tuner := Tuner(search, load(search))).complete]


def next_search(study: Study, load: Load) -> Study | None:
    """The first search of a study that is not complete, stages and reruns included; None if all are."""
    for repeat in range(study.search.repeats + 1):
        made = last_stages(study, load, repeat)
        if not made[-1].complete:
            return made[-1].study
        best = fastest(made)
        if repeat == 0 and study.search.reruns and best is not None:
            again = rerun(best)
            if not Tuner(again, load(again)).complete:
                return again
    return None


def remaining(study: Study, load: Load) -> Iterator[Study]:
    """The searches of a study that are not complete, each decided when the one before it is complete."""
    while (search := next_search(study, load)) is not None:
        yield search


def last_stages(study: Study, load: Load, repeat: int = 0) -> list[Tuner]:
    """The last stage under each multiple of the budget, in increasing order, up to the first incomplete one."""
    made = []
    for budget in _budgets(study):
        *_, last = stages(_on_budget(study, repeat, budget), load)
        made.append(last)
        if not last.complete:
            break
    return made


def fastest(made: Sequence[Tuner]) -> Tuner | None:
    """The search with the fewest steps to the goal, whose best trial is the tuned configuration.

    None if no search reached the goal.

    Arguments:
        made: complete searches, one per multiple of the budget; ties go to the smaller budget.
    """
    reached = [tuner for tuner in made if tuner.steps_to_result is not None]
    return min(reached, key=lambda tuner: (tuner.steps_to_result, tuner.study.branch.budget), default=None)


def tuned(study: Study, load: Load) -> Tuner | None:
    """The search that holds the tuned configuration of a study; None if it is not complete or missed the goal."""
    made = last_stages(study, load)
    return fastest(made) if made[-1].complete else None


def stages(study: Study, load: Load) -> Iterator[Tuner]:
    """A search and the searches in wider spaces that follow from it, up to the first incomplete one."""
    wider: Study | None = study
    while wider is not None:
        tuner = Tuner(wider, load(wider))
        yield tuner
        wider = extended(tuner) if tuner.complete else None


def extended(tuner: Tuner) -> Study | None:
    """The next stage of a complete search: the same search in a space that is wider at the open edges where its best
    trials lie. None if there is no such edge, or the stage limit is reached. The rounds of `refine` extend the space
    themselves."""
    study, search = tuner.study, tuner.study.search
    if not search.extend or search.refines or study.branch.stage >= search.extend_limit:
        return None
    points = [trial.hyperparameters for trial in tuner.best_trials]
    space, found = extended_space(search.space, points, search.extend_factor, study.legal)
    branch = study.branch._replace(widened=(*study.branch.widened, widening(found)))
    return replace(study, search=replace(search, space=space), branch=branch) if found else None


def rerun(tuner: Tuner) -> Study:
    """A search that trains the tuned configuration of a complete search again, with fresh seeds."""
    study, best = tuner.study, tuner.tuned
    assert best is not None
    branch, fresh = study.branch._replace(rerun=best.index), study.search.fresh_data
    return trained_again(study, best.hyperparameters, study.search.reruns, branch, fresh)


def trained_again(
    study: Study, hyperparameters: Mapping[str, float], times: int, branch: Branch, fresh_data: str | None = None
) -> Study:
    """A search that trains one configuration `times` times, with different seeds, to the goal or the full budget.

    Arguments:
        fresh_data: what else differs between these trainings, as in `study.settings.Search`.
    """
    fixed = {name: Dimension(choices=(value,)) for name, value in hyperparameters.items()}
    return replace(
        study,
        search=Search("sobol", trials=times, space=fixed, max_launches=times, fresh_data=fresh_data),
        # A race would stop the slow seeds, and they are part of the measurement.
        stopping="goal" if STOPPING[study.stopping].races else study.stopping,
        branch=branch,
    )


def _on_budget(study: Study, repeat: int, budget: float) -> Study:
    return replace(study, branch=Branch(repeat=repeat, budget=budget))


def _budgets(study: Study) -> list[float]:
    return sorted(set(study.search.budgets))
