"""Reports on goals other than the studies' own leave the folder's own report as it is, and link with it."""

import re
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest

from analysis.counting import Goal
from analysis.report.build import Asked, build
from analysis.report.other_goals import BEGIN, END, folder
from study.__main__ import main

PUBLISHED = Path(__file__).parents[3] / "results/published/mlp_digits/studies/mlp_digits/sgd"
METRIC = "val/cross_entropy_error"
PAIR = "val_cross_entropy_error_below_0.1_and_val_cross_entropy_error_below_0.5"


@pytest.fixture
def results(tmp_path):
    """A results folder without a report."""
    for size in (32, 64):
        copytree(PUBLISHED / str(size), tmp_path / f"mine/studies/mlp_digits/sgd/{size}")
    return tmp_path / "mine"


def content(folder):
    """The files of a report, without the links of its page."""
    files = [folder / "report.html", *folder.glob("tables/*"), *folder.glob("figures/*")]
    text = re.compile(rf"{BEGIN}.*?{END}".encode(), re.DOTALL)
    return {path.relative_to(folder): text.sub(b"", path.read_bytes()) for path in files}


def hrefs(page):
    return re.findall(r'<a href="([^"#]*)"', page.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("goals", "slug", "reported"),
    [
        ([f"{METRIC} < 0.5", f"{METRIC} < 0.1", f"{METRIC} < 0.5"], PAIR, True),
        pytest.param(["val/classification_error<1"], "val_classification_error_below_1", False, marks=pytest.mark.slow),
    ],
)
def test_other_goals_have_a_folder_of_their_own(results, goals, slug, reported, capsys):
    if reported:
        build([results], results)
        before = content(results)
    assert main(["report", str(results), *(word for goal in goals for word in ("--goal", goal))]) == 0
    place = results / "goals" / slug
    assert f"Report: {(place / 'report.html').as_uri()}" in capsys.readouterr().out
    steps = pd.read_csv(place / "tables/steps_to_result.csv")
    assert {f"{row.goal_metric} < {row.goal_threshold:g}" for row in steps.itertuples()} == {
        str(Goal.parse(goal)) for goal in goals
    }
    assert list(place.glob("figures/*.svg"))
    assert hrefs(place / "report.html")[0] == "../../report.html"
    assert hrefs(results / "report.html")[0] == f"goals/{slug}/report.html"
    if not reported:
        before = content(results)
        build([results], results)
    assert content(results) == before
    assert hrefs(results / "report.html")[0] == f"goals/{slug}/report.html"


@pytest.mark.slow
def test_a_report_on_other_goals_that_lacks_the_latest_trials_is_marked(results):
    asked = Asked([Goal(METRIC, 0.5)])
    build([results], results, asked)
    assert "older" not in (results / "report.html").read_text().partition(END)[0]
    copytree(PUBLISHED / "128", results / "studies/mlp_digits/sgd/128")
    build([results], results)
    assert "(older: written before the latest measurements)" in (results / "report.html").read_text()
    build([results], results, asked)
    assert "(older" not in (results / "report.html").read_text()


@pytest.mark.slow
def test_a_page_of_an_older_version_is_rebuilt(results):
    (results / "report.html").write_text("<html></html>")
    build([results], results, Asked([Goal(METRIC, 0.5)]))
    assert hrefs(results / "report.html")[0] == "goals/val_cross_entropy_error_below_0.5/report.html"


@pytest.mark.slow
@pytest.mark.parametrize("output", ["elsewhere", "mine"])
def test_an_output_of_ones_own_is_used_unless_it_holds_the_studies(results, tmp_path, output):
    assert main(["report", str(results), "--goal", f"{METRIC} < 0.5", "--output", str(tmp_path / output)]) == 0
    assert (tmp_path / "elsewhere/report.html").exists() is (output == "elsewhere")
    assert (results / "goals").exists() is (output == "mine")


def test_long_lists_of_goals_have_short_names():
    goals = [Goal(METRIC, threshold / 1000) for threshold in range(1, 100)]
    names = {folder(Path(), goals[:count]).name for count in range(1, 100)}
    assert len(names) == 99
    assert max(map(len, names)) < 140
