"""The report: one file that fetches nothing, escapes what it is given and leaves nothing out; CSVs in full."""

import ast
import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.fused import partly

from analysis import figures
from analysis.counting import Goal
from analysis.figures import FIGURES, charts, formats
from analysis.load import load_study
from analysis.report import build, methods
from analysis.report import table as page_table
from analysis.report.answer import Answer
from analysis.report.answer.next_step import NextStep
from analysis.report.answer.rows import Row
from analysis.report.answer.values import UNKNOWN, Value
from analysis.report.page import ReportData, page, write_report, write_tables
from analysis.tables import answers as analysis_searches
from analysis.tables import fits, transfer

ROOT = Path(__file__).parents[3]
METRIC = "val/classification_error"
PAIRS = pd.DataFrame(
    {
        **{"kind": ["all batch sizes", "one batch size"], "workload": "digits", "a": "nesterov", "b": "sgd"},
        **{"goal_metric": METRIC, "goal_threshold": 0.05, "smallest_batch_size": [1, 8], "largest_batch_size": [64, 8]},
        **{"ratio": [1.5, np.inf], "low": [0.9, 2.0], "high": [2.5, np.inf], "shown": [False, True]},
    }
)
HTML = re.compile(r"</?(a|b|body|code|dd|details|div|dl|dt|figure|h\d|head|html|li|ol|p|span|table|t[dhr]|ul)\b")
VOID = {"meta", "link", "br", "img", "input"}


STEPS = pd.DataFrame(
    {
        "batch_size": [1, 8, 64],
        "reached": [True, True, False],
        "steps_to_result": pd.array([1725, 200, None], dtype="Int64"),
        "examples_to_result": pd.array([1725, 1600, None], dtype="Int64"),
        "trial": pd.array([3, 17, None], dtype="Int64"),
        "learning_rate": [0.021345678901234567, 0.1, np.nan],
        "momentum": [0.99873, 0.9, np.nan],
        **{"complete": 32, "incomplete": 0, "infeasible": [0, 5, 1234], "train_steps": [20000, 2500, 400]},
    }
)
LIMITS = [("perfect_scaling_limit", 8.0, "="), ("maximum_useful_batch_size", 64.0, ">")]
COST = pd.DataFrame(
    {
        **{"batch_size": [1, 8, 64], "device": "cpu", "trials": 32, "steps": [640000, 80000, 12800]},
        **{"seconds_training": [7500.0, 12.5, 3.2], "seconds_evaluation": [75.3, 1.5, 0.3]},
        **{"seconds_per_step": [0.01177, 1.5e-4, 2.5e-4], "evaluation_share": [0.0099, 0.107, np.nan]},
    }
)


def tables(workload="digits", optimizers=("nesterov",)):
    """Steps to result, limits and cost at three batch sizes under each optimizer."""
    names = pd.DataFrame({"workload": workload, "optimizer": optimizers})
    goals = names.assign(goal_metric=METRIC, goal_threshold=0.05)
    limits = pd.DataFrame(LIMITS, columns=["definition", "estimate", "estimate_bound"])
    nothing = dict.fromkeys(("value", "low", "high", "estimate_low", "estimate_high", "read_from"), np.nan)
    limits = limits.assign(**nothing, bound="=")
    return goals.merge(STEPS, how="cross"), goals.merge(limits, how="cross"), names.merge(COST, how="cross")


def report(**changes):
    alike = {"seed": 0, "versions": {"torch": "2.13.0", "numpy": "2.4.6"}}
    studies = [{"batch_size": 1, "host": "here", **alike}, {"batch_size": 8, "host": "there", **alike}]
    texts = ["It scales to 8.", "And no further."], ["The heavier one.", "The lighter one."]
    return ReportData("Digits", *texts, made_of(*tables(**changes)), studies, "study sweep workload=digits")


def shown(data):
    """The page with all that can be drawn."""
    return page(data, drawn(data.tables))


def made_of(steps, scaling, cost):
    """Tables by name, as of `analysis.report.derived.tables`."""
    searched = {"searches": searches(steps), "reruns": reruns(steps), "repeats": analysis_searches.repeats([])}
    workloads = PAIRS.iloc[:0].rename(columns={"workload": "optimizer"})
    compared = {"compare": PAIRS, "compare_workloads": workloads, "rules": transfer.table(transfer.steps([]))}
    return {
        "steps_to_result": steps,
        "scaling": scaling,
        "cost": cost,
        "fits": fits.table(steps),
        **searched,
        **compared,
    }


def drawn(tables):
    """What can be drawn from steps and limits."""
    kinds = ["steps_to_result", "examples_to_result", "best_learning_rate", "best_effective_learning_rate"]
    return [(c, [formats.svg(f) for f in figures.draw(c)]) for c in figures.charts(tables, kinds)]


