"""The surfaces of `benchmarks.power` have the optima that they state, and its measures find errors that are planted."""

import json
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from analysis.counting import first_crossing
from benchmarks.power import __main__ as benchmark
from benchmarks.power import parameters
from benchmarks.power.digits import Digits
from benchmarks.power.measures import Curves, accuracy, limits_found, power
from benchmarks.power.protocols import Found, Refine, Sobol, sobol
from benchmarks.power.quadratic import Quadratic, best
from benchmarks.power.surfaces import At, planted

SGD = Quadratic("sgd", (256, 1024, 4096))
DIGITS = At(Digits("sgd"), (16, 64, 256))


def mean_log_steps(surface, size, point, seeds=200):
    curves = surface.train(size, np.tile(point, (seeds, 1)), [(0, number) for number in range(seeds)])
    return np.mean(np.log([first_crossing(curve.steps, curve.errors, surface.threshold) for curve in curves]))


def test_trainings_of_the_quadratic_model_take_the_exact_steps():
    steps, point = best("sgd", 1024)
    assert mean_log_steps(SGD, 1024, point) == pytest.approx(np.log(steps), abs=0.03)


def test_emulated_trainings_take_the_steps_of_the_smoothed_surface():
    emulator = Digits("momentum").emulator(16)
    points = sobol(2, 2048, (1,))
    points = points[emulator.met[emulator.neighbours(points)].all(axis=1)]
    best = points[np.argsort(emulator.mean(points))[:3]]
    found = [mean_log_steps(Digits("momentum"), 16, point) for point in best]
    assert found == pytest.approx(emulator.mean(best).tolist(), abs=0.06)


@pytest.mark.parametrize("curve", range(5))
def test_planted_steps_are_the_optimum(curve):
    plain = At(Digits("momentum"), (4, 64))
    moved = planted(plain)[curve]
    for size in moved.batch_sizes:
        point = sobol(2, 64, (2,))[:1]
        before, after = (surface.train(size, point, [(0,)])[0] for surface in (plain, moved))
        factor = moved.optimum(size) / plain.optimum(size)
        assert np.asarray(after.steps) == pytest.approx(np.asarray(before.steps) * factor, abs=0.5)
        assert moved.grid(size)[-1] == pytest.approx(plain.grid(size)[-1] * factor, abs=0.5)


def test_a_stage_race_costs_less_and_finds_the_same():
    plain, stage = (Sobol(20, stage_race=race)(DIGITS, 0) for race in (False, True))
    assert [each.fewest for each in plain.values()] == [each.fewest for each in stage.values()]
    assert all(stage[size].cost < plain[size].cost for size in plain)


@dataclass
class Counting:
    """A surface that counts its trainings by batch size."""

    surface: object
    count: Counter = field(default_factory=Counter)

    def __getattr__(self, name):
        return getattr(self.surface, name)

    def train(self, size, points, keys):
        self.count[size] += len(points)
        return self.surface.train(size, points, keys)


@pytest.mark.slow
def test_refine_trains_33_times_and_depends_on_its_seed_alone():
    counted = Counting(DIGITS)
    first, again, other = Refine()(counted, 3), Refine()(DIGITS, 3), Refine()(DIGITS, 4)
    assert set(counted.count.values()) == {33}
    assert [each.cost for each in first.values()] == [each.cost for each in again.values()]
    assert [each.cost for each in first.values()] != [each.cost for each in other.values()]


def lucky(bias, spread, seeds=4):
    """A protocol without a search: estimates lie off the optimum by a bias and by noise."""

    def protocol(surface, seed):
        rng = np.random.default_rng(seed)
        drawn = {size: np.exp(bias + spread * rng.standard_normal(seeds)) for size in surface.batch_sizes}
        return {size: Found(surface.optimum(size), surface.optimum(size) * each, 50) for size, each in drawn.items()}

    return protocol


@pytest.mark.slow
def test_accuracy_finds_bias_and_noise():
    row = accuracy(Curves.of(Digits("sgd"), lucky(0.3, 0.1), range(20)))
    assert row.bias == pytest.approx(0.3, abs=0.02)
    assert row.rmse == pytest.approx(np.hypot(0.3, 0.1 * 0.55), abs=0.03)  # a median of four has 0.55 of the spread
    assert 0 < row.rmse_error < 0.03
    assert row.coverage < 0.2
    assert accuracy(Curves.of(Digits("sgd"), lucky(0.0, 0.1), range(20))).coverage > 0.93


