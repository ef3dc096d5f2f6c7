"""The wheel works from an empty folder, and it and CITATION.cff say the same of the project."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = ["study", "workloads", "analysis", "conf", "docs", "pyproject.toml", "README.md", "LICENSE"]
SWEEP = ["sweep", "batch_size=16,64", "search.trials=2", "search.reruns=0", "engine.workers=1", "results=digits"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the packages alone. They are built from a copy, since building writes into the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name, **({"symlinks": True} if (ROOT / name).is_dir() else {}))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."], cwd=folder, check=True
    )
    [wheel] = (folder / "dist").glob("*.whl")
    target = folder / "installed"
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(target), str(wheel)], cwd=folder, check=True)
    return target


def run(installed, folder, way, *words):
    script = next((installed / "bin").glob("study*"))
    start = {"python -m study": ["-m", "study"], "study": [str(script)]}[way]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run([sys.executable, *start, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_their_files_and_no_more(installed):
    packages = {"study", "workloads", "analysis"}
    assert {path.name for path in installed.iterdir() if "dist-info" not in path.name} == packages | {"bin"}
    for package in packages:
        assert (installed / package / "py.typed").exists()
    ours = {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
    conf = installed / "study/conf"
    assert ours == {path.relative_to(conf) for path in conf.rglob("*.yaml")}
    assert not conf.is_symlink()
    assert (installed / "analysis/report/methods.md").read_text() == (ROOT / "docs/methods.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["study", pytest.param("python -m study", marks=pytest.mark.release)])
def test_the_wheel_sweeps_and_reports_in_an_empty_folder(installed, tmp_path, way):
    assert "_target_: workloads.fully_connected.FullyConnected" in run(installed, tmp_path, way, "sweep", "--cfg")
    assert not [*tmp_path.iterdir()]
    run(installed, tmp_path, way, *SWEEP)
    table = tmp_path / "digits/tables/steps_to_result.csv"
    swept = table.read_bytes()
    assert list(pd.read_csv(table)["batch_size"]) == [16, 64]
    table.unlink()
    run(installed, tmp_path, way, "report", "digits")
    assert table.read_bytes() == swept
    assert {path.name for path in tmp_path.iterdir()} == {"digits"}


def test_the_citation_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    [paper] = cited["references"]
    assert (paper["authors"][0]["family-names"], paper["year"], paper["volume"]) == ("Shallue", 2019, 20)
