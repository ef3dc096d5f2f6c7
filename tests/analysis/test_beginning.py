"""A search that has just begun moves nothing that the other batch sizes of its curve show."""

import pytest

from analysis.report.build import read
from study.search import stages
from study.search.tuner import Tuner
from study.settings import Budget

USUAL = {8: [800] * 8, 16: [400] * 8, 32: [200] * 8, 64: [190] * 8}


@pytest.mark.parametrize(
    ("beside", "ends", "trials", "counts"),
    [
        (USUAL, [1500], 8, False),  # just begun
        (USUAL, [1500], 1, False),  # complete, but of one trial
        (USUAL, ["bad", "bad"], 8, True),  # a quarter
        (USUAL, [None] * 7, 8, True),
        ({8: [800] * 8, 16: [400] * 8}, [1500], 8, True),  # there would be no curve without it
        ({size: [800] for size in USUAL}, [1500], 8, True),  # as few as usual
    ],
)
def test_a_batch_size_whose_search_has_just_begun_moves_no_limit(sweep, beside, ends, trials, counts):
    before = read([sweep(beside)])
    after = read([sweep({128: ends}, trials=trials)])
    limits = [data.tables["scaling"].drop(columns="read_from") for data in (before, after)]
    assert (128 in after.tables["steps_to_result"]["batch_size"].tolist()) == counts
    assert counts or limits[0].equals(limits[1])
    assert any("batch size 128: left out" in text for text in after.warnings) != counts
    assert 128 in after.tables["searches"]["batch_size"].tolist()
    assert after.answers[0].next.advice  # `study claims` asks for it, too


@pytest.mark.slow
def test_a_search_under_way_without_fresh_seeds_is_left_out_beside_those_that_have_them(
    tmp_path, make_study, make_curve, write_study
):
    """Otherwise the whole curve would be read from the searches alone."""
    for size in (8, 16, 32, 64):
        study = make_study(
            batch_size=size, trials=4, reruns=4, examples=4096, budget=Budget(0, 2000), stopping="budget"
        )
        curves = [make_curve(study, index, reaches=3200 // size) for index in range(4 if size < 64 else 3)]
        write_study(tmp_path, study, curves, close=size < 64)
        if size < 64:
            again = stages.rerun(Tuner(study, curves))
            write_study(tmp_path, again, [make_curve(again, seed, reaches=3500 // size) for seed in range(4)])
    data = read([tmp_path])
    assert set(data.tables["steps_to_result"]["read_from"]) == {"fresh seeds"}
    assert any("batch size 64: left out until its search is complete: 3 of 4 trials" in text for text in data.warnings)
