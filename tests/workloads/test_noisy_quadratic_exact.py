"""The exact solution: published and independently computed values, simulation, closed forms, and other recursions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.tables import fits
from workloads.noisy_quadratic_exact import Recursion, fewest_steps, grouped, spectrum

WHOLE = spectrum(10_000)
BINS, COUNTS = grouped(WHOLE)
RATES = np.logspace(-5, 0.5, 100)
GROUPS = {"curvatures": BINS, "multiplicity": COUNTS}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "steps", "rate", "published"), [(256, 25_778, 0.774, 25_880), (4096, 7_870, 1.896, 8_117)]
)
def test_sgd_on_all_terms_and_on_the_authors_groups(size, steps, rate, published):
    found = fewest_steps(size, 0.01, RATES, curvatures=WHOLE)
    assert (found.steps, found.learning_rate) == (steps, pytest.approx(rate, abs=5e-4))
    # The authors print the last step that is not yet below the goal.
    assert fewest_steps(size, 0.01, RATES, **GROUPS).steps == published + 1


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "published"), [(16384, 349), pytest.param(1024, 5_203, marks=pytest.mark.slow)])
def test_momentum_on_the_authors_groups(batch_size, published):
    # They bisect, which may find a later crossing: with momentum the loss oscillates.
    found = fewest_steps(batch_size, 0.01, np.logspace(-8, 1, 100), 1 - np.logspace(-5, 0, 20), **GROUPS)
    assert found.steps == pytest.approx(published, rel=0.005)


@pytest.mark.slow
def test_the_published_critical_batch_size():
    steps = {2**power: fewest_steps(2**power, 0.01, RATES, **GROUPS).steps for power in range(2, 22)}
    assert fits.hyperbola(steps).critical == pytest.approx(792, abs=0.5)
    assert fits.shoulder(steps).information < fits.hyperbola(steps).information  # its bend is sharper


def test_the_groups_are_a_hundred_points_each_the_next_lower():
    assert COUNTS.sum() == 10_000
    assert len(BINS) == 84  # sixteen points between the first few curvatures stand for none
    assert (BINS[0], COUNTS[0]) == (1, 1)
    assert BINS[-1] == pytest.approx(1e-4)


ALGORITHMS = {
    "sgd": {"learning_rate": 0.7},
    "momentum": {"learning_rate": 0.3, "momentum": 0.8},
    "preconditioned": {"learning_rate": 0.4, "momentum": 0.5, "power": 0.5},
    "averaged": {"learning_rate": 0.9, "ema_decay": 0.7},
    "averaged momentum": {"learning_rate": 0.2, "momentum": 0.9, "ema_decay": 0.9},
}


def simulated(steps, batch_size, curvatures, samples, learning_rate, momentum=0.0, power=0.0, ema_decay=None):
    """Squares [samples, d] of weights, or of averaged ones, after training with normal noise, update by update."""
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((samples, len(curvatures)))
    velocity, average = np.zeros_like(theta), theta
    for _ in range(steps):
        gradient = curvatures * theta + np.sqrt(curvatures / batch_size) * rng.standard_normal(theta.shape)
        velocity = momentum * velocity + gradient
        theta = theta - learning_rate * curvatures**-power * velocity
        average = average if ema_decay is None else ema_decay * average + (1 - ema_decay) * theta
    return np.square(theta if ema_decay is None else average)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("steps", [1, 2, 7, 30])
def test_moments_are_those_of_simulated_training(algorithm, steps):
    h, chosen = np.array([1.0, 0.6, 0.1]), ALGORITHMS[algorithm]
    squares = simulated(steps, 2, h, 40_000, **chosen)
    [moments] = Recursion(2, curvatures=h, **chosen).at([steps])
    deviation = squares.std(0) / len(squares) ** 0.5
    assert (np.abs(squares.mean(0) - Recursion(2, curvatures=h, **chosen).square(moments)) < 4.5 * deviation).all()


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_heavy_ball_is_the_papers_recursion(power):
    """In the state (E theta^2, E v^2, E theta v), x = a P h, with noise (a P)^2 h / B in each."""
    h, batch_size, rate, mu = spectrum(50), 8, 0.9, 0.85
    p = h**-power
    x, one = rate * p * h, np.ones(50)
    matrix = np.array(
        [
            [(1 - x) ** 2, mu**2 * one, 2 * (1 - x) * mu],
            [x**2, mu**2 * one, -2 * x * mu],
            [-(1 - x) * x, mu**2 * one, (1 - 2 * x) * mu],
        ]
    )
    state, losses = np.array([one, 0 * one, 0 * one]), []
    for _ in range(200):
        state = np.einsum("ijd,jd->id", matrix, state) + (rate * p) ** 2 * h / batch_size
        losses.append(0.5 * h @ state[0])
    exact = Recursion(batch_size, rate, mu, curvatures=h, power=power)
    np.testing.assert_allclose(exact.losses(range(1, 201)), losses, rtol=1e-10)


def test_where_it_ends_is_known_in_closed_form():
    h, batch_size, rate, mu, decay = spectrum(20), 16, 0.4, 0.7, 0.9
    x, noise = rate * h, h / batch_size

    def end(**more):
        exact = Recursion(batch_size, rate, curvatures=h, **more)
        [moments] = exact.at([5000])
        return exact.square(moments)

    plain = rate / (batch_size * (2 - x))
    np.testing.assert_allclose(end(), plain, rtol=1e-9)
    heavy = rate**2 * noise * (1 + mu) / (x * (1 - mu) * (2 * (1 + mu) - x))
    np.testing.assert_allclose(end(momentum=mu), heavy, rtol=1e-9)
    # An average of an autoregressive sequence whose correlation falls as (1 - x)^t.
    averaged = plain * (1 - decay) / (1 + decay) * (1 + decay * (1 - x)) / (1 - decay * (1 - x))
    np.testing.assert_allclose(end(ema_decay=decay), averaged, rtol=1e-9)


def test_without_noise_it_is_gradient_descent():
    h, steps = spectrum(30), [1, 5, 40]
    expected = [0.5 * h @ (1 - 1.5 * h) ** (2 * t) for t in steps]
    np.testing.assert_allclose(Recursion(math.inf, 1.5, curvatures=h).losses(steps), expected, rtol=1e-12)
    theta, velocity = np.ones(30), np.zeros(30)
    for _ in range(40):
        velocity = 0.9 * velocity + h * theta
        theta = theta - 0.5 * velocity
    [found] = Recursion(math.inf, 0.5, 0.9, curvatures=h).losses([40])
    assert found == pytest.approx(0.5 * h @ theta**2, rel=1e-9)


def test_small_steps_are_a_differential_equation():
    """d s = -2 h s dt + rate h / B dt at t = rate * steps: the learning rate over the batch size is the temperature."""
    h, time, rate = spectrum(30), 4.0, 1e-4
    heat = 0.05
    decayed = np.exp(-2 * h * time)
    expected = 0.5 * h @ (decayed + heat / 2 * (1 - decayed))
    for mu in (0.0, 0.9):
        exact = Recursion(rate / (1 - mu) / heat, rate, mu, curvatures=h)
        [found] = exact.losses([round(time * (1 - mu) / rate)])
        assert found == pytest.approx(expected, rel=2e-3)


@given(st.floats(0.01, 1.9), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 40), st.integers(1, 200))
def test_many_steps_at_once_are_single_steps(rate, momentum, decay, before, steps):
    exact = Recursion(4, rate, momentum, curvatures=spectrum(5), ema_decay=decay)
    [start] = exact.at([before])
    one_by_one = start
    for _ in range(steps):
        one_by_one = exact.after(one_by_one, 1)
    np.testing.assert_allclose(exact.after(start, steps), one_by_one, rtol=1e-8, atol=1e-14)


def test_special_cases_agree():
    h, steps = spectrum(40), range(1, 60)
    plain = Recursion(4, 0.8, curvatures=h).losses(steps)
    several = Recursion(4, [0.8, 0.8], [0.0, 0.5], curvatures=h).losses(steps)  # one matrix for both
    np.testing.assert_allclose(several[:, 0], plain, rtol=1e-12)
    np.testing.assert_allclose(several[:, 1], Recursion(4, 0.8, 0.5, curvatures=h).losses(steps), rtol=1e-12)
    np.testing.assert_allclose(Recursion(4, 0.8, curvatures=h, ema_decay=0.0).losses(steps), plain, rtol=1e-12)
    # The ideal preconditioner makes all curvatures alike.
    ideal = Recursion(4, 0.3, curvatures=h, power=1.0)
    [moments] = ideal.at([9])
    np.testing.assert_allclose(ideal.square(moments) * h, (0.7**18 * h) + 0.3**2 / 4 * (1 - 0.7**18) / (1 - 0.49))


@given(st.floats(0.05, 2.2), st.sampled_from([0.0, 0.6, 0.95]), st.floats(0.01, 3), st.sampled_from([1, 8, 1000]))
def test_the_first_crossing_is_the_first_of_all_steps(rate, momentum, goal, batch_size):
    steps = range(1, 60)
    for more in ({}, {"ema_decay": 0.5}):
        exact = Recursion(batch_size, rate, momentum, curvatures=spectrum(30), **more)
        below = np.flatnonzero(exact.losses(steps) < goal)
        assert exact.steps_to_goal(goal, steps) == (steps[below[0]] if len(below) else math.inf)


@pytest.mark.parametrize("more", [{}, {"ema_decay": 0.6}, {"power": 0.5}])
def test_the_fewest_steps_are_the_least_over_the_grid(more):
    rates, momenta, steps = np.geomspace(0.01, 3, 12), [0.5, 0.0, 0.8], range(1, 400)
    found = fewest_steps(16, 0.1, rates, momenta, most=399, curvatures=spectrum(40), **more)
    each = {
        (rate, mu): float(Recursion(16, rate, mu, curvatures=spectrum(40), **more).steps_to_goal(0.1, steps))
        for rate in rates
        for mu in momenta
    }
    assert found.steps == min(each.values()) == each[found.learning_rate, found.momentum] < math.inf
    never = fewest_steps(16, 1e-9, rates, momenta, most=50, curvatures=spectrum(40), **more)
    assert never.steps == math.inf


def test_a_goal_that_is_met_and_lost_again_was_met():
    """The stiff coordinate slowly takes up noise after the others fell: a bisection would say never."""
    exact = Recursion(20, 1.98, curvatures=np.array([1.0, 0.5]), multiplicity=[1, 100])
    losses = exact.losses(range(1, 100))
    assert losses[0] < 4 < losses[-1]
    assert exact.steps_to_goal(4.0, range(1, 100)) == 1


def test_what_diverges_never_arrives():
    exact = Recursion(64, [2.5, 0.5, 1e8], [0.0, 0.0, 0.9], curvatures=spectrum(10))
    found = exact.steps_to_goal(0.1, range(1, 3000))
    assert (found == np.inf).tolist() == [True, False, True]
    assert Recursion(64, 2.5, curvatures=spectrum(10)).steps_to_goal(0.1, range(1, 3000)) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_chance_to_be_below_a_goal_is_that_of_simulated_training(algorithm):
    h, chosen, replicas = spectrum(20), ALGORITHMS[algorithm], 32
    losses = (simulated(12, 4, h, 32 * 1500, **chosen) @ (h / 2)).reshape(-1, replicas).mean(1)
    exact = Recursion(4, curvatures=h, **chosen)
    [moments] = exact.at([12])
    for quantile in (0.02, 0.5, 0.98):
        goal = np.quantile(losses, quantile)
        chance = float(exact.chance_below(goal, moments, replicas))
        assert chance == pytest.approx(quantile, abs=0.01 + 3 * (quantile * (1 - quantile) / 1500) ** 0.5)
