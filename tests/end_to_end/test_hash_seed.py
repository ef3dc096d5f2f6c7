"""What the program writes follows from its files alone. Python orders sets by another seed in each process."""

import filecmp
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fused import seldom

ROOT = Path(__file__).parents[2]
PUBLISHED = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "results/published").iterdir() if path.is_dir())
DIGITS = "results/published/digits_optimizers"
COMMANDS = {
    "claims": ["claims", *PUBLISHED],
    "advise": ["advise", DIGITS],
    "report": ["report", DIGITS, "--output", "made"],
}


def written(command, seed, at):
    """What the program prints in a folder that holds nothing but the published results."""
    at.mkdir()
    (at / "results").symlink_to(ROOT / "results")
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    whole = [sys.executable, "-m", "study", *command]
    found = subprocess.run(whole, cwd=at, env=environment, capture_output=True, text=True, check=True)
    return found.stdout.replace(str(at), "")


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("command", seldom(COMMANDS.values()), ids=COMMANDS)
def test_the_same_is_written_for_every_order_of_sets(command, tmp_path):
    # With seeds 0 and 1 `claims` once proposed two different sweeps.
    first, second = (written(command, seed, tmp_path / str(seed)) for seed in (0, 1))
    assert first == second
    made = [tmp_path / str(seed) / "made" for seed in (0, 1)]
    assert files(made[0]) == files(made[1])
    differing = filecmp.cmpfiles(*made, files(made[0]), shallow=False)[1:]
    assert differing == ([], [])
