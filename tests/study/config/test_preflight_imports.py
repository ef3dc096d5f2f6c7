"""What the check before a sweep imports: every second of it is a second before the first step."""

import subprocess
import sys

import pytest

SLOW = {"sympy", "torch._dynamo", "sklearn", "matplotlib", "scipy.stats"}
PROGRAM = f"""
import sys
from study.commands import power
from study.config import preflight
from study.config.jobs import parse_jobs
jobs = preflight.settle(parse_jobs([]))
power.sentences(jobs)
print(*({SLOW} & {{*sys.modules}}))
"""


@pytest.mark.slow
def test_nothing_slow_is_imported_for_the_digits(tmp_path):
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == "\n", run.stderr
