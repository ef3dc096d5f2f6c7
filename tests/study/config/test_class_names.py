"""Optimizers that torch.optim has and conf/ has not: a refusal tells how to use them, whatever the spelling."""

import re

import pytest
import torch

from study.config.composed.choices import choices
from study.config.jobs import parse_jobs
from study.errors import UsageError

OURS = {choice.name for choice in choices("optimizer")}
CLASSES = [
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
]


def spellings(name):
    parts = re.sub(r"(?<=.)(?=[A-Z][a-z])", "_", name)
    return sorted({name, name.lower(), name.upper(), parts.lower(), parts, parts.lower().replace("_", "-")} - OURS)


def test_other_classes_are_there():
    assert {"RAdam", "Adamax", "NAdam", "ASGD"} <= set(CLASSES)
    assert {"r_adam", "radam", "R_Adam", "RADAM", "r-adam"} < set(spellings("RAdam"))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_named_by_any_spelling(name):
    for spelled in spellings(name):
        with pytest.raises(UsageError) as refused:
            parse_jobs([f"optimizer={spelled}"])
        ours = name.lower() in OURS
        cure = f"did you mean '{name.lower()}'?" if ours else f"optimizer=torch optimizer.target=torch.optim.{name} ("
        assert cure in str(refused.value), spelled


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("radam", "such as torch.optim.RAdam, but got 'radam'"),
        ("adamax", "such as torch.optim.Adamax, but got 'adamax'"),
        ("nonsense", "such as torch.optim.RAdam, but got 'nonsense'"),
        ("torch.optim.adamax", "did you mean torch.optim.Adamax?"),
        ("optim.AdaMax", "did you mean torch.optim.Adamax?"),
        ("torch.optim.nonsense", "module 'torch.optim' has no attribute 'nonsense'"),
        ("mine.Adamax", "No module named 'mine'"),
    ],
)
def test_a_path_that_names_no_class_gets_the_one_that_is_meant(target, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_jobs(["batch_size=64", "optimizer=torch", f"optimizer.target={target}"])
