"""GPUs are visible in the test runs that select GPU tests alone; commits draw slow tests evenly."""

import doctest

import pytest
from house import marks
from house.marks import drawn, only_gpu


@pytest.mark.parametrize(
    ("expression", "sees"),
    [
        ("gpu", True),
        ("gpu and not slow", True),
        ("not slow and gpu", True),
        ("gpu and (slow or not data)", True),
        ("gpu and slow", True),
        ("", False),
        ("not gpu", False),
        ("slow", False),
        ("gpu or slow", False),
        ("slow and not gpu", False),
        ("not slow and not data and not gpu and not release", False),
        ("gpu and", False),
        ("gpu and not gpu", False),
    ],
)
def test_gpus_are_for_gpu_tests_alone(expression, sees):
    assert only_gpu(expression) is sees


def test_each_commit_draws_other_slow_tests_and_every_test_is_drawn():
    table = [[drawn(f"test_{test}.py::test_it", f"{commit:040x}", 3) for test in range(100)] for commit in range(50)]
    assert all(15 < sum(row) < 55 for row in table)
    assert all(5 < sum(column) < 30 for column in zip(*table, strict=True))
    assert len({tuple(row) for row in table}) == len(table)


def test_examples_are_so():
    assert doctest.testmod(marks).failed == 0
