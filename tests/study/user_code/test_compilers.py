"""What users compile by `torch.compile` trains as they wrote it."""

import os
import subprocess
import sys

import pandas as pd
import pytest
import torch
from helpers.made_workload import own_folder

from study.user_code.compilers import DISABLE, uncompiled

COMPILED = """
import torch

from made_images import *


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = Images.model(None)

    @torch.compile
    def forward(self, images):
        return self.layers(images)


@torch.compile(dynamic=True)
def unused(x):
    return x + 1


class Model(Images):
    def model(self):
        return torch.compile(super().model())


class Part(Images):
    def model(self):
        *first, last = super().model()
        return torch.nn.Sequential(*first, torch.compile(last, fullgraph=True))


class Module(Images):
    def model(self):
        model = super().model()
        model.compile(fullgraph=True, mode="reduce-overhead")
        return model


class Forward(Images):
    def model(self):
        return Net()


class Loss(Images):
    loss = torch.compile(Images.loss)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler about itself
@pytest.mark.parametrize("name", ["Model", "Part", "Module", "Forward", "Loss"])
def test_compiled_code_trains_as_it_was_written(tmp_path, says, name):
    mine, results = own_folder(tmp_path / "mine", "compiled", COMPILED, f"compiled.{name}"), tmp_path / "results"
    words = ["search.trials=2", "search.reruns=0", "engine.workers=1", "batch_sizes=[8]", "optimizer=sgd"]
    says("sweep", "--config-dir", mine, "workload=images,compiled", f"results={results}", *words)
    [one], [other] = (sorted(results.glob(f"**/{each}/**/curves.parquet")) for each in ("images", "compiled"))
    ours, theirs = (pd.read_parquet(each).drop(columns="seconds", errors="ignore") for each in (one, other))
    pd.testing.assert_frame_equal(ours, theirs)


def test_compiled_functions_run_as_they_are_in_a_block_only():
    called = []
    function = torch.compile(called.append, backend=lambda graph, inputs: pytest.fail("it is compiled"))
    before = os.environ.get(DISABLE)
    with uncompiled():
        function(1)
        assert os.environ[DISABLE] == "1"
    assert called == [1]
    assert os.environ.get(DISABLE) == before


AFTERWARDS = """
from study.user_code.compilers import uncompiled

compiled = []
with uncompiled():
    import torch

    torch.compile(abs, fullgraph=True)(torch.ones(1))
torch.compile(lambda x: x + 1, backend=lambda graph, inputs: compiled.append(graph) or graph)(torch.ones(1))
assert compiled
"""


@pytest.mark.slow
def test_functions_are_compiled_after_a_block_that_imported_the_compiler():
    subprocess.run([sys.executable, "-W", "ignore", "-c", AFTERWARDS], check=True)
