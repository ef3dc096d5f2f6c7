"""Turns studies, tuners and curves into the plain events of observers."""

from pathlib import Path

from study.observers.base import Finished, Search, State
from study.records import Curve, Study
from study.search.tuner import Tuner


def search_of(study: Study, results: Path, seconds: float) -> Search:
    """A search; `seconds`: estimate of one of its trials at the full step budget."""
    is_transfer = study.branch.rule is not None or study.start is not None
    return Search(
        results=results,
        workload=study.name,
        optimizer=study.series,
        batch_size=study.batch_size,
        name=str(study.branch) if is_transfer else study.branch.path,
        goal=str(study.goal),
        metric=study.goal.metric,
        train_steps=study.last_step,
        trials=study.search.trials,
        seconds=seconds,
        is_transfer=is_transfer,
        title=str(study.branch),
    )


def state_of(tuner: Tuner) -> State:
    """How far a search has come, given the trials that its tuner knows."""
    study = tuner.study
    own = study.branch.rerun is None and study.start is None and not study.search.refines
    complete = tuner.complete
    lacks = own and complete and tuner.feasible < study.search.trials
    return State(tuner.done, tuner.feasible, tuner.infeasible, tuner.steps_to_result, complete, lacks)


def finished_of(tuner: Tuner, curve: Curve, position: int) -> Finished:
    """A trial whose curve the tuner was told; `position`: in the order in which the trials of the search finished."""
    outcome = tuner.outcomes[curve.trial.index]
    return Finished(
        index=curve.trial.index,
        hyperparameters=dict(curve.trial.hyperparameters),
        status=outcome.status,
        steps_to_goal=outcome.result,
        first_bad_step=curve.first_bad_step,
        steps=[int(step) for step in curve.steps],
        errors={name: [float(error) for error in errors] for name, errors in curve.errors.items()},
        seconds=dict(curve.seconds),
        position=position,
    )
