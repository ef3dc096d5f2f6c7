"""What the page offers for other documents: LaTeX tables, PDFs, and a citation with a hash that a shell can check."""

import re
import subprocess
from pathlib import Path
from shutil import copytree

import pandas as pd
import pytest
from fontTools import subset
from helpers.fused import partly
from helpers.made_tables import limits, only, table

from analysis import figures
from analysis.figures import Files, canvas, formats, save
from analysis.load import folders, load_study
from analysis.report import build
from analysis.report.page import write_latex
from analysis.report.table import shown
from analysis.report.take.citation import VERIFY, citation, content_hash
from analysis.report.take.latex import MOST_ROWS, escaped, latex
from analysis.tables import fits

PUBLISHED = Path(__file__).parents[3] / "results/published/mlp_digits"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_b & 95 % of $x$ #1 {y}", r"a\_b \& 95 \% of \$x\$ \#1 \{y\}"),
        ("\\ ~ ^", r"\textbackslash{} \textasciitilde{} \textasciicircum{}"),
        ("error < 0.05, ≥ 64, ≤ 8, ±12%, ∞", r"error $<$ 0.05, $\geq$ 64, $\leq$ 8, $\pm$12\%, $\infty$"),
        ("–", "--"),
        ("Schrödinger", "Schrödinger"),
    ],
)
def test_special_characters_are_written_out(text, expected):
    assert escaped(text) == expected


def test_a_table_has_the_rules_of_booktabs_and_a_cell_for_each_column():
    text = latex(
        "Steps.", [("batch size", True), ("steps", True), ("of", False)], [["8", "1,725", "a&b"], ["64", "–", ""]]
    )
    assert re.findall(r"\\(\w+rule)", text) == ["toprule", "midrule", "bottomrule"]
    assert r"\begin{tabular}{rrl}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [2, 2, 2]


def test_latex_files_of_earlier_reports_go_and_strangers_stay(tmp_path):
    found = shown(pd.DataFrame({"batch_size": [8]}), "Table 1. Cost.")
    write_latex(tmp_path, [found._replace(name="cost"), found._replace(name="cost-2")])
    (tmp_path / "tables/mine.tex").write_text("mine")
    long = shown(pd.DataFrame({"batch_size": range(MOST_ROWS + 1)}), "Table 2. Limits of scaling.")
    write_latex(tmp_path, [found._replace(name="cost"), long._replace(name="limits_of_scaling")])
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["cost.tex", "mine.tex"]


@pytest.mark.slow
@pytest.mark.parametrize("width", partly([None, 3.25], 2, 1))
def test_a_pdf_has_a_page_for_each_panel_and_fonts_for_tex(tmp_path, width):
    steps = pd.concat([table("sgd"), table("sgd", workload="a_workload_with_a_name_that_is_longer_than_a_column")])
    chart = only("steps_to_result", {"steps_to_result": steps, "scaling": limits("sgd")})
    for name in ("one", "two"):
        save(chart, tmp_path / name, Files(("svg", "pdf"), width))
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["steps_to_result.pdf", "steps_to_result.svg"]
    found, again = ((tmp_path / name / "steps_to_result.pdf").read_bytes() for name in ("one", "two"))
    assert found == again
    assert b"/FontFile2" in found
    assert b"/Type3" not in found
    widths = [float(box) / 72 for box in re.findall(rb"/MediaBox \[ 0 0 ([\d.]+)", found)]
    assert len(widths) == 2
    assert width is None or widths == pytest.approx([width] * 2)


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "whole"), [("mlp_digits, β₂ ≥ ½ · ∞ – “é”", 0), ("цифры", 1)])
def test_a_pdf_looks_as_the_page_and_cuts_its_glyphs_out_of_a_small_font(monkeypatch, tmp_path, heading, whole):
    """The whole font took most of the time of a PDF. It is opened for what the small one lacks alone."""
    monkeypatch.setattr(formats.matplotlib, "get_cachedir", lambda: str(tmp_path))
    opened, load_font = [], subset.load_font
    monkeypatch.setattr(subset, "load_font", lambda font, *more: opened.append(str(font)) or load_font(font, *more))
    made = []
    for _ in range(2):
        figure = canvas.draw(lambda ax: ax.set_title(heading))
        before = formats.png_side_by_side([figure])
        made.append(formats.pdf([figure]))
        assert formats.png_side_by_side([figure]) == before
        if not made[1:]:
            opened.clear()  # the first one made the small font
    assert made[0] == made[1]
    assert sum(formats.SMALL.replace(" ", "-") not in font for font in opened) == whole
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_time_only(monkeypatch, tmp_path):
    monkeypatch.setattr(formats.matplotlib, "get_cachedir", lambda: str(tmp_path / "missing"))
    assert b"/FontFile2" in formats.pdf([canvas.draw(lambda ax: ax.set_title("digits"))])


