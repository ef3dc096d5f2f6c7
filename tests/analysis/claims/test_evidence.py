"""The tables of several folders as one: copies, workloads of other data under one name, and folders of one name."""

import numpy as np
import pandas as pd
from helpers.claims.made_evidence import about, evidence, limits, seeds, steps

from analysis.claims import registry
from analysis.claims.evidence import Evidence, together


def curve(optimizer="sgd", critical=16, **made):
    made_of = about(optimizer=optimizer, **made)
    ends = (critical, critical / 1.1, critical * 1.1)
    named = {"optimizer": optimizer, "critical": critical}
    tables = {"steps_to_result": steps(**named), "scaling": limits(optimizer=optimizer, critical=ends)}
    return evidence([made_of], **tables, rerun_steps=seeds(optimizer=optimizer))


def test_a_copy_is_no_further_evidence():
    once, _ = together([("sgd", curve()), ("momentum", curve("momentum", critical=64))])
    alone, thrice = (together([(name, once) for name in names])[0] for names in (["a"], ["a", "a", "b"]))
    judged, again = (registry.statements(registry.judge(each)) for each in (alone, thrice))
    assert len(judged) > 0
    pd.testing.assert_frame_equal(judged, again)


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
