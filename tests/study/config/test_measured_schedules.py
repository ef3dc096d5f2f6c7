"""A schedule from measured critical batch sizes: what is read, what follows from it, and what is refused."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.errors import Refused
from analysis.question.batch_schedules import BatchSchedule
from analysis.question.measured import TABLE, read, steps
from study.config.jobs import parse_jobs
from study.errors import UsageError

SIZES = st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 10**5) | st.just(math.nan)), max_size=12)


@given(measured=SIZES)
def test_powers_of_two_below_what_was_measured_and_never_smaller(measured):
    found = steps(measured)
    for seen, size in found:
        assert size.bit_count() == 1
        known = [each for place, each in measured if max(1, place) <= seen and not math.isnan(each)]
        assert size <= max(known) < 2 * size
    if found:
        BatchSchedule("listed", switches=tuple(p for p, _ in found), sizes=tuple(s for _, s in found))


def branched(folder, **columns):
    (folder / "tables").mkdir()
    base = {"workload": "mlp_digits", "optimizer": "momentum", "examples_seen": [0, 2000, 8000]}
    table = pd.DataFrame(base | {"critical_batch_size": [20.0, 70.0, 300.0], "low": 1, "high": 999} | columns)
    table.to_csv(folder / TABLE, index=False)
    return folder


def test_a_sweep_records_the_numbers_and_where_they_are_from(tmp_path):
    branched(tmp_path)
    [job] = parse_jobs([f"batch_schedule.from={tmp_path}", "batch_size=16", "batch_schedule.coupling=square_root"])
    held = job.study.question()["batch_schedule"]
    assert (held["kind"], held["switches"], held["sizes"]) == ("listed", [1, 2000, 8000], [16, 64, 256])
    assert (held["source"], held["coupling"]) == (str(tmp_path), "square_root")
    assert held["checksum"] == read(tmp_path, "mlp_digits", "momentum").checksum
    assert len(held["checksum"]) == 64
    assert job.study.phases.sizes == (16, 64, 256)
    assert job.study.series == "momentum+listed-square_root"


def test_a_sweep_follows_the_trunk_at_its_own_batch_size(tmp_path):
    branched(tmp_path, batch_size=[16, 16, 64], critical_batch_size=[20.0, 40.0, 300.0])
    jobs = parse_jobs([f"batch_schedule.from={tmp_path}", "batch_size=16,64"])
    sizes = [job.study.batch_schedule.sizes for job in jobs]
    assert sizes == [(16, 32), (256,)]
    with pytest.raises((Refused, UsageError), match="at batch sizes 16 and 64; begin with one of them, but got 32"):
        parse_jobs([f"batch_schedule.from={tmp_path}", "batch_size=32"])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (None, "has no table tables/branched.csv"),
        ({"optimizer": "adam"}, "has no critical batch sizes of mlp_digits with momentum, but of mlp_digits with adam"),
        ({"critical_batch_size": math.nan}, "are below 1 or unknown"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, columns, said):
    if columns is not None:
        branched(tmp_path, **columns)
    with pytest.raises((Refused, UsageError), match=said):
        parse_jobs([f"batch_schedule.from={tmp_path}", "batch_size=16"])


def test_a_table_of_another_kind_is_refused(tmp_path):
    branched(tmp_path)
    pd.DataFrame({"workload": ["mlp_digits"]}).to_csv(tmp_path / TABLE, index=False)
    with pytest.raises(Refused, match="lacks the columns optimizer, examples_seen and critical_batch_size"):
        read(tmp_path, "mlp_digits", "momentum")
