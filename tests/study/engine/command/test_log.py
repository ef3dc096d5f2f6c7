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
