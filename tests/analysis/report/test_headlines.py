"""What is said of a curve: the critical batch size first, bounds as bounds, and where the numbers come from."""

import pytest
from helpers.estimated import estimated

from analysis.report import headlines
from study.settings import Evaluation

FLAT = {1: 600, 2: 590, 4: 580}
BENT = {1: 1600, 4: 420, 16: 130, 64: 60, 256: 42, 1024: 40}


def said(studies, base=None):
    found = estimated(studies, base=base)
    return headlines.sentences(found.steps, found.limits, base or 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "base", "words"),
    [
        (
            BENT,
            None,
            [": critical batch size 41 (95%: 38 to 45) ", "by McCandlish et al. (2018)", "perfect scaling, within 20%"],
        ),
        (BENT, None, ["go from 1,600 at batch size 1 to 40 at 1,024 (40 times fewer)", "search.reruns=4"]),
        (BENT, None, ["Batch sizes above ", " save at most 5% more (95%: above 202)", "scatter about the curve"]),
        ({1: 1600, 2: 800, 4: 400}, None, ["critical batch size at least 4", "up to the largest batch size, 4"]),
        ({1: 1600, 2: 800, 4: 400}, None, ["Steps still fall at the largest batch size, 4."]),
        (
            {1: 1600, 2: 800, 4: 400, 8: None},
            None,
            ["The maximum useful batch size is at least 4, the largest that reached the goal."],
        ),
        ({1: 600, 2: 300, 4: 290, 8: 290, 16: None}, None, ["batch size is at least 8, the largest that reached"]),
        ({1: 1600, 2: 800, 4: 400, 8: None}, None, ["up to the largest batch size that reached the goal, 4"]),
        (FLAT, None, ["Steps do not fall in proportion to batch size anywhere from 1 on."]),
        (FLAT, None, ["No batch size saves more than 5% of the steps of 1."]),
        (FLAT | {1: None, 8: 570}, None, ["anywhere from 2 on."]),
        (FLAT, 2, ["anywhere from 2 on."]),
        (
            {1: 900, 4: 300, 16: 200, 64: 240, 256: 390, 1024: 700, 4096: 1300},
            None,
            ["no limits of scaling are read, because steps rise with the batch size"],
        ),
        ({1: 1600, 4: 400}, None, ["limits of scaling need three batch sizes", "fewer than six batch sizes"]),
        ({1: 400, 4: 500}, None, ["(1.25 times as many)"]),
        ({1: None, 2: "bad"}, None, ["no batch size reached the goal"]),
        ({4: 300, 8: None}, None, ["reached at batch size 4 alone, in 300 steps"]),
    ],
)
def test_what_is_said_of_searches(results, ends, base, words):
    text = " ".join(said(results({size: [end] * 4 for size, end in ends.items()}), base))
    assert [each for each in words if each not in text] == [], text


AT_ONCE = [
    ({1: 1600, 2: 800, 4: 400, 8: 40}, "within 20%) up to the largest batch size with known steps, 4"),
    ({1: 1600, 2: 800, 4: 400, 8: 40}, "The maximum useful batch size is at least 4, the largest with known steps"),
    ({1: 1600, 2: 40}, ": reached at batch size 1 in 1,600 steps, and at 2 at the first evaluation, perhaps earlier."),
    ({1: 40, 2: 800, 4: 40, 8: None}, "at batch size 2 in 800 steps, and at 1 and 4 at the first evaluation, perhaps"),
    ({1: 40, 2: 40}, ": the goal was met at the first evaluation, perhaps earlier, so the steps are only upper bounds"),
]


@pytest.mark.parametrize(("ends", "words"), AT_ONCE)
def test_a_batch_size_that_met_the_goal_at_once_is_not_said_to_have_missed_it(results, ends, words):
    found = results({size: [end] * 4 for size, end in ends.items()}, evaluation=Evaluation(0.02))
    assert words in " ".join(said(found))


def test_the_critical_batch_size_comes_first(results):
    first, second = said(results({size: [end] * 4 for size, end in BENT.items()}))
    assert first.startswith("tiny with momentum to validation error < 0.1: critical batch size ")
    assert second.startswith("tiny with momentum to validation error < 0.1: the fewest steps of each search go from ")


@pytest.mark.slow
@pytest.mark.parametrize(("critical", "proportional"), [(1024, True), (64, False)])
@pytest.mark.parametrize("base", [None, 256])
def test_beyond_the_critical_batch_size_steps_are_not_said_to_fall_in_proportion(results, critical, proportional, base):
    sizes = (128, 256, 512, 1024, 2048, 4096)[: 5 if base else 6]
    first, *_ = said(results({size: [round(200 * (1 + critical / size))] * 4 for size in sizes}), base)
    assert ("(perfect scaling, within 20%) up to" in first) == proportional, first
    assert (f"At {base or 128} steps no longer fall in proportion to batch size: " in first) != proportional, first


def test_a_base_beyond_all_batch_sizes_says_nothing_of_perfect_scaling(results):
    first, *_ = said(results({size: [end] * 4 for size, end in BENT.items()}), base=4096)
    assert "perfect" not in first


@pytest.mark.slow
def test_what_is_said_of_fresh_seeds(results):
    bent = {size: end / 2 for size, end in BENT.items()}
    searches = results({size: [int(end)] * 4 for size, end in bent.items()})
    branch = searches[0].branch._replace(rerun=0)
    for size, end in bent.items():
        again = results({size: [round(1.2 * end), round(1.3 * end), None if size == 4 else round(1.4 * end)]},
                        branch=branch, trials=3)  # fmt: skip
    first, second = said(again)
    assert "critical batch size 4" in first
    assert "steps of the tuned configuration go from " in second
    assert "They are medians of 3 fresh seeds, 1.3 times the fewest steps of the search on average." in second
    assert "from the noise of seeds and " in second
    assert "Goal missed with fresh seeds: 1 of 3 at 4." in second


def test_fresh_seeds_at_some_batch_sizes_alone_are_not_asked_for_again(results):
    branch = results({size: [end] * 4 for size, end in BENT.items()})[0].branch._replace(rerun=0)
    again = results({size: [end] * 3 for size, end in BENT.items() if size not in (16, 64)}, branch=branch, trials=3)
    assert "search=refine) at batch sizes 16 and 64, too, measure without it." in said(again)[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "words"), [(6, "intervals come from the scatter about the curve."), (2, "no intervals.")]
)
def test_one_fresh_seed_shows_no_noise(results, sizes, words):
    ends = dict(list(BENT.items())[:sizes])
    branch = results({size: [end] * 4 for size, end in ends.items()})[0].branch._replace(rerun=0)
    for size, end in ends.items():
        again = results({size: [end]}, branch=branch, trials=1)
    assert f"One fresh seed shows no noise of seeds: {words}" in said(again)[-1]


@pytest.mark.slow
def test_a_batch_size_far_off_the_curve_is_named(results):
    sizes = [2**n for n in range(9)]
    ends = {size: [round(1900 / size * (3 if size == 16 else 1 + 0.02 * (n % 3)))] * 4 for n, size in enumerate(sizes)}
    _, second = said(results(ends))
    assert "Batch size 16 lies 2" in second
    assert "times above the curve, more than three standard errors." in second
