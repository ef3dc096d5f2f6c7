"""Published studies keep the rules of the gallery, and their tables and pages are made again from their files."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
from helpers.fused import seldom

from analysis.gallery import studies
from analysis.report import build
from analysis.report.page import write_tables
from analysis.report.take import citation

ROOT = Path(__file__).parents[3]
PUBLISHED = sorted(path.relative_to(ROOT) for path in (ROOT / "results/published").iterdir() if path.is_dir())
NAMES = [path.name for path in PUBLISHED]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("folder", PUBLISHED, ids=NAMES)
def test_published_studies_keep_the_rules(folder):
    assert studies.faults(folder) == []


@pytest.mark.parametrize("folder", seldom(PUBLISHED), ids=NAMES)
def test_published_tables_are_made_again(folder, tmp_path):
    found = build.read([folder]).tables
    write_tables(tmp_path, {name: table for name, table in found.items() if name not in build.ONLY_DRAWN})
    kept = {path.name for path in (folder / "tables").glob("*.csv")}
    assert kept == {path.name for path in (tmp_path / "tables").iterdir()}
    for name in sorted(kept):
        made, there = tmp_path / "tables" / name, folder / "tables" / name
        assert made.read_bytes() == there.read_bytes(), f"{name} differs; run: python -m study report {folder}"


@pytest.mark.slow
def test_the_pages_of_the_gallery_are_up_to_date():
    made, _ = runpy.run_path("docs/gallery.py")["pages"]()
    kept = {path.name: path.read_text() for path in Path("docs/gallery").glob("*.md")}
    assert made.keys() == kept.keys(), "run: python docs/gallery.py"
    for name, text in made.items():
        assert text == kept[name], f"{name} is stale; run: python docs/gallery.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study with one published search, whose tables were made of it."""
    folder = tmp_path_factory.mktemp("published") / "mine"
    search = "studies/mlp_digits/sgd/64"
    shutil.copytree(ROOT / "results/published/mlp_digits" / search, folder / search)
    found = build.read([folder])
    write_tables(folder, found.tables)
    citation.record(folder, found.citation.hashes[0][1])
    (folder / "figures").mkdir()
    (folder / "figures/steps_to_result.svg").write_text("<svg/>")
    return folder


@pytest.fixture
def copied(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "mine"))


def edit(folder, change):
    path = folder / "studies/mlp_digits/sgd/64/study.json"
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))


def test_a_new_study_keeps_the_rules(copied):
    assert studies.faults(copied) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: edit(folder, lambda held: held.update(format=2)), "has format 2"),
        (lambda folder: edit(folder, lambda held: held["question"].pop("goal")), "lacks goal in its question"),
        (lambda folder: edit(folder, lambda held: held["provenance"].clear()), "lacks any run"),
        (lambda folder: edit(folder, lambda held: held["provenance"][0].update(command=None)), "lacks command"),
        (lambda folder: edit(folder, lambda held: held["provenance"][0].update(command="make")), "no command of a"),
        (lambda folder: edit(folder, lambda held: held["question"]["seeds"].update(search=1)), "made of other"),
        (lambda folder: (folder / "tables/cost.csv").unlink(), "tables/cost.csv missing"),
        (lambda folder: (folder / "figures/steps_to_result.svg").unlink(), "figures/steps_to_result.svg missing"),
        (lambda folder: shutil.rmtree(folder / "studies"), "no studies in"),
        (lambda folder: folder.rename(folder.with_name("My-Study")), "name the folder in lower case"),
    ],
)  # fmt: skip
def test_faults_are_named_with_their_cure(copied, spoil, said):
    spoil(copied)
    folder = copied if copied.exists() else copied.with_name("My-Study")
    assert any(said in fault for fault in studies.faults(folder))
