"""The one way to write numbers, durations and goals."""

import subprocess
import sys

import numpy as np
import pytest

from analysis.labels import about, column_text, duration, goal_text, number, rough, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1725, "1,725"), (0.0213456, "0.0213"), (64.0, "64"), (0.99911, "0.999"), (0.99999, "1.00"), (0.95, "0.950"),
     (1.5, "1.50"), (12345.6, "12,346"), (0.0000123, "1.23e-05"), (0, "0"), (-3, "-3"), (123.4, "123"),
     (99.95, "100"), (999.4, "999"), (999.5, "1,000"), (1234.5, "1,234"),
     (np.int64(0), "0"), (0.0, "0"), (-0.0, "0"), (np.float64(0), "0"), (np.float64(2048), "2,048")],
)  # fmt: skip
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9987, "0.9987"), (0.99999, "0.99999"), (0.95, "0.95"), (0.9, "0.900"), (1.5, "1.50"), (0.0, "0")],
)
def test_values_of_parameters_near_one_have_two_digits_of_one_minus_them(value, text):
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("batch_size", "batch size"), ("B_n", "B_n"), ("B_n, log space", "B_n, log space"), ("eps_max", "eps_max"),
     ("eps_max_low", "eps max low"), ("steps_n", "steps n"), ("B_norm", "B norm"), ("", "")],
)  # fmt: skip
def test_names_of_columns_keep_symbols(name, text):
    assert column_text(name) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 µs"), (3.21e-6, "3.21 µs"), (0.9999, "1 s"), (0.0417, "41.7 ms"), (59.9, "59.9 s"), (59.99, "1 min 00 s"),
     (245, "4 min 05 s"), (3599.7, "1 h 00 min"), (7500, "2 h 05 min"), (1e7, "2,777 h 47 min")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "less than a second"), (2.53e-8, "less than a second"), (0.99, "less than a second"), (1.4, "1 s"),
     (5.55, "6 s"), (59.4, "59 s"), (59.6, "1 min"), (62, "1 min"), (190, "3 min 10 s"), (598, "10 min"),
     (2713, "45 min"), (3569, "59 min"), (3571, "1 h"), (9000, "2 h 30 min"), (35990, "10 h"), (1e7, "2,778 h")],
)  # fmt: skip
def test_estimates_have_no_more_digits_than_are_known(seconds, text):
    assert rough(seconds) == text
    assert about(seconds) == (text if seconds < 1 else f"about {text}")


def test_goals_in_words():
    assert goal_text("val/classification_error", 0.05) == "validation error < 0.05"
    assert goal_text("test/cross_entropy_error", 3.9) == "test cross entropy < 3.9"
    assert goal_text("loss", 1) == "loss < 1"
    assert goal_text("val/mse", 1234567.0) == "validation mse < 1234567"
    assert goal_text("val/classification_error", 1 - 0.9) == "validation error < 0.1"


def test_labels_import_nothing_heavy():
    """The terminal writes numbers before anything is loaded."""
    heavy = "{'numpy', 'pandas', 'matplotlib', 'torch'}"
    code = f"import sys, analysis.labels; print(sorted({heavy} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
