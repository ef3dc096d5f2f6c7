"""What a workload keeps of the first examples that its functions see is refused: trials would depend on others."""

from functools import partial

import pytest
import torch
from helpers.users.checked import Made, Model

from study.checks.state import check_first_batch, kept_so_far
from study.errors import UsageError


class Scaled(Made):
    """A workload whose loss a function of the workload and its outputs scales."""

    def __init__(self, scale):
        super().__init__(Model, scale=scale, table={}, least=None)

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * self.scale(self, outputs.detach())


def an_attribute(workload, y):
    workload.spread = getattr(workload, "spread", None) or float(y.std())
    return workload.spread


def an_attribute_that_was_none(workload, y):
    if workload.least is None:
        workload.least = y.min()
    return 1 + workload.least.abs()


def an_entry_of_a_table(workload, y):
    return 1 + workload.table.setdefault("mean", y.mean(0)).abs().sum()


def a_constant(workload, y):
    workload.mask = torch.ones(1)
    return workload.mask


def a_table_of_constants(workload, y):
    return workload.table.setdefault("one", torch.ones(1))


KEEPS = {
    an_attribute: "spread",
    an_attribute_that_was_none: "least",
    an_entry_of_a_table: "table",
    a_constant: None,
    a_table_of_constants: None,
    lambda workload, y: 1: None,
}


@pytest.mark.parametrize(("scale", "kept"), KEEPS.items())
def test_what_is_kept_of_the_first_examples_is_refused(make_study, scale, kept):
    """A constant that the first call makes is no state. The workload stays as it is."""
    workload = Scaled(scale)
    before = kept_so_far(workload)
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(40) % 2
    workload.loss(workload.model()(inputs[:8]), targets[:8])
    after = dict(vars(workload))
    check = partial(check_first_batch, make_study(), workload, before, inputs, targets, torch.contiguous_format)
    if kept is None:
        check()
    else:
        with pytest.raises(UsageError, match=f"keeps {kept} of the first examples that it sees"):
            check()
    assert vars(workload) == after
