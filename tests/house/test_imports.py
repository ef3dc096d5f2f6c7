"""The import rules of the house, by folder, read off the syntax trees; and what tracked files must not hold."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from house.measure import ROOMS, box, box_arrows, by_folder, file_arrows, floors, imports, main, python_files

ROOT = Path(__file__).parents[2]
FILES = python_files(ROOT)
# Import names of the distributions in pyproject.toml; omegaconf and yaml come with Hydra, PIL and fontTools with
# matplotlib, markupsafe with jinja2.
DECLARED = {"torch", "optuna", "hydra", "omegaconf", "pandas", "pyarrow", "numpy", "scipy", "matplotlib", "PIL"}
DECLARED |= {"sklearn", "joblib", "packaging", "jinja2", "markupsafe", "markdown_it", "pooch", "rich", "yaml"}
DECLARED |= {"shtab", "threadpoolctl", "fontTools"}
DECLARED |= {"ray", "submitit", "tokenizers", "tensorboard", "mlflow", "wandb", "trackio", "apprise"}  # extras
DECLARED |= {"triton"}  # comes with torch for GPUs
DECLARED |= {"IPython"}  # what a notebook brings

# Module -> the places that may import it: folders (with all below them) and files.
KNOWN_TO = {
    "study": ["study"],
    "workloads": ["study", "workloads"],
    "analysis": ["analysis", "study"],
    "torch": [
        "workloads", "study/engine", "study/data", "study/devices", "study/user_code", "study/optimizers",
        "study/workers/process.py", "study/config", "study/checks", "study/training", "study/noise",
    ],
    "optuna": ["study/search"],
    "hydra": ["study/config/composed", "study/cluster"],
    "omegaconf": ["study/config", "study/cluster"],
    "submitit": ["study/cluster"],
    "ray": ["study/cluster"],
    **{name: [f"study/observers/trackers/{name}.py"] for name in ("mlflow", "trackio")},
    **{name: [f"study/observers/trackers/{name}.py", "study/exchange/readers"] for name in ("tensorboard", "wandb")},
    "triton": ["study/engine/fused/convolution/kernels.py", "study/engine/fused/convolution/row_kernels.py"],
    "apprise": ["study/observers/notify.py"],
    "scipy": ["analysis", "study/search", "study/calibration", "workloads/noisy_quadratic_exact.py"],
    "pyarrow": ["analysis", "study/store", "study/exchange", "workloads/data/text/readers.py"],
    "matplotlib": ["analysis/figures", "analysis/report", "analysis/export.py", "analysis/result.py"],
}  # fmt: skip
# The modules of `analysis` that `study` may import outside its commands.
OF_ANALYSIS = [
    f"analysis.{name}"
    for name in ("counting", "edges", "intervals", "labels", "question", "errors", "surrogate", "units")
]

# The straight line of `study`, bottom first: a box imports only boxes of lines above its own.
LINE = [
    "study/space",
    "study/schedules",
    "study/optimizers",
    "study/settings study/trials",
    "study/records",
    "study/store study/devices",
    "study/data study/search study/exchange",
    "study/exchange/readers",
    "study/exchange/logs",
    "study/user_code",
    "study/engine/fused",
    "study/engine/trial",
    "study/engine",
    "study/engine/command",
    "study/checks",
    "study/observers",
    "study/config/composed",
    "study/config study/terminal study/workers study/observers/trackers",
    "study/training",
    "study/warn",
    "study/whole_sweep",
    "study/transfer",
    "study/tuned",
    "study/cluster study/calibration study/noise study/verification study/branch",
    "study/command_line",
    "study/commands/beyond",
    "study/commands",
    "study/__main__ study/library",
]


def within(name: str, places: list[str], separator: str) -> bool:
    return any(name == place or name.startswith(place + separator) for place in places)


def closure(module: str) -> set[str]:
    """All modules that importing this one imports, of our own and of others."""
    found: set[str] = set()
    left = {module}
    while left:
        found |= left
        files = [f"{name.replace('.', '/')}{end}" for name in left for end in (".py", "/__init__.py")]
        left = {name for file in files if file in FILES for name in imports(ROOT / file)} - found
    return found


def test_the_rooms_are_there():
    assert {file.split("/")[0] for file in FILES} == set(ROOMS)
    assert imports(ROOT / "study/search/history.py") >= {"optuna", "study.records", "analysis.counting"}
    for place in {place for places in KNOWN_TO.values() for place in places} | set(" ".join(LINE).split()):
        assert (ROOT / place).exists() or (ROOT / f"{place}.py").exists(), f"a rule names {place}, which is gone"


@pytest.mark.parametrize("files", by_folder(FILES).values(), ids=by_folder(FILES))
def test_each_file_imports_only_what_its_room_may_know(files):
    for file in files:
        found = imports(ROOT / file)
        for module, places in KNOWN_TO.items():
            known = within(file, places, "/") or not {name for name in found if within(name, [module], ".")}
            assert known, f"{file} must not import {module}"
        reads_results = ["study/__main__.py", "study/commands", "study/library", "study/observers/live_page.py"]
        if within(file, ["study"], "/") and not within(file, reads_results, "/"):
            ours = {name for name in found if name.startswith("analysis.") and not within(name, OF_ANALYSIS, ".")}
            assert not ours, f"{file} must not import {ours}"
        others = {name.split(".")[0] for name in found} - {*ROOMS, *DECLARED, *sys.stdlib_module_names}
        assert not others, f"{file} imports {others}, which pyproject.toml does not name"


def test_rooms_form_a_straight_line():
    """No circle among files or rooms, and no import from a lower room of the line to a higher one."""
    arrows = file_arrows(ROOT)
    assert not floors(FILES, arrows)[1], "files import each other in a circle"
    assert not floors({box(file) for file in FILES}, box_arrows(arrows))[1], "rooms import each other in a circle"
    height = {name: number for number, line in enumerate(LINE) for name in line.split()}
    upward = [(a, b) for a, b in box_arrows(arrows) if a in height and b in height and height[b] >= height[a]]
    assert not upward


def test_the_measuring_script_finds_circles_long_functions_and_full_folders(tmp_path):
    (tmp_path / "study/full").mkdir(parents=True)
    (tmp_path / "study/a.py").write_text("from study import b\n")
    (tmp_path / "study/b.py").write_text("import study.a\ndef long():\n" + "    x = 1\n" * 45)
    (tmp_path / "study/c.py").write_text("from study.full import file_3\n")
    for number in range(13):
        (tmp_path / f"study/full/file_{number}.py").write_text("1\n")
    said: list[str] = []
    main(tmp_path, said.append)
    text = "\n".join(said)
    assert "files  study        16 with    3 arrows on   2 floors; in or above a circle: 2" in text
    assert "boxes  study         4 with    3 arrows on   2 floors" in text
    assert "13 files  TOO MANY" in text
    assert "function long of study/b.py has 46 lines" in text


def test_a_worker_process_imports_only_what_training_needs():
    """Every worker starts from nothing, and Optuna and SciPy together take half as long to import as torch."""
    found = closure("study.workers.process")
    assert {"study.engine.train", "torch"} <= found
    roots = {module.split(".")[0] for module in found}
    assert not roots & {"optuna", "scipy", "pandas", "pyarrow", "hydra", "omegaconf", "matplotlib"}


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    find = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert {f"{room}*" for room in ROOMS} <= set(find["include"])


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
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # a picture, deleted since, or a link to a folder
        assert not unwanted.search(text), f"{path.relative_to(ROOT)}: {unwanted.search(text)}"
