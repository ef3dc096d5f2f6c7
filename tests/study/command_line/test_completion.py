"""The scripts of `study completion` are read by their shells, and complete commands, options and settings."""

import shutil
import subprocess

import pytest

from study.__main__ import main


@pytest.fixture
def script(capsys):
    def of(shell):
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return of


COMPLETED = [
    (["study", "sta"], {"status"}),
    (["study", "sweep", "--mi"], {"--mix"}),
    (["study", "status", "results", "--js"], {"--json"}),
    (["study", "list", "opt"], {"optimizers"}),
    (["study", "sweep", "search.tri"], {"search.trials="}),
    # bash splits at "="
    (["study", "sweep", "optimizer", "=", "nes"], {"nesterov"}),
    (["study", "sweep", "workload", "=", "mlp"], {"mlp_digits"}),
    # The names after a comma
    (["study", "sweep", "optimizer", "=", "sgd,nes"], {"sgd,nesterov"}),
    (["study", "sweep", "preset", "=", "quick,"], {"quick,none", "quick,paper", "quick,quick"}),
    (["study", "sweep", "track", "=", "[wandb,ml"], {"[wandb,mlflow"}),
    (["study", "sweep", "batch_size", "=", "4,1"], set()),
    (["study", "plan", "optimizer", "=", "sgd", "schedule", "=", "cos"], {"cosine"}),
    (["study", "sweep", "preset", "="], {"none", "paper", "quick"}),
]
ASK = """
COMP_WORDS=({words})
COMP_CWORD={last}
_study_complete 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(("words", "expected"), COMPLETED, ids=[" ".join(words) for words, _ in COMPLETED])
def test_bash_completes(script, words, expected):
    asked = ASK.format(words=" ".join(f"'{word}'" for word in words), last=len(words) - 1)
    run = subprocess.run(["bash", "-c", script("bash") + asked], capture_output=True, text=True)
    assert {word.strip() for word in run.stdout.split()} == expected, run.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_is_valid(script, shell):
    text = script(shell)
    assert "optimizer=nesterov" in text
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=text, text=True, capture_output=True).returncode == 0
