"""Two optimizers or workloads of a log never become one study, and names that change are named."""

import doctest

import pytest

from analysis.load import load
from study.exchange.importing import ImportRefused
from study.exchange.logs import folders
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked


def imported(tmp_path, columns, runs, size=None):
    """(the curves that come out of a CSV with one run for each of `runs`, the warnings)."""
    lines = [f"{n},8,{named},10,0.4" for n, named in enumerate(runs)]
    (tmp_path / "log.csv").write_text("\n".join([f"run,batch_size,{columns},step,val/loss", *lines]) + "\n")
    said = import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(size=size), ["val/loss<0.5"])
    return {(study.workload, study.optimizer) for study in load(tmp_path / "results")}, "\n".join(said.warnings)


# Columns and their values in two runs -> what the refusal says.
SHARED = {
    "cleaned": ("optim", ["adam (a)", "adam_a"], "'adam (a)' and 'adam_a' would both be in the folder adam_a"),
    "at the ends": ("optim", ["adam", "adam+"], "'adam' and 'adam+' would both be in the folder adam"),
    "nothing left": ("optim", ["???", "!!"], "'???' and '!!' would both be in the folder unnamed"),
    "case": ("optim", ["AdamW", "adamw"], "'AdamW' and 'adamw' are one to file systems that ignore case"),
    "cleaned and case": ("optim", ["Adam (a)", "adam_a"], "'Adam (a)' and 'adam_a' are one to file systems"),
    "workload": ("task", ["a b", "a/b"], "the workloads 'a b' and 'a/b' would both be in the folder a_b"),
    "model and data": ("model,data", ["a_b,c", "a,b_c"], "'a_b' with 'c' and 'a' with 'b_c' would both be in"),
    "model or workload": ("task,model,data", ["a_b,,", ",a,b"], "workloads 'a_b' and 'a' with 'b' would both be"),
}


@pytest.mark.parametrize("kind", SHARED)
def test_names_that_share_a_folder_are_refused(kind, tmp_path):
    columns, runs, said = SHARED[kind]
    with pytest.raises(ImportRefused) as caught:
        imported(tmp_path, columns, runs)
    assert said in str(caught.value)
    what = "optimizer" if columns == "optim" else "workload"
    cures = columns.replace(",", ", ")
    assert f"Rename one of them in {cures}; if all runs have one {what}, --set {what}=NAME." in str(caught.value)
    assert not (tmp_path / "results").exists()


# Columns and their values in two runs -> (workloads and optimizers, what the warnings say; None: nothing on names).
KEPT = {
    "as they are": ("optim", ["adam", "torch.optim.RAdam"], {("log", "adam"), ("log", "torch.optim.RAdam")}, None),
    "one name twice": ("optim", ["adam", "adam"], {("log", "adam")}, None),
    "joined": ("model,data", ["vit,c10", "vit,c100"], {("vit_c10", "unknown"), ("vit_c100", "unknown")}, None),
    "changed": (
        "optim",
        ["../../evil", "=cmd()<b>x</b>"],
        {("log", "evil"), ("log", "cmd_b_x_b")},
        "characters: the optimizer '../../evil' is called evil, the optimizer '=cmd()<b>x</b>' is called cmd_b_x_b",
    ),
    "quoted": (
        "optim",
        ['"Adam, fused"', "SGD/nesterov"],
        {("log", "Adam,_fused"), ("log", "SGD_nesterov")},
        "the optimizer 'Adam, fused' is called Adam,_fused, the optimizer 'SGD/nesterov' is called SGD_nesterov",
    ),
    "workload": ("task", ["a b", "c"], {("a_b", "unknown"), ("c", "unknown")}, "the workload 'a b' is called a_b"),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_name_stays_or_its_change_is_said(kind, tmp_path):
    columns, runs, curves, said = KEPT[kind]
    found, warnings = imported(tmp_path, columns, runs)
    assert found == curves
    assert said in warnings if said else "is called" not in warnings


def test_sizes_that_share_a_folder_are_refused(tmp_path):
    with pytest.raises(ImportRefused, match=r"'m' of width 1\.0+1 and 'm' of width 1\.0+2 would both be in"):
        imported(tmp_path, "task,width", ["m,1.00000000000001", "m,1.00000000000002"], "width")


def test_the_examples_in_docstrings_hold():
    assert doctest.testmod(folders)[0:2] == (0, 2)
