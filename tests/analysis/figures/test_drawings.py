"""Figures as drawings and files: ticks and legends that fit, and files that are whole and the same on every run."""

import io
import re
from itertools import pairwise
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from helpers.fused import partly
from helpers.made_tables import METRIC, drawn, errors_at, limits, only, panels_of, table, trials
from PIL import Image

from analysis.figures import FIGURES, canvas, charts, draw, formats, save, save_all
from analysis.tables import fits
from analysis.tables.best_errors import by_budget


@pytest.mark.parametrize(
    "name", [name for name in FIGURES if FIGURES[name].table == "steps_to_result" and name != "several_goals"]
)
@pytest.mark.parametrize("sizes", partly([((64,),), ((1, 2),), (tuple(2**i for i in range(17)),), ((2, 55000),)], 2))
def test_ticks_are_plain_and_never_overlap(name, sizes):
    steps = pd.concat([table("sgd", sizes), table("nesterov", sizes, missed=sizes[-1:])])
    found = charts({"steps_to_result": steps, "scaling": limits(), "fits": fits.table(steps)}, [name])
    if not found:
        assert name == "time_and_examples"
        assert len(sizes) < 3
        return
    (figure,) = draw(found[0])
    with matplotlib.rc_context(canvas.STYLE):
        figure.draw_without_rendering()
    (ax,) = figure.axes
    for axis, start, end in ((ax.xaxis, "x0", "x1"), (ax.yaxis, "y0", "y1")):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) >= 2
        boxes.sort(key=lambda box: getattr(box, start))
        assert all(getattr(a, end) < getattr(b, start) for a, b in pairwise(boxes))
        title = axis.label.get_window_extent()
        assert not any(title.overlaps(box) for box in boxes)
        assert figure.bbox.padded(1).x0 <= title.x0
    inside = figure.bbox.padded(1)
    assert all(inside.contains(*corner) for corner in ax.get_legend().get_window_extent().corners())


def test_thinning():
    assert canvas.powers_of_two(0.7, 1434, 6) == [1, 4, 16, 64, 256, 1024]
    assert canvas.powers_of_two(1, 8, 9) == [1, 2, 4, 8]
    assert canvas.round_decimals(0.004, 0.3, 9) == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    assert canvas.round_decimals(0.004, 0.3, 4) == [0.01, 0.03, 0.1, 0.3]
    assert canvas.round_decimals(1e-6, 1, 3) == [1e-6, 1e-3, 1]


@pytest.mark.slow
def test_files_are_whole_and_the_same_on_every_run(tmp_path):
    tables = {"steps_to_result": pd.concat([table("sgd", missed=(256,)), table()]), "scaling": limits()}
    for name in ("steps_to_result", "best_effective_learning_rate"):
        assert save(only(name, tables), tmp_path / "one") == save(only(name, tables), tmp_path / "two")
        for kind in ("svg", "png"):
            one, two = (tmp_path / folder / f"{name}.{kind}" for folder in ("one", "two"))
            assert one.read_bytes() == two.read_bytes()
    assert not [path for path in (tmp_path / "one").iterdir() if path.name.startswith(".")]
    assert charts({"steps_to_result": table().iloc[:0]}) == []


def test_names_are_text_and_not_markup():
    name = "a<b>&$x$_{y}"
    svg = formats.svg(draw(only("steps_to_result", {"steps_to_result": table(name, workload=name)}))[0])
    assert b"a&lt;b&gt;&amp;$x$_{y}" in svg
    assert b"<b>" not in svg


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    drawn("steps_to_result", table())
    assert dict(matplotlib.rcParams) == before


def test_scatters_of_many_points_are_images():
    many = pd.concat([trials()] * 1000).assign(parameter="learning_rate", scale="log")
    [chart] = charts({"axes": many.assign(value=many["learning_rate"])}, ["along_axes"])
    assert b"<image" in formats.svg(draw(chart)[0])


@pytest.mark.slow
def test_panels_lie_side_by_side_in_one_file(tmp_path):
    steps = pd.concat([table(workload=name) for name in "abcd"])
    panels = save(only("steps_to_result", {"steps_to_result": steps}), tmp_path)
    assert len(panels) == 4
    whole = (tmp_path / "steps_to_result.svg").read_text()
    ids = re.findall(r'\bid="([^"]+)"', whole)
    assert len(ids) == len(set(ids))
    assert len(re.findall(r"<svg ", whole)) == 5
    alone = formats.png_side_by_side(draw(only("steps_to_result", {"steps_to_result": table()})))
    with Image.open(tmp_path / "steps_to_result.png") as four, Image.open(io.BytesIO(alone)) as one:
        assert four.size[0] == 2 * one.size[0]


