"""The import notes runs that were evaluated more rarely than others of their batch size."""

import doctest
import re

import pytest

from study.exchange.logs import studies
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

GEOMETRIC = [1, 2, 4, 8, 16, 32, 64, 128]
# The steps at which each run was evaluated -> the spacings that the note names; None: no note.
GRIDS = {
    "a run that stopped early on a grid that becomes rarer": ([GEOMETRIC, GEOMETRIC[:5]], None),
    "a run that stopped after one evaluation": ([GEOMETRIC, GEOMETRIC[:1]], None),
    "the same spacing, begun elsewhere": ([[10, 20, 30, 40], [5, 15, 25]], None),
    "a run that went on where another stopped": ([[10, 20, 30, 40], [40, 140, 240]], None),
    "a rare grid beside a dense one": ([range(1, 200, 10), range(1, 200)], "1 to 10"),
    "a dense run that stopped early": ([range(10, 20), range(10, 500, 100)], "1 to 100"),
    "a rare grid that becomes rarer": ([GEOMETRIC, GEOMETRIC[::3]], "10.5 to 31.5"),
}


@pytest.mark.parametrize("kind", GRIDS)
def test_evaluations_are_compared_where_both_runs_trained(tmp_path, kind):
    grids, said = GRIDS[kind]
    lines = [f"{run},8,{step},{0.9 - step / 1000}," for run, grid in enumerate(grids) for step in grid]
    (tmp_path / "log.csv").write_text("\n".join(["run,batch_size,step,val/loss,status", *lines]) + "\n")
    told = import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    found = re.findall(r"runs were evaluated every (.*) steps: those", "\n".join(told.warnings))
    assert found == [said] * (said is not None)


def test_examples():
    assert doctest.testmod(studies).failed == 0
