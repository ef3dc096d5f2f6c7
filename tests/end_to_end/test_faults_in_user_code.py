"""A fault in a user's code is told in one line: the error, their own line, the cure. `--debug` prints the rest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.made_workload import own_folder

ROOT = Path(__file__).parents[2]
START = """
import os
import sys
from multiprocessing import parent_process

from made_images import *

WORKER = parent_process() is not None


class Items(torch.utils.data.Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        if WORKER and index == 37:
            raise OSError("cannot read 37.png")  # here
        return self.inputs[index], self.targets[index]


class Failing(Images):
"""
FAULTS = {
    "model": """
    def model(self):
        if WORKER:
            raise KeyError("encoder")  # here
        return super().model()
""",
    "splits": """
    def splits(self, device):
        if WORKER:
            raise FileNotFoundError("part 3 is missing")  # here
        return super().splits(device)
""",
    "forward": """
    def model(self):
        model = super().model()
        if WORKER:
            model.register_forward_pre_hook(self.hook)
        return model

    def hook(self, module, inputs):
        return inputs[0] @ torch.zeros(3, 7)  # here
""",
    "error": """
    def error(self, outputs, targets):
        return 1 / 0 if WORKER else classification_error(outputs, targets)  # here

    @property
    def errors(self):
        return {"classification_error": self.error, "cross_entropy_error": cross_entropy_error}
""",
    "an example": """
    def splits(self, device):
        return Splits(*(Items(*split) for split in super().splits(device)))
""",
    "an example read by a loader": """
    def splits(self, device):
        return Splits(*(Items(*split) for split in super().splits(device)))
""",
    "in the parent": """
    def splits(self, device):
        raise RuntimeError("no network")  # here
""",
    "an exit at the import": """
    sys.exit("this is a script")  # here
""",
    "an exit in the parent": """
    def splits(self, device):
        sys.exit()  # here
""",
    "another exit in the parent": """
    def model(self):
        sys.exit(0)  # here
""",
    "an exit in a worker": """
    def model(self):
        return sys.exit() if WORKER else super().model()  # here
""",
    "an exit without a word": """
    def splits(self, device):
        os._exit(0)  # here
""",
    "an exit without a word in a worker": """
    def model(self):
        return os._exit(0) if WORKER else super().model()  # here
""",
    "a fork": """
    def splits(self, device):
        os.fork()  # here
""",
}


def sweep(folder: Path, *words: str, verb: str = "sweep") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "study", verb, "--config-dir", str(folder / "mine"), "workload=failing"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [ROOT, *sys.path]))}
    return subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.release] * (n % 2)) for n, kind in enumerate(FAULTS)]
)
def test_a_fault_names_the_users_line(tmp_path, kind):
    own_folder(tmp_path / "mine", "failing", START + FAULTS[kind], "failing.Failing")
    loaders = 2 if "loader" in kind else 0
    done = sweep(tmp_path, "engine.workers=1", "batch_size=4", f"engine.loaders={loaders}")
    assert done.returncode in (1, 2), done.stdout
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, done.stderr
    lines = (tmp_path / "mine/failing.py").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, start=1) if line.endswith("# here"))
    if "example" not in kind:
        number = max(number for number, line in enumerate(lines, start=1) if line.endswith("# here"))
    else:
        # Which split is read first depends on how long the cost is measured.
        assert re.search(r"\(in example 37 of the (train|val) split\)", said[0])
    assert f"failing.py, line {number}" in said[0], said


@pytest.mark.slow
@pytest.mark.parametrize("debug", [["--debug"], pytest.param([], marks=pytest.mark.release)])
def test_debug_prints_the_whole_traceback(tmp_path, monkeypatch, debug):
    own_folder(tmp_path / "mine", "failing", START + FAULTS["model"], "failing.Failing")
    if not debug:
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    said = sweep(tmp_path, "engine.workers=1", "batch_size=4", *debug).stderr
    assert "Traceback (most recent call last)" in said
    assert "KeyError: 'encoder'" in said


@pytest.mark.slow
@pytest.mark.parametrize("words", ["print('printed')", "os.write(1, b'printed')"], ids=["Python", "compiled code"])
def test_what_a_users_code_prints_does_not_garble_json(tmp_path, words):
    model = f"    def model(self):\n        {words}\n        return super().model()\n"
    own_folder(tmp_path / "mine", "failing", f"import os\n{START}{model}", "failing.Failing")
    done = sweep(tmp_path, "batch_size=4", "--json", verb="plan")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verb"] == "plan"
    assert "printed" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("where", ["WORKER", "not WORKER"])
def test_a_crash_in_compiled_code_shows_the_users_line(tmp_path, where):
    model = f"    def model(self):\n        {where} and ctypes.string_at(0)\n        return super().model()\n"
    own_folder(tmp_path / "mine", "failing", f"import ctypes\n{START}{model}", "failing.Failing")
    done = sweep(tmp_path, "engine.workers=1", "batch_size=4")
    number = 1 + (tmp_path / "mine/failing.py").read_text().splitlines().index(model.splitlines()[1])
    assert f'failing.py", line {number} in model' in done.stderr
    assert ("study: failing with momentum at batch size 4: a worker" in done.stderr) == (where == "WORKER")


TAKEN = ["os.environ.clear()", "sys.stdout = None", "import multiprocessing; multiprocessing.set_start_method('spawn')"]


@pytest.mark.slow
@pytest.mark.parametrize("words", TAKEN, ids=["environment", "stdout", "start method"])
def test_what_a_users_code_takes_away_ends_no_plan(tmp_path, words):
    own_folder(tmp_path / "mine", "failing", f"import os\n{START}    {words}\n", "failing.Failing")
    done = sweep(tmp_path, "batch_size=4", verb="plan")
    assert (done.returncode, done.stderr) == (0, "")
