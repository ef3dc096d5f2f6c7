"""How much quantities differ between the two of a pair, without the part that is error of measurement.

Shapes: n quantities, such as the logs of critical batch sizes; P pairs of them; R resamples.
"""

from collections.abc import Sequence

import numpy as np

from analysis.intervals import RESAMPLES

Pairs = Sequence[tuple[int, int]]


def spread(values: np.ndarray, errors: np.ndarray, pairs: Pairs, errors_in: float = 1.0) -> np.ndarray:
    """The root mean square of the true differences over pairs; 0 where the errors explain all of what is seen.

    The mean square of measured differences exceeds that of the true ones by the variances of the errors on average,
    which are subtracted.

    Arguments:
        values: [..., n].
        errors: their standard errors [n].
        pairs: the indices of the two quantities of each [P].
        errors_in: how many times the values hold such errors.

    >>> round(float(spread(np.array([0.0, 0.5, 1.0]), np.full(3, 0.1), [(0, 1), (1, 2)])), 3)
    0.48
    """
    one, other = np.asarray(pairs).T
    squares = (values[..., one] - values[..., other]) ** 2 - errors_in * (errors[one] ** 2 + errors[other] ** 2)
    return np.sqrt(np.maximum(squares.mean(axis=-1), 0.0))


def difference(values: np.ndarray, errors: np.ndarray, pairs: Pairs, others: Pairs) -> tuple[float, float, float]:
    """The spread over `pairs` less that over `others`, and its 95 % interval.

    The interval holds the middle of RESAMPLES differences that were measured once more, with new errors on top of
    the old ones.

    >>> logs = np.log([20.0, 25.0, 80.0, 90.0])
    >>> [round(number, 2) for number in difference(logs, np.full(4, 0.1), [(0, 2), (1, 3)], [(0, 1), (2, 3)])]
    [1.22, 0.93, 1.48]
    """
    noise = np.random.default_rng(0).standard_normal((RESAMPLES, len(values))) * errors
    again = spread(values + noise, errors, pairs, 2.0) - spread(values + noise, errors, others, 2.0)
    low, high = np.quantile(again, [0.025, 0.975])
    measured = spread(values, errors, pairs) - spread(values, errors, others)
    return float(measured), float(low), float(high)
