"""The import rules of the house, read off the syntax trees, and what tracked files must not hold."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("study", "workloads", "analysis")
FILES = sorted(str(path.relative_to(ROOT)) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# Import names of the distributions in pyproject.toml; omegaconf comes with Hydra, PIL with matplotlib.
DECLARED = {"torch", "optuna", "hydra", "omegaconf", "pandas", "pyarrow", "numpy", "scipy", "matplotlib", "PIL"}
DECLARED |= {"sklearn", "joblib", "markdown_it", "pooch", "rich", "yaml"}  # yaml comes with omegaconf
DECLARED |= {"ray", "submitit"}  # extras


def imports(file: str) -> set[str]:
    """Every module that a file imports anywhere in it, `from a import b` as both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def of(room: str, file: str) -> set[str]:
    return {module for module in imports(file) if module == room or module.startswith(f"{room}.")}


def test_the_rooms_are_there():
    assert {file.split("/")[0] for file in FILES} == set(ROOMS)
    assert imports("study/search/tuner.py") >= {"optuna", "study.records", "analysis.counting"}


@pytest.mark.parametrize("file", FILES)
def test_import_rules(file):
    room = file.split("/")[0]
    if room == "workloads":
        assert not of("study", file) | of("analysis", file)
    if room == "analysis":
        assert not of("study", file) | of("workloads", file) | of("torch", file)
    if room == "study" and not file.startswith(("study/__main__.py", "study/commands/")):
        rules = ("analysis.counting.", "analysis.edges.", "analysis.errors.", "analysis.labels.")
        assert all(f"{module}.".startswith(rules) for module in of("analysis", file) - {"analysis"})
    if file not in ("study/search/tuner.py", "study/search/optuna_storage.py"):
        assert not of("optuna", file)
    if file not in ("study/config/compose.py", "study/cluster/launch.py"):
        assert not of("hydra", file)
    if file not in ("study/config/compose.py", "study/config/jobs.py", "study/cluster/launch.py"):
        assert not of("omegaconf", file)
    if file != "study/cluster/launch.py":
        assert not of("submitit", file) | of("ray", file)


def test_a_worker_process_imports_what_trains_and_no_more():
    """Each of many starts anew, and what searches (Optuna, SciPy) takes half as long to import as torch does."""
    found: set[str] = set()
    left = {"study.workers.process"}
    while left:
        found |= left
        files = [f"{module.replace('.', '/')}{end}" for module in left for end in (".py", "/__init__.py")]
        left = {module for file in files if file in FILES for module in imports(file)} - found
    assert {"study.engine.train", "torch"} <= found
    roots = {module.split(".")[0] for module in found}
    assert not roots & {"optuna", "scipy", "pandas", "pyarrow", "hydra", "omegaconf", "matplotlib"}


@pytest.mark.parametrize("file", FILES)
def test_only_what_is_declared_is_imported(file):
    roots = {module.split(".")[0] for module in imports(file)}
    assert roots <= {*ROOMS, "conf", *DECLARED, *sys.stdlib_module_names}


def test_every_package_is_installed():
    """Every folder with modules is a package, of a name that the build looks for."""
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert {*(f"{room}*" for room in ROOMS), "conf"} == set(find["include"])


def test_tracked_files_name_no_machine_and_no_registry():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    places = ["/work/", "/home/", "/root/", "/Users/", "/tmp/venv"]
    hosts = ["pypi.org/simple", "files.pythonhosted.org", "registry.npmjs.org", "index-url"]
    unwanted = re.compile("|".join(map(re.escape, places + hosts)))
    files = {ROOT / name for name in listed.splitlines()} - {Path(__file__).resolve()}
    for path in files:
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # a picture, or deleted since
        assert not unwanted.search(text), f"{path.relative_to(ROOT)}: {unwanted.search(text)}"
