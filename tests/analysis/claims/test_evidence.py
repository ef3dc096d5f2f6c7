"""The tables of several folders as one: copies, workloads of other data under one name, and folders of one name."""

import numpy as np
import pandas as pd
import pytest
from helpers.claims.made_evidence import KEY, SIZES, about, evidence, limits, seeds, steps

from analysis.claims import registry
from analysis.claims.evidence import Evidence, together


def curve(optimizer="sgd", critical=16, sizes=SIZES, **made):
    made_of = about(optimizer=optimizer, **made)
    ends = (critical, critical / 1.1, critical * 1.1)
    named = {"optimizer": optimizer, "critical": critical, "sizes": sizes}
    tables = {"steps_to_result": steps(**named), "scaling": limits(optimizer=optimizer, critical=ends)}
    return evidence([made_of], **tables, rerun_steps=seeds(optimizer=optimizer, sizes=sizes))


def test_a_copy_is_no_further_evidence():
    once, _ = together([("sgd", curve()), ("momentum", curve("momentum", critical=64))])
    alone, thrice = (together([(name, once) for name in names])[0] for names in (["a"], ["a", "a", "b"]))
    judged, again = (registry.statements(registry.judge(each)) for each in (alone, thrice))
    assert len(judged) > 0
    pd.testing.assert_frame_equal(judged, again)


def searched(sizes, trials=8, reached=200):
    """A curve with its trials at these batch sizes."""
    made = curve(sizes=sizes)
    rows = [
        {"workload": "digits", "optimizer": "sgd", "batch_size": size, **KEY, "trial": trial, "steps_to_goal": steps}
        for size in sizes
        for trial, steps in enumerate(range(reached, reached + trials))
    ]
    return Evidence({**made.tables, "trials": pd.DataFrame(rows)}, made.about)


# Folders of one study as lists of batch sizes (and trials at each), and the index of the one that counts.
EXTENDED = {
    "more batch sizes": ([((8, 16, 32),), ((8, 16, 32, 64),)], 1),
    "the longer one first": ([((8, 16, 32, 64),), ((8, 16, 32),)], 0),
    "more trials": ([((8, 16), 8), ((8, 16), 12)], 1),
    "two copies, each extended": ([((8, 16, 32),), ((8, 16, 32, 64),), ((2, 4, 8, 16, 32),)], 2),
}


@pytest.mark.parametrize(("folders", "counts"), EXTENDED.values(), ids=EXTENDED)
def test_a_folder_and_its_extended_copy_count_once(folders, counts):
    parts = [searched(*folder) for folder in folders]
    both, names = together([(str(index), part) for index, part in enumerate(parts)])
    assert [bool(each) for each in names] == [index == counts for index in range(len(parts))]
    assert both.table("trials").equals(parts[counts].table("trials"))


def test_another_sweep_of_the_same_batch_sizes_is_further_evidence():
    both, _ = together([("one", searched((8, 16))), ("other", searched((8, 16), reached=150))])
    assert both.about["workload"].tolist() == ["digits", "digits (other)"]


def test_what_was_added_to_a_copy_counts():
    both, names = together([("first", curve()), ("more", together([("a", curve()), ("b", curve("adam"))])[0])])
    assert both.about[["workload", "optimizer"]].to_numpy().tolist() == [["digits", "sgd"], ["digits", "adam"]]
    assert names == [{"digits": "digits"}] * 2
    assert len(both.table("scaling")) == 6


def test_other_data_under_the_same_name_are_another_workload():
    both, names = together([("all", curve()), ("few", curve("momentum", critical=64, part="300"))])
    assert names[1] == {"digits": "digits (few)"}
    assert [len(group) for group in both.groups("workload", "goal")] == [1, 1]
    assert {each.letter: each.verdict for each in registry.judge(both)}["c"] == "not tested"


def test_folders_of_one_name_are_told_apart():
    parts = [("mlp", curve(critical=critical)) for critical in (8, 16, 32)]
    both, _ = together(parts)
    assert both.about["workload"].tolist() == ["digits", "digits (mlp)", "digits (mlp, 2)"]
    assert [float(each.limits["estimate"].iloc[0]) for each in both.curves] == [8, 16, 32]


def test_tables_read_from_files_equal_those_made_now():
    made = curve()
    read = dict(made.tables)
    read["steps_to_result"] = read["steps_to_result"].astype({"batch_size": float}).assign(momentum=np.nan)
    both, _ = together([("made", made), ("read", Evidence(read, made.about))])
    assert len(both.about) == 1
