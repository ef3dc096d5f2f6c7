"""Work that several processes share goes on if one of them stops, also where warnings are errors."""

import subprocess
import sys

import pytest

STOPPED = """
import warnings
from analysis import parallel

warnings.warn("A worker stopped while some jobs were given to the executor. This can be caused by ...", UserWarning)
try:
    warnings.warn("another", UserWarning)
except UserWarning:
    print(*parallel.spread(abs, [-1, 2, -3], if_at_least=1, size=1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("filters", [["-W", "error"], ["-W", "error::UserWarning"]])
def test_a_process_that_stops_is_no_error(filters):
    """The warning comes from a thread of joblib, which an error would end: all would wait without end."""
    ran = subprocess.run([sys.executable, *filters, "-c", STOPPED], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "1 2 3\n"), ran.stderr
