"""`--version` names what settles results, reads no torch, and starts no work."""

import subprocess
import sys
from importlib.metadata import version as of
from pathlib import Path

import pytest
import torch

from study.__main__ import main
from study.command_line import version

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_it_names_versions_device_and_data(flag, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("STUDY_DATA", str(tmp_path))
    monkeypatch.setattr(version, "_gpus", lambda: ["cuda:0 A GPU"])
    with pytest.raises(SystemExit) as leaving:
        main([flag])
    ours, torch_line, device, data = capsys.readouterr().out.splitlines()
    assert leaving.value.code == 0
    assert ours == f"study {version.ours()}"
    assert f"torch {of('torch')}" in torch_line
    assert device.startswith("device: cuda:0 A GPU" if torch.version.cuda else "device: cpu, ")
    assert data.startswith(f"data:   $STUDY_DATA = {tmp_path}, then ")


def test_the_kind_of_build_is_that_of_torch():
    kinds = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    expected = next((f"{kind} {number}" for kind, number in kinds.items() if number), "CPU")
    assert version._build() == expected


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(version.ctypes, "CDLL", absent)
    assert version._gpus() == []


def test_it_imports_no_torch():
    program = (
        "import sys\nfrom study.__main__ import main\ntry:\n    main(['--version'])\nfinally:\n"
        "    assert not {'torch', 'optuna', 'hydra', 'pandas'} & {*sys.modules}, sys.modules.keys()"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
