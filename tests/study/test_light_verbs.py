"""Verbs that only read files start without torch, Optuna and Hydra, which take seconds to import."""

import subprocess
import sys
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).parents[2] / "results/published/mlp_digits"
FEW = Path(__file__).parents[1] / "data/older_results/complete"
HEAVY = {"torch", "optuna", "hydra"}
PROGRAM = """
import sys
from study.__main__ import main
try:
    status = main()
except SystemExit as end:  # by --help
    status = end.code
assert status == 0, status
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *(pytest.param([verb, "--help"], marks=pytest.mark.slow) for verb in ("sweep", "plan")),
        ["status", str(PUBLISHED)],
        ["report", str(FEW), "--output", "report"],
        pytest.param(["compare", str(PUBLISHED), "--output", "report"], marks=pytest.mark.slow),
        ["export", str(PUBLISHED), "exported", "--format", "csv"],
    ],
    ids=lambda arguments: " ".join(word for word in arguments[:2] if "/" not in word),
)
def test_a_verb_that_only_reads_files_imports_nothing_that_trains(arguments, tmp_path):
    program = [sys.executable, "-c", PROGRAM, *arguments]
    run = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    imported = {*run.stdout.rpartition("imported:")[2].split()}
    assert {"study", "argparse"} <= imported
    assert not HEAVY & imported