@pytest.mark.parametrize("name", ["steps_to_result", "best_learning_rate", "time_and_examples"])
def test_nothing_leaves_a_narrow_figure(name):
    steps = pd.concat([table("sgd", missed=(256,)), table("nesterov", workload="digits")])
    for figure in figures.draw(
        only(name, {"steps_to_result": steps, "scaling": limits(), "fits": fits.table(steps)}), 3.25
    ):
        figure.draw_without_rendering()
        [ax] = figure.axes
        assert figure.get_size_inches()[0] == pytest.approx(3.25)
        assert ax.get_legend().get_window_extent().x1 <= figure.bbox.x1 + 1
        assert ax.yaxis.label.get_window_extent().x0 >= -1


def test_the_hash_is_what_a_shell_prints_and_changes_with_the_measurements(tmp_path):
    copytree(PUBLISHED / "studies/mlp_digits/sgd/64", tmp_path / "studies/mlp_digits/sgd/64")
    made = [load_study(folder) for folder in folders(tmp_path)]
    found = content_hash(tmp_path, made)
    said = subprocess.run(["sh", "-c", VERIFY], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.split()[0] == found
    question = tmp_path / "studies/mlp_digits/sgd/64/study.json"
    question.write_text(question.read_text() + " ")
    assert content_hash(tmp_path, [load_study(folder) for folder in folders(tmp_path)]) != found


def test_a_citation_names_tool_paper_hash_and_command():
    made = [load_study(PUBLISHED / "studies/mlp_digits/sgd/64")]
    found = citation("Digits: 95 %", [PUBLISHED], made, "python -m study sweep")
    assert found.tool.startswith("batch-size-study ")
    assert "Shallue" in found.paper
    [(_, digest)] = found.hashes
    assert f"@misc{{batch-size-study-{digest[:8]}," in found.bibtex
    assert digest in found.bibtex
    assert r"title = {Digits: 95 \%}" in found.bibtex
    assert found.bibtex.count("{") == found.bibtex.count("}")
    assert found.commands == "python -m study sweep"


@pytest.mark.slow
def test_the_page_links_every_file_beside_it(tmp_path, monkeypatch):
    copytree(PUBLISHED / "studies/mlp_digits/sgd/64", tmp_path / "studies/mlp_digits/sgd/64")
    build.build([tmp_path], tmp_path)
    linked = set(re.findall(r'href="((?:figures|tables)/[^"]+)"', (tmp_path / "report.html").read_text()))
    assert all((tmp_path / path).stat().st_size for path in linked)
    drawn = {f"figures/{path.name}" for path in (tmp_path / "figures").iterdir()}
    assert drawn == {f"figures/steps_to_result.{form}" for form in ("svg", "png", "pdf")} <= linked
    assert {f"tables/{path.name}" for path in (tmp_path / "tables").glob("*.tex")} <= linked
    assert {"tables/steps_to_result.csv", "tables/cost.csv"} <= linked
    monkeypatch.setattr(figures, "MANY_PANELS", 1)  # as if there were many
    build.build([tmp_path], tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not (tmp_path / "figures/steps_to_result.pdf").exists()
    assert f"python -m study report {tmp_path} --figures svg,png,pdf --width 3.25" in page
    assert "steps_to_result.pdf" not in page
