"""Both commands work beside modules and folders of the user's that have our names, or those of installed modules."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from helpers.made_workload import own_folder

from study.__main__ import main
from study.shadowing import import_ours
from study.workers.start import death

ROOT = Path(__file__).parents[2]
SCRIPT = "import sys\nfrom study.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
"""What pip installs as `study`."""
OURS = ["analysis", "workloads", "study", "conf", "results", "tables"]
INSTALLED = ["random", "torch"]
OF_PYTHON = ["pickle", "signal", "socket", "struct"]
"""Modules that Python imports while it starts a process."""
FORMS = {"module": "{}.py", "package": "{}/__init__.py", "folder": "{}/note.txt"}
FAILS = "raise RuntimeError(f'imported {__file__}')\n"


@pytest.fixture
def run(tmp_path):
    """Runs `study` or `python -m study` where the current folder and --config-dir hold files of these names."""
    here, mine = tmp_path / "here", tmp_path / "mine"
    script = tmp_path / "bin/study"
    for folder in (here, script.parent):
        folder.mkdir()
    script.write_text(SCRIPT)
    own_folder(mine)

    def run(way, files_here, files_mine, *words, path=""):
        for file in [*(here / name for name in files_here), *(mine / name for name in files_mine)]:
            file.parent.mkdir(exist_ok=True)
            file.write_text(FAILS)
        start = [str(script)] if way == "study" else ["-m", "study"]
        command = [sys.executable, *start, "sweep", "--config-dir", str(mine), "workload=images", *words]
        environment = os.environ | {"PYTHONPATH": path.replace("MINE", str(mine)) + str(ROOT)}
        return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)

    return run


def files(form, names):
    return [FORMS[form].format(name) for name in names]


def beside(way, form):
    """Names that the current folder may hold: with -m Python itself would run a module or package `study`."""
    return [name for name in OURS if (way, name) != ("python -m study", "study") or form == "folder"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "form"),
    [
        pytest.param("study", "package", marks=pytest.mark.slow),
        ("python -m study", "module"),
        pytest.param("study", "module", marks=pytest.mark.release),
        pytest.param("python -m study", "folder", marks=pytest.mark.release),
    ],
)
def test_ours_are_imported_beside_files_of_the_same_names(run, way, form):
    names = [*OURS, *INSTALLED]
    done = run(way, files(form, [*beside(way, form), *INSTALLED]), files(form, names), "--cfg")
    assert done.returncode == 0, done.stderr
    assert "_target_: made_images.Images" in done.stdout


@pytest.mark.parametrize(
    ("path", "here", "mine"),
    [
        pytest.param("", OF_PYTHON, [], marks=pytest.mark.release),
        pytest.param(".:", [*OF_PYTHON, "analysis", "workloads"], [], marks=pytest.mark.release),
        pytest.param(":", [*OF_PYTHON, "analysis", "workloads"], [], marks=pytest.mark.release),
        pytest.param("MINE:", [], ["analysis", "workloads"], marks=pytest.mark.slow),
    ],
    ids=["current folder", "PYTHONPATH=.", "empty entry in PYTHONPATH", "config-dir in PYTHONPATH"],
)
def test_workers_start_beside_modules_of_the_same_names(run, path, here, mine):
    words = ["batch_size=8", "search.trials=1", "search.reruns=0", "engine.workers=1"]
    done = run("python -m study", files("module", here), files("module", mine), *words, path=path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["none", pytest.param("local", marks=pytest.mark.release)])
def test_workers_of_a_clone_do_not_import_an_installed_version(tmp_path, cluster):
    """They trained with its code, while the study recorded the commit of the clone."""
    for name in OURS:
        (tmp_path / f"installed/{name}").mkdir(parents=True)
        (tmp_path / f"installed/{name}/__init__.py").write_text(FAILS)
    words = ["batch_size=8", "search.trials=1", "search.reruns=0", f"results={tmp_path}/results", f"cluster={cluster}"]
    command = [sys.executable, "-m", "study", "sweep", "search=sobol", "engine.workers=1", *words]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results/report.html").exists()


def test_a_module_that_is_imported_before_ours_is_told(tmp_path, monkeypatch):
    other = ModuleType("analysis")
    other.__file__ = str(tmp_path / "analysis.py")
    monkeypatch.setitem(sys.modules, "analysis", other)
    with pytest.raises(ImportError, match=r"/analysis.py has the name of .*/analysis/__init__.py: rename it"):
        import_ours()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-9, "most likely because memory ran out; try engine.workers=1"),
        (-11, "by SIGSEGV, in compiled code"),
        (0, "ended (exit code 0) without saying why: it could not start, or its code called os._exit()"),
        (1, "its code called os._exit(); its last output is above; {}/pickle.py has the name of a module"),
    ],
)
def test_a_workers_death_is_told_by_its_exit_code(tmp_path, monkeypatch, code, told):
    (tmp_path / "pickle.py").write_text(FAILS)
    monkeypatch.chdir(tmp_path)
    assert told.format(tmp_path) in death(code)


@pytest.mark.parametrize(
    ("words", "file", "hides"),
    [
        (["workload._target_=workloads.Images"], "workloads.py", "workloads/__init__.py"),
        (["workload._target_=analysis.mine.Images"], "analysis/mine.py", "analysis/__init__.py"),
        (["workload._target_=random.Images"], "random.py", "random.py"),
        (["optimizer=torch", "optimizer.target=torch.Mine"], "torch.py", "torch/__init__.py"),
    ],
)
def test_a_class_in_a_hidden_module_is_refused_in_one_line(tmp_path, capsys, words, file, hides):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(FAILS)
    assert main(["sweep", "--config-dir", str(tmp_path), *words, "batch_size=8", f"results={tmp_path / 'out'}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / file.removesuffix('/mine.py')} has the name of " in line
    assert line.endswith(f"/{hides}: rename it.")


@pytest.mark.parametrize(
    ("target", "text", "cure"),
    [
        ("workload._target_=made_away.Images", None, "'made_away'. There is no module made_away in {}."),
        ("workload._target_=made_half.Images", "import no", "1: import no). The module made_half is {}/made_half.py."),
        ("workload._target_=made_other.Images", "x = 1", "'Images'. The module made_other is {}/made_other.py."),
        ("optimizer.target=made_none.Mine", None, "There is no module made_none in {}."),
        ("optimizer.target=torch.optim.Mine", None, "/torch/__init__.py."),
    ],
)
def test_who_gave_a_folder_is_not_told_to_give_it(tmp_path, capsys, target, text, cure):
    if text:
        (tmp_path / f"{target.partition('=')[2].partition('.')[0]}.py").write_text(text)
    words = [target, *(["optimizer=torch"] if target.startswith("optimizer") else [])]
    assert main(["sweep", "--config-dir", str(tmp_path), *words, "batch_size=8", f"results={tmp_path / 'out'}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(cure.format(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "cluster"),
    [
        pytest.param("study", "none", marks=pytest.mark.release),
        pytest.param("python -m study", "local", marks=pytest.mark.release),
        pytest.param("study", "local", marks=pytest.mark.release),
        ("python -m study", "none"),
    ],
)
def test_processes_that_train_import_ours(run, tmp_path, way, cluster):
    others = INSTALLED if cluster == "none" else []  # Joblib starts processes that look in the current folder first
    here = files("module", [*beside(way, "module"), *others])
    words = ["batch_size=8,16", "search.trials=2", "search.reruns=0", "engine.workers=2", f"cluster={cluster}"]
    done = run(way, here, files("package", [*OURS, *INSTALLED]), *words)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "here/results/images/tables/steps_to_result.csv")
    assert list(table["batch_size"]) == [8, 16]
