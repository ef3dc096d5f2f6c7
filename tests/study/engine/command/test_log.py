"""The file of metrics, read while a script appends to it."""

import pytest

from study.engine.command.log import MetricLog
from study.errors import Failed


@pytest.mark.parametrize(
    ("chunks", "number"),
    [
        (["step,loss\n"], 1),
        (["", "", "step,loss\n"], 1),
        (["step,", "loss\n"], 1),
        (["step,val/loss\n", "", "1,0.5\n", "", "", "2\n"], 3),
        (["step,val/loss\n\n", "", "1\n"], 3),
        (['{"step": 1}\n', "", "no JSON\n"], 2),
    ],
)
def test_lines_are_counted_however_often_the_file_is_read(tmp_path, chunks, number):
    path = tmp_path / "metrics"
    path.touch()
    log = MetricLog(path, "val/loss")
    for chunk in chunks[:-1]:
        with path.open("a") as file:
            file.write(chunk)
        log.read()
    with path.open("a") as file:
        file.write(chunks[-1])
    with pytest.raises(Failed, match=rf"^line {number} of "):
        log.read()


NO_NUMBERS = [
    "step,val/loss\n5,0.9\n10,tensor(0.35)\n",
    "step,val/loss\n5,0.9\n10,12.3%\n",
    'step,val/loss\n5,0.9\n10,"0,35"\n',
    "step,val/loss\n5,0.9\n10,-nan(ind)\n",
    '{"step": 5}\n{"step": 5}\n{"step": 10, "val/loss": [0.35]}\n',
]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_goal_metric_that_is_no_number_is_refused(tmp_path, text):
    """Not taken for a cell that was not measured: a trial that diverged would count as feasible."""
    (tmp_path / "metrics").write_text(text)
    with pytest.raises(Failed, match=r"^line 3 of .*metrics must have a number as val/loss, .*\.item\(\)\), but got "):
        MetricLog(tmp_path / "metrics", "val/loss").read()


@pytest.mark.parametrize("empty", ["", " ", "None", "null", "NA", "-"])
def test_an_empty_cell_was_not_measured(tmp_path, empty):
    (tmp_path / "metrics").write_text(f"step,val/loss,val/note\n5,0.9,best\n10,{empty},best\n")
    log = MetricLog(tmp_path / "metrics", "val/loss")
    log.read()
    assert log.rows == {5: {"val/loss": 0.9}, 10: {}}


ODD_LINES = {
    "true is no metric": ('{"step": 5, "val/loss": false}\n', "line 1 of .* must have a number as val/loss"),
    "true is no step": ('{"step": true, "val/loss": 0.5}\n', "line 1 of .* must have a step"),
    "two columns of a name": ("step,val/loss,val/loss\n5,0.5,9\n", "line 1 of .* must name each metric once"),
    "carriage returns": ("step,val/loss\r5,0.5\r", "line 1 of .* must be CSV, each line with a line feed behind it"),
    "an object in several lines": ('{\n "step": 5\n}\n', "line 1 of .* must be one whole JSON object"),
    "nested names": ('{"step": 5, "val": {"loss": 0.5}}\n', 'line 1 of .* flat names, as in .*"val/loss": 0.25'),
    "digits in groups": ("step,val/loss\n5,1_0\n", "line 2 of .* must have a number as val/loss"),
    "semicolons": ("step;val/loss\n5;0.5\n", "line 1 of .* step and val/loss among names with commas between them"),
    "capitals": ("Step,Val/Loss\n5,0.5\n", "line 1 of .* the header of a CSV file, step and val/loss among names"),
    "more digits than a float has": (f'{{"step": 5, "val/loss": {"9" * 400}}}\n', "must have a number as val/loss"),
    "a step beyond all numbers": (f'{{"step": {"9" * 400}, "val/loss": 0.5}}\n', "line 1 of .* must have a step"),
    "lists without end": (f'{{"step": {"[" * 100000}\n', "line 1 of .* must be one whole JSON object"),
    "text between objects": ('{"step": 5, "val/loss": 1}\nepoch 2\n', "line 2 of .* must be one whole JSON object"),
}


@pytest.mark.parametrize("kind", ODD_LINES)
def test_lines_that_could_mean_something_else_are_refused(tmp_path, kind):
    text, message = ODD_LINES[kind]
    (tmp_path / "metrics").write_text(text)
    with pytest.raises(Failed, match=message):
        MetricLog(tmp_path / "metrics", "val/loss").read(ended=True)


def test_a_carriage_return_before_a_line_is_no_part_of_it(tmp_path):
    """As progress bars write it."""
    (tmp_path / "metrics").write_text("step,val/loss,,\n\r5,0.5,,\n")
    log = MetricLog(tmp_path / "metrics", "val/loss")
    log.read()
    assert log.rows == {5: {"val/loss": 0.5}}


