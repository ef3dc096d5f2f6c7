"""Verbs that only read files start without torch, Optuna and Hydra, which take seconds to import."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest

ROOT = Path(__file__).parents[2]
STUDY = "studies/softmax/momentum/16"
HEAVY = {"torch", "optuna", "hydra"}
PROGRAM = """
import json, sys
from study.__main__ import main
for words in json.loads(sys.argv[1]):
    try:
        status = main(words)
    except SystemExit as end:  # by --help
        status = end.code
    assert status == 0, (words, status)
    print("imported:", *{name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "commands",
    [
        ["--help", "list", "status few", "export few exported --format csv", "report few --output report"],
        ["sweep --help", "plan --help", f"compare {ROOT}/results/published/mlp_digits --output report"],
    ],
)
def test_verbs_that_only_read_files_import_nothing_that_trains(commands, tmp_path):
    """One after another in one process, as no verb may import it."""
    copytree(ROOT / "tests/data/older_results/complete" / STUDY, tmp_path / "few" / STUDY)
    program = [sys.executable, "-c", PROGRAM, json.dumps([words.split() for words in commands])]
    run = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    after = [{*line.split()[1:]} for line in run.stdout.splitlines() if line.startswith("imported:")]
    for words, imported in zip(commands, after, strict=True):
        assert {"study", "argparse"} <= imported
        assert not HEAVY & imported, words
