"""Laws across sizes: which workloads belong together, what is left out, and how it is said and drawn."""

import numpy as np
import pandas as pd
import pytest
from helpers.fused import partly
from helpers.made_tables import METRIC, panels_of

from analysis.load import LoadError, load
from analysis.report.build import read
from analysis.sizes import table
from study.settings import Evaluation

MCCANDLISH = "critical_batch_size_mccandlish"
BATCH_SIZES = (4, 16, 64, 256, 1024)


@pytest.fixture
def swept(tmp_path, make_study, make_curve, write_study):
    """Write a sweep for each mapping of workload arguments; S(B) is a hyperbola with this critical batch size (None:
    no trial reaches the goal)."""

    def write(critical, *workloads, **fields):
        for value, about in zip(critical, workloads, strict=True):
            for size in BATCH_SIZES:
                workload = {"_target_": "somewhere.Tiny", "train_examples": 4096} | about
                usual = {"steps": 20000, "trials": 4, "evaluation": Evaluation(first=0.0005)}
                study = make_study(batch_size=size, workload=workload, **usual | fields)
                steps = None if value is None else round(50 * (1 + value / size))
                write_study(tmp_path, study, [make_curve(study, index, reaches=steps) for index in range(4)])
        return tmp_path

    return write


def widths(*values, **more):
    return [{"name": f"net_width-{value}", "width": value, **more} for value in values]


@pytest.mark.slow
def test_workloads_that_differ_in_one_number_are_one_axis(swept):
    folder = swept([20, 28.3, 40], *widths(64, 128, 256))
    tables = read([folder]).tables
    found = tables["sizes"]
    assert list(found.columns) == table.SIZES
    mine = found[found["definition"] == MCCANDLISH]
    assert set(zip(mine["of"], mine["axis"], strict=True)) == {("net", "width")}
    assert mine["size"].tolist() == [64, 128, 256]
    assert mine["critical_batch_size"].tolist() == pytest.approx([20, 28.3, 40], rel=0.05)
    [law] = tables["size_laws"].query("definition == @MCCANDLISH").to_dict("records")
    assert law["exponent"] == pytest.approx(0.5, abs=0.05)
    assert (law["points"], law["left_out"], law["smallest"], law["largest"]) == (3, 0, 64, 256)


@pytest.mark.slow
@pytest.mark.parametrize(
    "workloads",
    partly(
        [
            [*widths(64, 128), {"name": "deep", "width": 256, "depth": 3}],
            [{"name": "a", "width": 64, "dropout": 0.1}, {"name": "b", "width": 128, "dropout": 0.2}, *widths(256)],
        ],
        2,
    ),
)
def test_workloads_that_differ_in_more_are_no_axis(swept, workloads):
    found = read([swept([20, 28.3, 40], *workloads)]).tables
    assert found.get("sizes", pd.DataFrame({"size": []}))["size"].nunique() < 3
    assert "size_laws" not in found or found["size_laws"].empty


@pytest.mark.slow
def test_lists_of_equal_numbers_and_training_examples_are_sizes(swept):
    lists = [{"name": f"mlp_{value}", "widths": [value, value]} for value in (32, 64, 128)]
    data = [{"name": f"data_{value}", "train_examples": value} for value in (2048, 8192)]
    found = read([swept([20, 28.3, 40, 20, 40], *lists, *data)]).tables["sizes"]
    assert found[found["axis"] == "widths"]["size"].unique().tolist() == [32, 64, 128]
    assert found[found["axis"] == "train_examples"]["size"].unique().tolist() == [2048, 8192]
    assert set(found["of"]) == {"mlp", "data"}


@pytest.mark.slow
@pytest.mark.parametrize(("last", "bound"), [(9000, ">"), (None, "=")], ids=["beyond 1,024", "goal missed"])
def test_sizes_without_a_value_are_left_out_and_counted(swept, last, bound):
    tables = read([swept([20, 28.3, 40, last], *widths(64, 128, 256, 512))]).tables
    mine = tables["sizes"].query("definition == @MCCANDLISH")
    assert mine["size"].tolist() == [64, 128, 256, 512]
    assert mine["bound"].tolist() == ["=", "=", "=", bound]
    laws = tables["size_laws"].query("definition == @MCCANDLISH")
    assert laws["left_out"].tolist() == [1]
    assert laws["exponent"].tolist() == pytest.approx([0.5], abs=0.05)
    assert "; left out: 1 more, with a bound only or no value" in table.sentences(laws, table.predictions(laws, []))[0]