@pytest.mark.slow
def test_power_finds_the_planted_factor_and_few_false_alarms():
    curves = Curves.of(At(Digits("sgd"), (1, 4, 16, 32, 64, 256)), lucky(0.1, 0.2), range(12))
    shown = {row.factor: row for row in power(curves, curves)}
    assert shown[1.0].over_range < 0.2 < 0.95 < shown[2.0].over_range
    assert shown[1.0].at_one < shown[2.0].at_one < shown[3.0].at_one


@pytest.mark.slow
def test_limits_of_a_curve_without_noise_are_its_own():
    for surface in planted(Digits("sgd")):
        for row in limits_found(Curves.of(surface, lucky(0.0, 0.0), range(2))):
            assert row.wrong_kind == 0, (surface.name, row)
            assert row.median == pytest.approx(row.truth, rel=0.01)


@pytest.mark.parametrize(("value", "missed"), [(0.2, False), (0.28, False), (0.31, True), (np.nan, True)])
def test_a_target_is_missed_beyond_two_standard_errors(value, missed):
    assert benchmark.Target("rmse", value, error=0.02, limit=0.25).missed == missed


@pytest.mark.slow
def test_the_tables_of_a_tiny_benchmark(capsys, tmp_path):
    report = benchmark.Report()
    report.accuracy(DIGITS, (benchmark.TODAY, benchmark.REFINE), 2)
    report.power(DIGITS, DIGITS, (Sobol(20),), 2)
    assert [row["protocol"] for row in report.rows["accuracy"]] == ["Sobol, N = 100", "refine, 33 trainings"]
    assert 0.1 < report.rows["accuracy"][1]["share"] < 0.6
    assert len(report.targets) == 3
    assert "refine, 33 trainings" in capsys.readouterr().out


def test_a_row_of_many_parameters_finds_planted_bias_noise_and_cost():
    reference, rng = {8: np.log(100), 64: np.log(20)}, np.random.default_rng(0)
    keys = [(seed, size) for seed in range(50) for size in reference]
    lucky_four = np.array([0.1] * parameters.CONFIRM + [0.3] * (2 * parameters.CONFIRM))
    steps = {key: reference[key[1]] + lucky_four + 0.2 * rng.standard_normal() for key in keys}
    steps[0, 8] = np.full(len(lucky_four), np.inf)
    cost = {(seed, size): {8: 5000, 64: 600}[size] for seed, size in keys}
    row = parameters.row("digits", 4, "refine", parameters.Tries(cost, steps, {}), reference)
    assert (row.bias, row.sd) == pytest.approx((0.1, 0.2), abs=0.05)
    assert row.rmse == pytest.approx(np.hypot(row.bias, row.sd), rel=0.02)
    assert row.shortfall == pytest.approx(row.bias + 0.2)
    assert (row.cost, row.missed) == (pytest.approx((50 + 30) / 2), 1)


@pytest.mark.release
def test_the_table_of_many_parameters(monkeypatch, capsys):
    few = ("search.refine=[2]", "search.candidates=1", "search.screens=1")
    monkeypatch.setattr(parameters, "LARGE", ("search=refine", *few))
    monkeypatch.setattr(parameters, "FRESH", 4)
    monkeypatch.setattr(parameters, "MANY", 4)
    tiny = parameters.Problem((*parameters.MOMENTUM, *parameters.SHORT, *few), sobol=6, batch_sizes="64,512")
    monkeypatch.setitem(parameters.PROBLEMS, "tiny", tiny)
    assert parameters.main(["--problems", "tiny", "--seeds", "2"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    ways = ["refine, 6 scouts", "refine, 10 scouts", "Sobol, N = 6"]
    assert [way in row for way, row in zip(ways, rows, strict=True)] == [True] * 3
    assert all(row.startswith("tiny") for row in rows)


@pytest.mark.slow
@pytest.mark.release
def test_the_whole_benchmark(tmp_path):
    file = tmp_path / "power.json"
    assert benchmark.main(["--curves", "2", "--json", str(file)]) in (0, 1)
    assert {name for name, rows in json.loads(file.read_text()).items() if rows} == {
        "accuracy", "limits", "power", "targets"
    }  # fmt: skip
