"""Splits of a batch size over devices: their times and costs in closed form, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.advice import comparisons, sentences, splits
from analysis.advice.splits import SPLIT, Machine, factorisations
from analysis.advice.step_times import AdviceError, StepTimes, recorded
from analysis.advice.tables import overview
from analysis.load import load
from study.settings import Budget

EXAMPLES, FLAT_FROM = 8192, 64
STEPS = {size: max(EXAMPLES // size, EXAMPLES // FLAT_FROM) for size in (8, 16, 32, 64, 128, 256)}
START, EACH = 0.010, 0.001
"""Seconds of a step: START + EACH for each example."""
AFFINE = StepTimes({size: START + EACH * size for size in (1, 256)})


@pytest.fixture(scope="module")
def write(tmp_path_factory, make_study, make_curve, write_study):
    """Write a curve of {batch size: the steps of every trial, None where it missed}; returns its searches."""

    def write(steps, trials=8, **fields):
        folder = tmp_path_factory.mktemp("curve")
        for size, reaches in steps.items():
            fields = {"examples": EXAMPLES, "budget": Budget(0, 4000), "stopping": "budget"} | fields
            study = make_study(batch_size=size, trials=trials, **fields)
            each = reaches if isinstance(reaches, list) else [reaches] * trials
            write_study(folder, study, [make_curve(study, index, reaches=end) for index, end in enumerate(each)])
        return list(load(folder))

    return write


@pytest.fixture(scope="module")
def scaling(write):
    """Scales perfectly up to FLAT_FROM, and not at all from there on."""
    return write(STEPS)


def best(studies, machine, which="fastest"):
    found = splits.table(studies, machine)
    return found[found[which]].iloc[0]


def said(studies, *machine, **more):
    return sentences.sentences(splits.table(studies, Machine(*machine, **more)))


@given(st.integers(1, 2000), st.sets(st.integers(1, 40)))
@example(32, {1, 2, 4})
def test_every_split_is_there_once(batch_size, devices):
    found = factorisations(batch_size, devices)
    assert all(d * b * a == batch_size and d in devices for d, b, a in found)
    ways = sum(1 for d in devices for a in range(1, batch_size + 1) if batch_size % (d * a) == 0)
    assert len(found) == len(set(found)) == ways


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_where_scaling_ends_is_fastest_and_cheapest(scaling, devices):
    """S(B) (t0 + t1 B / d) falls up to the bend and grows from there; d times as much is least on one device."""
    machine = Machine(range(1, devices + 1), AFFINE)
    fastest, cheapest = (best(scaling, machine, which) for which in ("fastest", "cheapest"))
    assert fastest[["batch_size", *SPLIT]].tolist() == [FLAT_FROM, devices, FLAT_FROM // devices, 1]
    assert cheapest[["batch_size", *SPLIT]].tolist() == [FLAT_FROM, 1, FLAT_FROM, 1]
    assert fastest["seconds"] == pytest.approx(STEPS[FLAT_FROM] * (START + EACH * FLAT_FROM / devices))
    assert cheapest["device_hours"] == pytest.approx(STEPS[FLAT_FROM] * (START + EACH * FLAT_FROM) / 3600)
    assert fastest["seconds_low"] == fastest["seconds"] == fastest["seconds_high"]  # all trials took the same steps


def test_one_device_is_fastest_where_exchanging_takes_longer_than_it_saves(scaling):
    saved = EACH * FLAT_FROM / 2
    for exchange, devices in ((0.9 * saved, 2), (1.1 * saved, 1)):
        assert best(scaling, Machine([1, 2], AFFINE, exchange=exchange))["devices"] == devices


def test_accumulation_on_given_devices_breaks_even_at_best(scaling):
    """One device that takes 8 examples: a batch of 8 a takes a times as long a step, for 1 / a of the steps."""
    machine = Machine([1], AFFINE, largest=8)
    found = splits.table(scaling, machine)
    within = found[(found["per_device_batch"] == 8) & (found["batch_size"] <= FLAT_FROM)]
    np.testing.assert_allclose(within["seconds"], STEPS[8] * (START + EACH * 8))
    assert best(scaling, machine)[["batch_size", *SPLIT]].tolist() == [8, 1, 8, 1]
    text = sentences.sentences(found)[-1]
    assert text.startswith("Accumulation saves no time on 1 device: 16 = 1 x 8 x 2 needs 0.500 times the steps of 8 = ")
    assert "each 2 times as long, and so 1 times its time" in text


def test_accumulation_pays_where_it_saves_exchanges(scaling):
    machine = Machine([2], AFFINE, largest=8, exchange=0.050)
    row = best(scaling, machine)
    assert row[["batch_size", *SPLIT]].tolist() == [FLAT_FROM, 2, 8, 4]
    assert row["seconds_per_step"] == pytest.approx(4 * (START + 8 * EACH) + 0.050)
    [*_, text] = sentences.sentences(splits.table(scaling, machine))
    assert text.startswith("Accumulation saves time on 2 devices: 64 = 2 x 8")


def test_accumulation_that_pays_by_luck_alone_is_not_said_to_pay(write):
    lucky = write({8: [400] * 8, 16: [190, *[420] * 7]})
    why = "Accumulation may save time on 1 device, but these trials do not show it: 16 = 1 x"
    assert said(lucky, [1], AFFINE, largest=8)[-1].startswith(why)


def test_accumulation_that_cannot_be_avoided(scaling):
    assert said(scaling, [1], AFFINE, largest=4)[-1].startswith("Accumulation is necessary on 1 device")


def test_fewer_devices_that_are_nearly_as_fast(scaling):
    times = StepTimes({16: 0.100, 32: 0.101, 64: 0.2})
    expected = "64 = 2 x 32 x 1 takes 1.01 times as long for 0.505 times the device time."
    assert said(scaling, [1, 2, 4], times)[2] == expected
    # One device is no 5 % slower, but twice.
    assert not any("as long for" in text for text in said(scaling, [1, 4], times))


@pytest.mark.slow
def test_what_trials_cannot_tell_apart(write):
    apart = write({8: [400] * 8, 16: [100] * 8})
    assert "Every other batch size is shown to be slower." in said(apart, [1], AFFINE)
    scattered = write({8: [50, 60, 400, 420, 500, 520, 700, 800], 16: [40, 70, 300, 420, 500, 520, 700, 800]})
    assert "Batch size 8 is tied with it" in " ".join(said(scattered, [1], StepTimes({8: 0.1, 16: 0.1})))


NOTHING_KNOWN = {
    "one trial": (1, {}, "Whether batch sizes 8 and 16 are slower is not known yet: fewer than 4 trials have no "
        "interval. Next: sweep again with search.trials=20."),
    "three trials": (3, {}, "fewer than 4 trials have no interval. Next: sweep again with search.trials=20."),
    "adaptive": (8, {"sampler": "tpe"}, "adaptive searches have no interval. Next: sweep again with fresh seeds ("),
    "imported": (2, None, "fewer than 4 runs have no interval. Next: import more runs."),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "fields", "words"), NOTHING_KNOWN.values(), ids=NOTHING_KNOWN)
def test_batch_sizes_without_intervals_are_not_said_to_tie(write, trials, fields, words):
    steps = {8: [1600] * trials, 16: [800] * trials, 64: [100] * trials}
    studies = write(steps, trials=trials, **(fields or {}))
    found = splits.table(studies, Machine([1], AFFINE))
    if fields is None:  # as of imported runs
        found["comparison"] = found["comparison"].replace(comparisons.FEW_TRIALS, comparisons.FEW_RUNS)
    text = " ".join(sentences.sentences(found))
    assert words in text
    assert "tied" not in text
    assert "Every other batch size is shown to be slower." not in text
    assert overview(found)[""].tolist() == ["not known", "not known", "fastest, cheapest"]


def test_batch_sizes_with_too_few_trials_are_named_apart_from_the_tied_ones(write):
    few = {8: [400] * 2, 16: [100, *[120] * 7], 32: [102, *[125] * 7], 64: [900] * 8}
    text = " ".join(said(write(few), [1], StepTimes(dict.fromkeys((8, 64), 0.1))))
    assert "Batch size 32 is tied with it" in text
    assert "Whether batch size 8 is slower is not known yet" in text
    assert "64 is" not in text


def test_the_cheapest_that_cannot_be_told_apart(write):
    """16 = 4 x 4 x 1 takes 4 s; 1 x 16 x 1, the cheapest, 4.4 s for sure; 8 = 2 x 4 x 1 takes 4.2 s, or so."""
    early, late = ([best, 70, 300, 420, 500, 520, 700, 800] for best in (42, 40))
    studies, times = write({8: early, 16: late}), {4: 0.100, 8: 0.109, 16: 0.110}
    cheapest = "the cheapest tied split is 8 = 2 x 4 x 1: 4.2 s, 8.4 s of device time."
    assert said(studies, [1, 2, 4], StepTimes(times))[-2] == f"Batch size 8 is tied with it; {cheapest}"
    text = said(studies, [1, 4], StepTimes(times | {8: 0.100, 16: 0.130}))[-2]
    assert text == "Batch size 8 is tied with it, the cheapest split included."
    alone = said(studies, [1], StepTimes({8: 0.1, 16: 0.1}))  # the fastest is the cheapest
    assert "It is also the cheapest." in alone
    assert "Batch size 8 is tied with it." in alone


def test_what_step_times_cannot_tell_apart(write):
    """Two batch sizes 10 % apart are alike where a step time is off by half when it is left out."""
    studies = write({8: [100] * 8, 16: [110] * 8})
    for more, slower in (({}, True), ({4: 0.05, 32: 0.5}, False)):
        found = splits.table(studies, Machine([1], StepTimes({8: 0.1, 16: 0.1} | more)))
        [row] = found[(found["batch_size"] == 16) & (found["accumulation_steps"] == 1)].to_dict("records")
        assert row["shown_slower"] == slower


def test_what_was_not_timed_is_not_shown_to_be_slower(write):
    """Steps of 8 examples take 1 ms, but only those of 64 were timed: batch size 8 may be ten times as fast."""
    studies = write({8: [200] * 8, 64: [100] * 8})
    truth = said(studies, [1], StepTimes({8: 0.001, 64: 0.1}))
    assert "the fastest is batch size 8 = 1 x 8 x 1" in truth[0]
    times = StepTimes({64: 0.1})
    found = splits.table(studies, Machine([1], times))
    assert not found[(found["batch_size"] == 8) & (found["accumulation_steps"] == 1)]["shown_slower"].item()
    assert overview(found)[""].tolist() == ["not timed", "fastest, cheapest"]
    text = " ".join(sentences.sentences(found))
    assert "Batch size 8 may be faster or cheaper: times of such steps are upper bounds." in text
    assert "Every other batch size is shown to be slower." not in text


def test_what_is_slower_at_any_possible_time_is_shown(write):
    """A step of 8 examples takes at least an eighth of one of 64."""
    studies = write({8: [1000] * 8, 64: [100] * 8})
    assert "Every other batch size is shown to be slower." in said(studies, [1], StepTimes({64: 0.1}))


def test_splits_of_equal_time_are_not_told_apart_by_rounding(write):
    """Three steps of 0.1 s take 0.30000000000000004 s."""
    found = splits.table(write({3: [100] * 8}), Machine([1], StepTimes({1: 0.1, 3: 0.3})))
    assert not found["shown_slower"].any()


machines = st.builds(
    Machine,
    devices=st.lists(st.integers(1, 16), max_size=6).map(lambda counts: [1, *counts]),
    times=st.dictionaries(st.integers(1, 300), st.floats(1e-6, 10), min_size=1, max_size=8).map(StepTimes),
    largest=st.integers(1, 300),
    exchange=st.floats(0, 1),
    gradient_bytes=st.floats(0, 1e10),
    bandwidth=st.floats(1e6, 1e12),
    price=st.floats(0.01, 100),
)


@pytest.mark.slow
@settings(max_examples=20)
@given(machine=machines)
def test_every_row_holds_the_formula(scaling, machine):
    found = splits.table(scaling, machine)
    assert (found[SPLIT].prod(axis=1) == found["batch_size"]).all()
    assert set(found["batch_size"]) == set(STEPS)
    assert found["fastest"].sum() == found["cheapest"].sum() == 1
    advised = found[found["fastest"] | found["cheapest"]]
    assert (advised["per_device_batch"] <= machine.largest).all()
    assert (advised["seconds_bound"] != ">").all()
    assert not found[found["fastest"]]["shown_slower"].any()
    np.testing.assert_allclose(found["cost"], found["devices"] * found["seconds"] / 3600 * machine.price)


@pytest.mark.slow
@settings(max_examples=20)
@given(machine=machines, more=st.integers(1, 500))
def test_more_never_makes_the_best_worse(scaling, machine, more):
    seconds, hours = (best(scaling, machine, which) for which in ("fastest", "cheapest"))
    for changed in ({"largest": machine.largest + more}, {"devices": [*machine.devices, more]}):
        richer = replace(machine, **changed)
        assert best(scaling, richer)["seconds"] <= seconds["seconds"]
        assert best(scaling, richer, "cheapest")["device_hours"] <= hours["device_hours"]


@given(st.dictionaries(st.integers(1, 5000), st.floats(1e-6, 100), min_size=1, max_size=10), st.integers(1, 9999))
def test_more_examples_never_take_less(timed, examples):
    times = StepTimes(timed)
    less, more = times.at(np.array([examples, examples + 1]))
    assert min(timed.values()) * (1 - 1e-9) <= less <= more <= max(timed.values()) * (1 + 1e-9)


def test_step_times_between_those_timed():
    np.testing.assert_allclose(AFFINE.at(np.array([1, 100, 256])), [START + EACH * b for b in (1, 100, 256)])
    assert np.isnan(AFFINE.error)
    assert StepTimes({1: 1.0, 2: 2.0, 3: 3.0}).error == 0
    assert StepTimes({1: 1.0, 2: 4.0, 3: 3.0}).error == 0.5
    assert StepTimes({1: 1.0, 2: 4.0, 4: 2.0}).seconds.tolist() == [1.0, 3.0, 3.0]


def test_recorded_step_times_are_of_the_parts_that_were_taken_at_once(write):
    """Trials of conftest train for 2 s, here in 400 steps of 16 examples, or of 4 parts of 8."""
    budget = Budget(0, 400)
    assert recorded(write({16: 100}, budget=budget)).timed == {16: pytest.approx(2 / 400)}
    assert recorded(write({32: 100}, budget=budget, micro_batch=8)).timed == {8: pytest.approx(2 / 400 / 4)}


def test_what_several_devices_took_together_is_no_step_of_one(write):
    together, alone = write({16: 100}), write({32: 100})
    together[0].provenance[0]["devices"] = 2
    assert list(recorded([*together, *alone]).timed) == [32]
    with pytest.raises(AdviceError, match="no step of tiny with momentum was timed on one device"):
        recorded(together)


def test_a_batch_size_without_the_goal_stays_and_is_not_advised(write):
    studies = write({8: 400, 16: None})
    found = splits.table(studies, Machine([1, 2], AFFINE))
    assert set(found[found["fastest"] | found["cheapest"]]["batch_size"]) == {8}
    assert "shown to be slower" not in " ".join(sentences.sentences(found))  # there is no other
    last = overview(found).iloc[-1]
    assert last[["batch size", "steps", ""]].tolist() == ["16", "> 4,000", "not reached"]
    notes = sentences.notes(found, Machine([1], AFFINE), studies)
    assert "No trial reached the goal at batch size 16: never advised." in notes


def test_what_the_advice_rests_on_is_said(scaling, write):
    machine = Machine([1, 3], StepTimes({16: 0.1, 32: 0.2, 64: 0.3}, "recorded", fused=4))
    text = "\n".join(sentences.notes(splits.table(scaling, machine), machine, scaling))
    for part in (
        "for per-device batches of 16, 32 and 64, linear in between (up to 17% off if one is left out)",
        "one training alone takes 1 to 4 times as long",
        "steps of fewer than 16 examples were not timed; they take at most as long as steps of 16",
        "Splits with more than 64 examples on a device were not timed and are left out.",
        "Every per-device batch is assumed to fit",
    ):
        assert part in text
    apart = replace(machine, devices=[3, 8], exchange=0.5)
    more = [*scaling, *write({100: [100, 110]}, trials=2), *write({512: [100, 110]}, trials=3)]
    text = "\n".join(sentences.notes(splits.table(more, apart), apart, more))
    assert "Left out, because it cannot be divided evenly among these devices: batch size 100." in text
    assert "The search at batch size 512 is not complete: it may find fewer steps." in text
    assert "8 devices exchange gradients in 500 ms after each update" in text


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (Machine([3, 7], AFFINE), "no batch size that reached the goal can be divided evenly among 3 or 7 devices"),
        (Machine([1], AFFINE, largest=0), "not even one example fits on a device; give more --memory"),
    ],
)
def test_impossible_machines(scaling, machine, why):
    with pytest.raises(AdviceError, match=why):
        splits.table(scaling, machine)


@pytest.mark.parametrize("ends", [[None, "bad"], ["bad", "bad"]])
def test_a_sweep_that_missed_its_goal_is_sent_to_its_report(results, ends):
    why = "no batch size can be advised; give a looser --goal, or sweep again: `study report` says with what changed."
    with pytest.raises(AdviceError, match=why):
        splits.table(results({8: ends}, max_launches=2), Machine([1], AFFINE))


@pytest.mark.parametrize(("tokens", "shown"), [(None, None), (64, ["512", "1,024"])])
def test_batch_sizes_in_tokens(write, tokens, shown):
    found = overview(splits.table(write({8: 400, 16: 200}, tokens_per_example=tokens), Machine([1], AFFINE)))
    assert (list(found["tokens"]) if "tokens" in found else None) == shown