def made(critical=(20, 28.3, 40), sizes=(64, 128, 256), **columns):
    about = {"of": "mlp", "optimizer": "sgd", "goal_metric": METRIC, "goal_threshold": 0.2, "axis": "width"}
    usual = {"definition": MCCANDLISH, "workload": "w", "bound": "=", "low": np.nan, "high": np.nan}
    return pd.DataFrame({"size": sizes, "critical_batch_size": critical} | about | usual | columns)[table.SIZES]


def test_predictions_have_the_interval_of_the_law():
    laws = table.laws(made(low=[15, 22, 30], high=[27, 36, 53]))
    [row] = table.predictions(laws, [1024]).to_dict("records")
    assert row["critical_batch_size"] == pytest.approx(80, rel=0.02)
    assert 40 < row["low"] < 80 < row["high"] < 160
    said = table.sentences(laws, table.predictions(laws, [1024]))
    assert said[0].startswith(
        "mlp with sgd: the critical batch size by McCandlish et al. goes as width to the power 0.5"
    )
    assert said[1].startswith("At width 1,024 it predicts 80")


@pytest.mark.parametrize(
    ("at", "end"),
    [
        (64, ")."),
        (200, ")."),
        (256, ")."),
        (1024, "), if the law holds up to 4 times the largest size that was fitted."),
        (16, "), if the law holds down to 0.250 times the smallest size that was fitted."),
    ],
)
def test_predictions_beyond_the_fitted_sizes_say_how_far_they_go(at, end):
    laws = table.laws(made(low=[15, 22, 30], high=[27, 36, 53]))
    assert table.sentences(laws, table.predictions(laws, [at]))[1].rpartition(")")[2] == end[1:]


def test_no_dependence_is_said():
    laws = table.laws(made(critical=(20, 30, 21)))
    assert "no dependence is shown" in table.sentences(laws, table.predictions(laws, []))[0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (made()[:0], "no law: there are no two workloads"),
        (
            made(bound=["=", "=", ">"]),
            "no law of mlp with sgd in width: 2 of 3 sizes have a critical batch size by McCandlish et al. that",
        ),
        (made(sizes=(64, 96, 128)), "span less than a factor of 4"),
        (made(sizes=(64, 128, 512)), None),
    ],
)
def test_warnings(rows, said):
    found = table.warnings(rows, table.laws(rows))
    assert [said in each for each in found] == ([] if said is None else [True])


def test_pairs_of_a_file(tmp_path, says):
    path = tmp_path / "published.csv"
    sizes = np.array([85e6, 302e6, 1.2e9])
    pd.DataFrame({"parameters": sizes, "critical_batch_size": 0.0932 * sizes**0.47}).to_csv(path, index=False)
    [law] = table.laws(table.pairs(path)).to_dict("records")
    assert (law["axis"], law["of"]) == ("parameters", "published")
    assert (law["exponent"], law["coefficient"]) == pytest.approx((0.47, 0.0932), rel=1e-4)
    said = says("sizes", path, "--at", 7e9)
    assert "goes as parameters to the power 0.47" in said
    assert "At parameters 7,000,000,000 it predicts" in said
    assert "there is no law in params; did you mean 'parameters'?" in says("sizes", path, "--at", "params=9", status=2)
    path.write_text("parameters,batch\n1,2\n")
    with pytest.raises(LoadError, match=r"give .* a CSV with a column critical_batch_size"):
        table.pairs(path)
    assert "--at must read N or AXIS=N" in says("sizes", path, "--at", -1, status=2)


@pytest.mark.slow
def test_the_verb_reads_folders(swept, says):
    said = says("sizes", swept([20, 28.3, 40], *widths(64, 128, 256)), "--at", "width=512")
    assert "net with momentum: the critical batch size by McCandlish et al. goes as width to the power" in said
    assert "At width 512 it predicts" in said


