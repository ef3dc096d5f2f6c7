"""How a model is called with a tree of inputs, as docs/guide/own-workload.md says."""

import pytest
import torch
from torch import nn

from study.data import trees

A, B = torch.zeros(2), torch.ones(2)


class Parts(nn.Module):
    def forward(self, parts):
        return "one", type(parts).__name__


class Pair(nn.Module):
    def forward(self, a, b):
        return "apart", 2


class Args(nn.Module):
    def forward(self, *args):
        return "apart", len(args)


class Kwargs(nn.Module):
    def forward(self, **kwargs):
        return "by name", [*kwargs]


CALLED = {  # model and inputs -> how forward gets them
    "tuple, named": (Parts, (A, B), ("one", "tuple")),
    "list, named": (Parts, [A, B], ("one", "list")),
    "a single tensor": (Parts, [A], ("one", "Tensor")),
    "tuple, two": (Pair, (A, B), ("apart", 2)),
    "list, two": (Pair, [A, B], ("apart", 2)),
    "tuple, any": (Args, (A, B), ("apart", 2)),
    "list, any": (Args, [A, B], ("apart", 2)),
    "mapping, named": (Pair, {"a": A, "b": B}, ("apart", 2)),
    "mapping, other names": (Parts, {"a": A, "b": B}, ("one", "dict")),
    "mapping, any": (Kwargs, {"a": A, "b": B}, ("by name", ["a", "b"])),
}


@pytest.mark.parametrize("kind", CALLED)
def test_a_model_is_called_as_its_forward_takes_the_inputs(kind):
    model, inputs, found = CALLED[kind]
    assert trees.call(model(), inputs) == found
