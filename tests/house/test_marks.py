"""GPUs are visible in the test runs that select GPU tests alone."""

import pytest
from house.marks import only_gpu


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