def searches(steps):
    """Two stages for each study, as in `analysis.tables.answers.table`."""
    kept = [*steps.columns[:7], "complete", "infeasible", "incomplete", "train_steps"]
    search = {"repeat": 0, "budget_multiple": 1.0, "stage": 0, "answer": False, "searched_momentum": "0 to 0.9, linear"}
    first = steps[kept].assign(**search)
    second = first.assign(stage=1, answer=True, searched_momentum="0 to 0.99, linear")
    return pd.concat([first, second], ignore_index=True)


def reruns(steps):
    """As in `analysis.tables.answers.reruns`: five reruns of the first batch size; one missed the goal."""
    kept = ["workload", "optimizer", "batch_size", "goal_metric", "goal_threshold", "trial", "steps_to_result"]
    spread = {"least": 1700.0, "median": 1800.0, "greatest": np.inf}
    return steps[steps["batch_size"] == 1][kept].assign(reruns=5, infeasible=0, reached=4, **spread)


@pytest.fixture(scope="module")
def text():
    return shown(report())


class Page(HTMLParser):
    """Collects ids, references and table rows; fails on tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.references, self.rows, self.open = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open += [] if tag in VOID else [tag]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.ids += [value for name, value in attributes if name == "id"]
        self.references += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        self.references += [f"#{ref}" for _, value in attributes for ref in re.findall(r"url\(#(.*?)\)", value or "")]

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] in (["td"], ["button"]):
            self.rows[-1][-1] += data


@pytest.mark.slow
def test_one_file_that_fetches_nothing(tmp_path):
    path = write_report(tmp_path / "new", report(), drawn(report().tables))
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    text = path.read_text()
    assert not re.search("https?:|@import", text)
    assert "default-src 'none'" in text
    assert all(reference.startswith("#") for reference in Page(text).references)


@pytest.mark.slow
def test_the_same_data_give_the_same_bytes(text):
    assert shown(report()) == text


@pytest.mark.slow
def test_ids_are_unique_and_every_reference_finds_its_own():
    steps = pd.concat([tables("one", ("sgd", "nesterov"))[0], tables("two")[0]])
    read = Page(page(report(), drawn({"steps_to_result": steps, "scaling": tables()[1]})))
    assert len(read.ids) == len(set(read.ids))
    assert len(read.references) > 50
    assert {reference.removeprefix("#") for reference in read.references} <= set(read.ids)


def test_order_conclusion_warnings_figures_tables_provenance(text):
    said = ["<h1>Digits", "It scales to 8.", "And no further.", "The heavier one.", "The lighter one.", "<svg"]
    said += ["Figure 1.", "Figure 4.", "Table 1.", "Table 4.", "study sweep workload=digits", "<details>"]
    places = [text.index(words) for words in said]
    assert places == sorted(places)


def answered(**changes):
    """A report with an answer: a finding, a row and a next step."""
    row = Row("Nesterov", Value("200", "150 to 250", "at batch size 8"), Value("≥ 64"), Value("8", "4 to 16"), UNKNOWN)
    known = NextStep("Steps are known within a factor of 1.3", "train more seeds", "study sweep search.reruns=8", 12.0)
    curve = "digits with nesterov to validation error < 0.05"
    said = ["digits to validation error < 0.05: all tie.", f"{curve}: steps fall.", "Budget: 9 steps."]
    warnings = ["digits, nesterov, batch size 8: few trials.", "digits, nesterov: noisy."]
    group = ("digits", "val/classification_error", 0.05)
    answer = Answer(group, ["nesterov"], "Nesterov scales to 8", "It leads.", [row], known)
    return replace(report(), sentences=said, warnings=warnings, answers=[answer], **changes)


@pytest.mark.slow
def test_the_first_screen_is_the_answer():
    text = shown(answered())
    body = text.partition("<body>")[2]
    said = [
        "<h1>Nesterov scales to 8",
        'id="figure-1"',
        "<svg",
        "Figure 1.",
        "<b>200</b>",
        "150 to 250",
        "<b>≥ 64</b>",
        "It leads.",
    ]
    said += ["Steps are known within a factor of 1.3.", "train more seeds (about 12 s):", "study sweep search.reruns=8"]
    said += ["2 notes", "few trials.", "<h2>Findings", "Steps fall.", "Budget: 9 steps.", "Figure 2.", "Table 1."]
    places = [body.index(words) for words in said]
    assert places == sorted(places)
    assert body.count("Figure 1.") == body.count('id="figure-1"') == 1
    assert "<title>Digits</title>" in text
    assert '<meta property="og:title" content="Nesterov scales to 8">' in text
    folded = re.search(r'<details class="notes" id="notes"><summary>2 notes</summary>(.*?)</details>', text, re.DOTALL)
    assert re.findall("<li>(.*)</li>", folded[1]) == ["nesterov, batch size 8: few trials.", "nesterov: noisy."]


@pytest.mark.slow
def test_each_of_several_answers_has_its_panel_and_heading():
    one = answered().answers[0]
    steps = pd.concat([tables("digits")[0], tables("other")[0]])
    other = one._replace(group=("other", *one.group[1:]), title="Nothing scales", next=None, rows=[])
    data = answered(tables=made_of(steps, *tables()[1:]))
    text = page(replace(data, answers=[one, other]), drawn(data.tables))
    assert "<h1>Digits" in text
    assert re.findall(r"<h2>(.*?)<a", text)[:3] == ["Nesterov scales to 8", "Nothing scales", "Findings"]
    labels = re.findall(r'aria-label="Steps to result: (\w+), validation error &lt; 0.05:', text)
    assert labels == ["digits", "other"]
    assert text.count("few trials.") == 1
    Page(text)


@pytest.mark.slow
def test_contents_headings_figures_and_tables_have_links():
    read = Page(shown(answered()))
    contents = ["findings", "figures", "tables", "provenance", "methods"]
    assert [f"#{name}" for name in contents] == read.references[: len(contents)]
    for name in (*contents, "figure-2", "table-1"):
        assert name in read.ids
        assert read.references.count(f"#{name}") >= 1
    assert len(read.ids) == len(set(read.ids))
    assert {reference.removeprefix("#") for reference in read.references} <= set(read.ids)


def test_every_study_is_in_the_tables_and_numbers_are_for_people():
    rows = Page(page(report(optimizers=("sgd", "nesterov")))).rows
    for optimizer in ("sgd", "nesterov"):
        assert [optimizer, "1", "1,725", "1,725", "3", "0.0213", "0.9987", "20,000"] in rows
        assert [optimizer, "64", "not reached", "–", "–", "–", "–", "400"] in rows
        assert [optimizer, "perfect-scaling limit", "8"] in rows
        assert [optimizer, "maximum useful batch size", "≥ 64"] in rows
        assert [optimizer, "64", "32", "1,234", "0"] in rows
        assert [optimizer, "1", "32", "640,000", "2 h 05 min", "1 min 15 s", "11.8 ms", "1.0%"] in rows
    assert ["here"] in [row[-1:] for row in rows]
    assert ["batch size", "host"] in rows


def test_what_is_the_same_in_all_rows_goes_into_the_caption(text):
    caption = "<b>Table 1. Steps to result.</b> workload digits · optimizer nesterov · goal validation error &lt; 0.05"
    assert caption in text
    assert ["1", "1,725", "1,725", "3", "0.0213", "0.9987", "20,000"] in Page(text).rows
    assert "<dt>versions torch</dt><dd>2.13.0</dd>" in text


# Column of a table, its values -> facts in the caption, cells of a column of its own.
SAID = {
    "shared": ("device", ["cpu", "cpu"], ["device cpu"], None),
    "unknown throughout": ("device", ["", ""], [], None),
    "unknown in a row": ("device", ["cpu", ""], [], ["cpu", "–"]),
    "of some rows alone": ("tuned for", ["error < 0.1", None], [], ["error < 0.1", "–"]),
    "of later rows alone": ("tuned for", [None, "error < 0.1"], [], ["–", "error < 0.1"]),
}


@pytest.mark.parametrize("kind", SAID)
def test_a_caption_says_what_holds_for_all_rows_and_is_known(kind):
    name, values, facts, cells = SAID[kind]
    found = page_table.shown(pd.DataFrame({name: values, "steps": [1, 2]}), "Cost.")
    assert found.facts == facts
    at = [column.name for column in found.columns]
    assert (None if name not in at else [row[at.index(name)].text for row in found.rows]) == cells


def test_intervals_are_shown_once_there_are_any(text):
    data = report()
    assert "<button>95 % interval" not in text
    scaling = data.tables["scaling"].assign(estimate_low=[4.0, np.nan], estimate_high=[16.0, np.nan])
    changed = {"scaling": scaling, "steps_to_result": data.tables["steps_to_result"].iloc[:0]}
    found = page(replace(data, tables={**data.tables, **changed}))
    assert ["perfect-scaling limit", "8", "4 to 16"] in Page(found).rows


@pytest.mark.slow
def test_names_are_escaped():
    name = "<script>alert('x')</script>&\"quoted\""
    made = made_of(*tables(name, (name,)))
    text = shown(ReportData(name, [name], [name], made, [{"host": name}, {"host": "b"}], name))
    assert text.count("<script>") == 1
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)" in text
    Page(text)


@pytest.mark.slow
def test_html_stands_in_templates_alone():
    """Markup in a string of the code is not escaped by anybody."""
    for path in (ROOT / "analysis").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else ()
            text = "".join(part.value for part in parts if isinstance(part, ast.Constant))
            assert not HTML.search(text), f"{path.name}: {text}"


def test_a_report_on_nothing_says_so():
    text = page(ReportData("Empty", [], [], {}, [], ""))
    assert "Nothing has been measured yet." in text
    assert "<table" not in text.partition('<section id="methods">')[0]
    assert "<svg" not in text
    Page(text)


def test_csv_files_keep_full_precision_and_do_not_depend_on_the_order_of_rows(tmp_path):
    made = dict(zip(("steps_to_result", "scaling", "cost"), tables(optimizers=("sgd", "nesterov")), strict=True))
    made["searches"] = searches(made["steps_to_result"])
    steps = made["steps_to_result"]
    first = write_tables(tmp_path / "a", made)
    mixed = {name: table.sample(frac=1, random_state=1) for name, table in made.items()}
    second = write_tables(tmp_path / "b", mixed)
    assert first == [tmp_path / f"a/tables/{name}.csv" for name in made]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    text = first[0].read_text()
    assert repr(float(steps["learning_rate"][0])) in text
    assert b"\r" not in first[0].read_bytes()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == list(steps.columns)
    assert max(float(row["learning_rate"] or 0) for row in rows) == steps["learning_rate"].max()
    assert [row["steps_to_result"] for row in rows] == ["1725", "200", ""] * 2


@pytest.mark.parametrize("information", [[1 / 3, None], [None, None], [1 / 3, 2 / 3]])
def test_numbers_of_fits_have_eight_digits_whatever_is_missing(tmp_path, information):
    """A column without any number made the others keep bits that depend on the processor."""
    made = pd.DataFrame({"optimizer": ["sgd", "adam"], "steps_min": [1 / 3, 200 / 3], "information": information})
    [path] = write_tables(tmp_path, {"fits": made.astype({"steps_min": object})})
    assert {row["steps_min"] for row in csv.DictReader(io.StringIO(path.read_text()))} == {"0.33333333", "66.666667"}


def test_every_term_and_every_title_is_defined_in_the_methods(text):
    defined = set(re.findall(r'id="(method-[^"]*)"', methods.rendered()))
    assert {methods.anchor(term) for term in methods.TERMS.values()} <= defined
    assert {methods.anchor(drawing.title) for drawing in FIGURES.values()} <= defined
    targets = re.findall(r'href="#(method-[^"]*)"', text)
    assert len(targets) > 10
    assert all(text.count(f'id="{target}"') == 1 for target in targets)


def test_the_methods_in_the_page_are_those_of_the_documents():
    assert (ROOT / "analysis/report/methods.md").read_text() == (ROOT / "docs/methods.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "value"), partly([("MOST_FIGURES", 2), ("MOST_BYTES", 30_000)], 2, 1))
def test_figures_beyond_what_a_page_holds_are_links(limit, value, monkeypatch):
    figures = drawn(report().tables)
    whole = page(report(), figures)
    monkeypatch.setattr("analysis.report.page." + limit, value)
    text = page(report(), figures)
    assert len(text) < len(whole)
    linked = re.findall(r'<a href="figures/([^"]+)\.svg">', text)
    assert linked
    assert "Further figures are in separate files" in text
    assert len(linked) + len(re.findall(r'<figure id="figure-\d+"', text)) == len(figures)


def test_kinds_that_are_missing_say_what_they_need(text):
    assert "Several goals: needs two goals, one of them reached: give --goal twice, or goals=[...] in Python." in text
    assert "Steps to result: needs" not in text


@pytest.mark.slow
def test_kinds_that_are_missing_as_no_trial_met_the_goal_say_so():
    folders = Path("results/published/mlp_digits/studies/mlp_digits").glob("*/64")
    studies = [load_study(folder) for folder in folders]
    (goal,) = {study.goal for study in studies}

    def there(*goals: Goal) -> set[str]:
        return {chart.drawing.title for chart in charts(build.tables(studies, studies, build.Asked(goals)))}

    beyond, farther = replace(goal, threshold=1e-8), replace(goal, threshold=1e-9)
    titles = (there(goal) - there(beyond)) | (there(goal, beyond) - there(beyond, farther))
    lost = [drawing for drawing in FIGURES.values() if drawing.title in titles]
    assert len(lost) > 4
    assert [drawing.title for drawing in lost if "reached" not in drawing.needs] == []
