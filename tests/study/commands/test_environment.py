"""What other programs leave in the environment: schedulers, MPI, notebooks."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from shutil import copytree

import pytest
from helpers.fused import partly

from study.__main__ import main
from study.devices import distributed

ROOT = Path(__file__).parents[3]
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", **ADDRESS}
LEFT = {
    "rank 0": {"WORLD_SIZE": "4", "RANK": "0", "LOCAL_RANK": "0", **ADDRESS},
    "rank 1": {"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1", **ADDRESS},
    "without address": {"WORLD_SIZE": "4", "RANK": "1"},
    "of another kind": {"WORLD_SIZE": "four", "RANK": "", **ADDRESS},
    "SLURM": {"SLURM_NTASKS": "8", "SLURM_PROCID": "3", "WORLD_SIZE": "8", "RANK": "3", **ADDRESS},
    "MPI": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "WORLD_SIZE": "2", "RANK": "1", **ADDRESS},
    "torchrun with one process": {"WORLD_SIZE": "1", "RANK": "0", **TORCHRUN},
}


def run(*arguments, **environment):
    command = [sys.executable, "-m", "study", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_only_torchrun_makes_ranks(left, monkeypatch):
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    assert distributed.launched() is None


def test_torchrun_is_recognised(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", **TORCHRUN}.items():
        monkeypatch.setenv(name, value)
    rank = distributed.launched()
    assert (rank.index, rank.size, rank.local_index, rank.port) == (1, 2, 1, 29555)


@pytest.mark.slow
@pytest.mark.parametrize("left", ["rank 1"])
def test_a_command_ends_with_the_ranks_of_a_scheduler_in_its_environment(left):
    done = run("sweep", "--cfg", **LEFT[left])
    assert done.returncode == 0, done.stderr
    assert "mlp_digits" in done.stdout


CLOSED = {
    "stdout": (">&-", "list", 0, ""),
    "stderr": ("2>&-", "list", 0, "workloads"),
    "stderr, with an error": ("2>&-", "nonsense", 2, ""),
    "all": ("<&- >&- 2>&-", "list --json", 0, ""),
}


@pytest.mark.parametrize(("closed", "verb", "status", "shown"), CLOSED.values(), ids=CLOSED)
def test_a_closed_output_is_no_fault(closed, verb, status, shown):
    command = f"{shlex.quote(sys.executable)} -m study {verb} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert shown in done.stdout
    assert not done.stderr


@pytest.mark.parametrize("size", ["COLUMNS", "LINES"])
@pytest.mark.parametrize("value", partly(["0", "00", ""], 3))
def test_a_terminal_without_a_size_shows_what_is_printed(size, value, monkeypatch, capsys):
    monkeypatch.setenv(size, value)
    assert main(["status", str(ROOT / "results/published/mlp_digits")]) == 0
    assert "mlp_digits" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("list", r"\xe4"),
        ("report {results} --notes", r"\u2265"),
        ("advise {results} --gpus 8 --memory 80", r"\xb5"),
        ("sweep --cfg results=\u2265", r"\u2265"),
    ],
)
def test_a_stdout_without_a_character_shows_its_code(command, shown, tmp_path):
    copytree(ROOT / "results/published/fc_mnist_128", tmp_path / "results")
    done = run(*command.format(results=tmp_path / "results").split(), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        "module://matplotlib_inline.backend_inline",
        *(pytest.param(each, marks=pytest.mark.release) for each in ("nonsense", "", "qtagg")),
    ],
)
def test_a_report_is_drawn_under_any_backend_of_matplotlib(backend, tmp_path):
    studies = ROOT / "results/published/mlp_digits/studies/mlp_digits/sgd/64"
    copytree(studies, tmp_path / "studies/mlp_digits/sgd/64")
    done = run("report", str(tmp_path), MPLBACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("home", ["/proc", "/dev/null"])
def test_a_home_that_cannot_be_written_is_no_news(home, tmp_path):
    copytree(ROOT / "results/published/mlp_digits/studies/mlp_digits/sgd/64", tmp_path / "studies/mlp_digits/sgd/64")
    folders = dict.fromkeys(["MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"], "")
    done = run("report", str(tmp_path), HOME=home, **folders)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["text.usetex: True", "lines.linewidth: 7"])
def test_a_users_matplotlibrc_changes_no_figure(line, tmp_path):
    file = tmp_path / "matplotlibrc"
    program = """
import hashlib, matplotlib
from analysis.figures import canvas, formats
figure = canvas.draw(lambda ax: ax.plot([1, 2], label="a_b"))
print(hashlib.sha256(formats.svg(figure)).hexdigest())
"""
    drawn = set()
    for text in ("", f"{line}\n"):
        file.write_text(text)
        environment = os.environ | {"MATPLOTLIBRC": str(file)}
        command = [sys.executable, "-c", program]
        drawn.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(drawn) == 1
