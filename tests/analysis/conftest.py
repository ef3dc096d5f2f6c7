"""Results folders from the steps at which trials reach their goal."""

import pytest

from analysis.load import load
from study.settings import Evaluation

FROM_STEP_1 = Evaluation(first=0.0005, every=5)
"""At the first evaluation an end would only be an upper bound; so that is step 1."""


@pytest.fixture
def sweep(tmp_path, make_study, make_curve, write_study):
    """Write studies of {batch size: [an end a trial]} into `tmp_path`, which it returns.

    An end is the step that reaches the goal, None if none does, "bad" if the trial diverges at step 7, or "missing" if
    its file is not there. Budgets are 2,000 steps and are run in full, unless `fields` say otherwise.
    """

    def write(studies, folder=tmp_path, **fields):
        for size, ends in studies.items():
            usual = {"examples": 4096, "steps": 2000, "trials": max(1, len(ends)), "evaluation": FROM_STEP_1}
            study = make_study(batch_size=size, **usual | fields)
            curves = [
                make_curve(study, index, **({"bad": 7} if end == "bad" else {"reaches": end}))
                for index, end in enumerate(ends)
                if end != "missing"
            ]
            write_study(folder, study, curves)
        return folder

    return write


@pytest.fixture
def results(sweep):
    """Write studies as `sweep` does, and load all in the folder."""
    return lambda studies, **fields: list(load(sweep(studies, **fields)))