HEADER = "step,val/loss\n"
OVERWRITTEN = {
    "the latest line alone, as long": [f"{HEADER}5,0.9\n", f"{HEADER}6,0.8\n"],
    "the latest line alone, longer": [f"{HEADER}5,0.9\n", f"{HEADER}10,0.8\n"],
    "from a checkpoint on, shorter": [f"{HEADER}5,0.9\n10,0.8\n15,0.7\n", f"{HEADER}15,0.7\n"],
    "JSON": ['{"step": 5, "val/loss": 0.9}\n', '{"step": 10, "val/loss": 0.9}\n'],
    "behind a long beginning": [HEADER + "5,0.9\n" * 2000, HEADER + "5,0.9\n" * 1999 + "6,0.9\n7,0.9\n"],
}


@pytest.mark.parametrize("kind", OVERWRITTEN)
def test_a_file_that_loses_lines_is_refused(tmp_path, kind):
    log = MetricLog(tmp_path / "metrics", "val/loss")
    before, after = OVERWRITTEN[kind]
    (tmp_path / "metrics").write_text(before)
    log.read()
    (tmp_path / "metrics").write_text(after)
    with pytest.raises(Failed, match=r"metrics must only grow, .* were overwritten; let the script append to it"):
        log.read()


def test_a_script_may_write_all_lines_again(tmp_path):
    """As `DataFrame.to_csv` of the history at each evaluation does. In between, the file is empty or short."""
    log = MetricLog(tmp_path / "metrics", "val/loss")
    for text in (f"{HEADER}5,0.9\n10,0.8\n", "", HEADER, f"{HEADER}5,0.9\n10,0.8\n15,0."):
        (tmp_path / "metrics").write_text(text)
        log.read()
    (tmp_path / "metrics").write_text(f"{HEADER}5,0.9\n10,0.8\n15,0.7\n")
    log.read()
    assert log.rows == {5: {"val/loss": 0.9}, 10: {"val/loss": 0.8}, 15: {"val/loss": 0.7}}


FALLS = {
    "the steps of each epoch": "5,0.9\n10,0.8\n5,0.2\n",
    "several processes": "5,0.9\n10,0.9\n5,0.8\n10,0.8\n",
    "another value at a step": "5,0.9\n5,0.2\n",
    "NaN and a value at a step": "5,nan\n5,0.2\n",
}
AS_JSON = '{{"step": {}, "val/loss": {}}}\n'


@pytest.mark.parametrize("as_json", [False, True], ids=["CSV", "JSON"])
@pytest.mark.parametrize("lines", FALLS.values(), ids=FALLS)
def test_steps_that_count_something_else_are_refused(tmp_path, lines, as_json):
    """They met the goal: at step 5 of the second epoch, or by the examples of one process."""
    cells = [line.split(",") for line in lines.split()]
    rows = [AS_JSON.format(step, loss.replace("nan", "NaN")) for step, loss in cells]
    (tmp_path / "metrics").write_text("".join(rows) if as_json else HEADER + lines)
    with pytest.raises(Failed, match=r"must have a step of at least 10, the one before: count|must not have another"):
        MetricLog(tmp_path / "metrics", "val/loss", 0.3).read()


RESTARTS = {
    "of the sweep": ["5,0.9\n10,nan\n15,0.1\n", "10,0.8\n15,0.7\n"],
    "of the sweep, twice": ["5,0.9\n10,nan\n15,0.1\n10,0.2\n15,0.1\n", "10,0.8\n15,0.7\n"],
    "of the script by itself": ["5,0.9\n", f"10,nan\n15,0.1\n{HEADER}10,0.8\n15,0.7\n"],
    "at the same step": ["5,0.9\n10,nan\n", "10,0.8\n15,0.7\n"],
    "none, but a last digit": ["5,0.9\n", "10,0.8\n10,0.80000001\n15,0.7\n"],
}


@pytest.mark.parametrize("kind", RESTARTS)
def test_a_script_that_was_started_again_may_go_back(tmp_path, kind):
    log = MetricLog(tmp_path / "metrics", "val/loss", 0.3)
    before, after = RESTARTS[kind]
    (tmp_path / "metrics").write_text(HEADER + before)
    log.read(earlier=True)
    (tmp_path / "metrics").write_text(HEADER + before + after)
    log.read()
    assert {step: round(row["val/loss"], 3) for step, row in log.rows.items()} == {5: 0.9, 10: 0.8, 15: 0.7}
    assert (log.first_bad_step, log.first_met) == (None, None)
    (tmp_path / "metrics").write_text(HEADER + before + after + "20,0.2\n25,nan\n")
    log.read()
    assert (log.first_bad_step, log.first_met) == (25, 20)