def test_the_figure_shows_values_bounds_law_and_interval():
    rows = made((20, 28.3, 40, 50), (64, 128, 256, 512), bound=["=", "=", "=", ">"], low=[15, 22, 30, np.nan],
                high=[27, 36, 53, np.nan])  # fmt: skip
    tables = {"sizes": rows, "size_laws": table.laws(rows)}
    [ax] = panels_of("critical_by_size", tables)
    assert ax.get_xlabel() == "width"
    assert ax.lines[0].get_xydata().tolist() == rows[["size", "critical_batch_size"]].values.tolist()
    law = next(line for line in ax.lines if line.get_linestyle() == "--")
    assert np.interp(128, *law.get_data()) == pytest.approx(28.3, rel=0.02)
    assert len(ax.collections) == 1
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["sgd", "95 % interval", "lower bound", "power law, with its 95 % interval"]
    [ax] = panels_of("critical_by_size", {"sizes": rows, "size_laws": tables["size_laws"][:0]})
    assert "power law, with its 95 % interval" not in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("name", ["critical_by_size", "critical_by_goal"])
@pytest.mark.parametrize(
    ("bounds", "said"),
    [("===", []), ("==>", ["lower bound"]), ("<==", ["upper bound"]), ("<=>", ["lower bound", "upper bound"])],
)
def test_the_legend_explains_the_carets_that_are_drawn(name, bounds, said):
    rows = made(bound=[*bounds]).assign(recorded=False, goal_threshold=[0.1, 0.2, 0.3])
    rows = rows.assign(goal_threshold=0.2) if name == "critical_by_size" else rows
    [ax] = panels_of(name, {"sizes": rows, "critical_by_goal": rows})
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sorted(each for each in legend if "bound" in each) == said


@pytest.mark.slow
def test_imported_runs_with_a_size_go_through_the_same_fit(tmp_path, says):
    lines = ["run,batch_size,params,step,val/loss"]
    for params, critical in ((10_000, 20), (40_000, 40), (160_000, 80)):
        for size in BATCH_SIZES:
            steps = round(50 * (1 + critical / size))
            lines += [f"{params}-{size},{size},{params},{step},{loss}" for step, loss in ((1, 0.9), (steps, 0.4))]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    asked = ["--goal", "val/loss<0.5", "--set", "workload=gpt"]
    says("import", tmp_path / "runs.csv", tmp_path / "results", *asked, "--size", "params")
    assert {study.workload for study in load(tmp_path / "results")} == {
        *("gpt_params-10000", "gpt_params-40000", "gpt_params-160000")
    }
    said = says("sizes", tmp_path / "results", "--at", 640_000)
    assert "gpt with unknown: the critical batch size by McCandlish et al. goes as params to the power 0.5" in said
    for name, why in (("parms", "the runs have no such setting; there are"), ("workload", "a size is a number")):
        assert why in says("import", tmp_path / "runs.csv", tmp_path / "b", *asked, "--size", name, status=2)


HEAD = "parameters,critical_batch_size,low,high,bound\n1e6,100,80,120,=\n1e7,200,160,240,=\n"


@pytest.mark.parametrize("unknown", ["", "inf", "nan"])
def test_sizes_without_a_value_neither_count_nor_stretch_a_law(tmp_path, says, unknown):
    path = tmp_path / "published.csv"
    path.write_text(f"{HEAD}1e8,{unknown},,,\n1e9,{unknown},,,\n")
    said = says("sizes", path, "--at", "1e9")
    assert "2 of 4 sizes have a critical batch size that is more than a bound, and 3 are needed" in said
    assert "predicts" not in said
    path.write_text(f"{HEAD}1e8,400,300,500,\n1e9,{unknown},,,\n")
    [law] = table.laws(table.pairs(path)).to_dict("records")
    assert (law["points"], law["left_out"], law["largest"]) == (3, 1, 1e8)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("1e8,-400,,,=", "critical_batch_size must be above 0, or empty if it is unknown"),
        ("0,400,,,=", "the size must be a number above 0"),
        ("1e8,400,500,300,=", "low <= critical_batch_size <= high must hold"),
        ("1e8,400,500,600,=", "low <= critical_batch_size <= high must hold"),
        ("1e8,400,,,>=", "bound must be =, < or >"),
        ("1e8,>400,,,=", "critical_batch_size must be numbers"),
    ],
)
def test_lines_that_no_law_can_be_fitted_to_are_named(tmp_path, line, rule):
    path = tmp_path / "published.csv"
    path.write_text(f"{HEAD}{line}\n1e9,800,,,=\n")
    with pytest.raises(LoadError, match=rule) as raised:
        table.pairs(path)
    assert "line 4" in str(raised.value) or ">" in line.split(",")[1]