def test_charts_of_names_that_are_alike_have_names_that_differ():
    curves = [("x_folded", "momentum"), ("x", "folded_momentum"), ("数", "sgd"), ("图", "sgd")]
    points = pd.concat([trials().assign(workload=workload, optimizer=optimizer) for workload, optimizer in curves])
    axes = points.assign(parameter="learning_rate", scale="log", value=points["learning_rate"])
    names = [chart.name for chart in charts({"axes": axes}, ["along_axes"])]
    assert len(set(names)) == len(names) >= len(curves)


def test_figures_of_an_earlier_report_go_and_strangers_stay(tmp_path):
    everything = charts({"steps_to_result": table()}, ["steps_to_result", "best_momentum"])
    save_all(everything, tmp_path)
    (tmp_path / "mine.svg").write_text("<svg/>")
    save_all(everything[:1], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.svg", "steps_to_result.png", "steps_to_result.svg"}


def test_the_legend_of_one_curve_with_all_marks_has_two_columns():
    folder = Path("results/published/softmax_mnist_loose/tables")
    tables = {name: pd.read_csv(folder / f"{name}.csv") for name in ("steps_to_result", "scaling", "tunability")}
    (figure,) = draw(only("steps_to_result", tables))
    with matplotlib.rc_context(canvas.STYLE):
        figure.draw_without_rendering()
    key = figure.axes[0].get_legend()
    boxes = [text.get_window_extent() for text in key.get_texts()]
    assert len(boxes) == 10
    assert len({round(box.x0) for box in boxes}) == 2
    assert figure.bbox.x0 <= key.get_window_extent().x0
    assert key.get_window_extent().x1 <= figure.bbox.x1


def test_long_legends_stay_inside_their_figure():
    falling = pd.concat([errors_at(8, [(10, 0.5), (100_000, 0.2)]), errors_at(64, [(10, 0.3), (100_000, 0.1)])])
    for figure in draw(only("error_against_batch_size", {"budgets": by_budget(falling)})):
        with matplotlib.rc_context(canvas.STYLE):
            figure.draw_without_rendering()
        assert figure.axes[0].get_legend().get_window_extent().x1 <= figure.bbox.x1
        assert figure.axes[0].get_legend().get_window_extent().y0 >= figure.bbox.y0


@pytest.mark.slow
def test_figures_drawn_in_several_processes_are_the_same(tmp_path, monkeypatch):
    found = charts({"steps_to_result": table()}, ["steps_to_result", "best_momentum"])
    here = save_all(found, tmp_path / "here")
    monkeypatch.setattr("analysis.figures.MANY_PANELS", 1)
    elsewhere = save_all(found, tmp_path / "elsewhere")
    assert [svgs for _, svgs in here] == [svgs for _, svgs in elsewhere]
    for path in (tmp_path / "here").iterdir():
        assert path.read_bytes() == (tmp_path / "elsewhere" / path.name).read_bytes()


@pytest.mark.parametrize(
    ("errors", "goal", "scale"),
    [
        ((0.92, 0.85, 0.74), 0.75, "linear"),
        ((0.75, 0.75, 0.75), 0.75, "linear"),
        ((2.3, 0.4, 0.04), 0.05, "log"),
        ((-1.0, -2.0, -3.0), -2.5, "linear"),
    ],
)
def test_learning_curves_fill_their_axes(errors, goal, scale):
    about = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": METRIC, "goal_threshold": goal}
    reached = pd.DataFrame({"step": [1, 2, 4], "error": errors, "trial": 0, "state": "reached", "best": True})
    rows = [reached, reached.assign(error=[1.0, 50.0, 9e9], trial=1, state="infeasible", best=False)]
    [ax] = panels_of("learning_curves", {"learning_curves": pd.concat(rows).assign(**about, trials=2)})
    assert ax.get_yscale() == scale
    low, high = ax.get_ylim()
    assert low < min(*errors, goal) <= max(*errors, goal) < high
    if goal == 0.75:
        assert high < 2


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    "note",
    [
        "goal: validation cross entropy < 0.2",
        "momentum; gradient descent; goal: validation cross entropy < 0.2",
        "from batch size 16, tolerance 2.0%, windows of 16,384 examples",
    ],
)
def test_the_note_of_a_panel_ends_within_the_figure(note, small):
    figure = canvas.draw(lambda ax: canvas.heading(ax, "digits", note), small)
    [ax] = figure.axes
    with matplotlib.rc_context(canvas.STYLE):
        assert ax.texts[0].get_window_extent().x1 <= figure.bbox.x1
    assert ax.texts[0].get_fontsize() == 9.5 or len(note) > 40
