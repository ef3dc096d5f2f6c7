"""Convolutions of many lanes: the operations, their kernels and the rule of `torch.vmap` are exact to rounding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import helpers
import pytest
import torch
from helpers.fused import seldom
from helpers.gpu.convolutions import CASES, Case, assert_exact, assert_nan_stays, assert_rectified
from torch import nn
from torch.func import functional_call

import study
from benchmarks.gpu.convolutions import VARIANTS
from study.engine.fused.convolution import operations
from study.engine.fused.layout import Layout
from study.engine.fused.vmapped import Vmapped

CPU = torch.device("cpu")
ROOM = "study.engine.fused.convolution"


INTERPRETED = """
import sys
import torch
from helpers.gpu.convolutions import CASES, assert_exact, assert_nan_stays, assert_rectified
from study.engine.fused.convolution import kernels, launch, operations, row_kernels

how = sys.argv[1]
torch.backends.cudnn.allow_tf32 = how == "rows"
if how == "half, rows":
    launch._precision = lambda images: "tf32"  # as bfloat16, these are for tensor cores
operations._launch = lambda *images: launch
operations._grouped = None  # no convolution of torch is to be used
used = set()
for module in (kernels, row_kernels):
    for name in ("filtered", "differentiated"):
        class Noted:
            def __init__(self, module=module, name=name):
                self.kernel, self.key = getattr(module, name), module.__name__.rpartition(".")[2] + "." + name
            def __getitem__(self, grid):
                used.add(self.key)
                return self.kernel[grid]
        setattr(module, name, Noted())
half = how.startswith("half")
dtype, rounding = (torch.float16, 5e-4) if half else (torch.float32, 1e-6)
for name in sys.argv[2:] or CASES:
    used.clear()
    case = CASES[name]
    assert_exact(case, *case.made(dtype, torch.device("cpu")), rounding=rounding)
    print(name, *sorted(used), sep="|")
    if half or name in ("stride", "steps beyond the kernel", "more filters than a block"):
        assert_rectified(case, *case.made(dtype, torch.device("cpu")), rounding=rounding)
assert_nan_stays()
"""
"""Triton's interpreter runs kernels on a CPU, in processes that it was asked to from the start. It does not round, and
cannot multiply bfloat16: numbers of half the bytes are float16."""
BY_ROWS = {
    "more filters than a block",
    "several parts",
    *(name for name in CASES if name.startswith("rows")),
}
"""Where tensor cores are used, these cases compute their results and gradients of filters by rows."""


def test_kernels_are_imported_on_gpus_alone():
    assert f"{ROOM}.kernels" not in sys.modules


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_operations_are_exact(case: Case):
    for check in (assert_exact, assert_rectified):
        check(case, *case.made(torch.float32, CPU), rounding=1e-6)


def test_diverged_images_stay_so():
    assert_nan_stays()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rows", "patches"])
def test_the_kernels_are_exact(how):
    lines = in_a_process("-c", INTERPRETED, how, TRITON_INTERPRET="1").splitlines()
    used = {name: set(keys) for name, *keys in (line.split("|") for line in lines)}
    assert [*used] == [*CASES]
    by_rows = {name for name, keys in used.items() if {"row_kernels.filtered", "row_kernels.differentiated"} <= keys}
    assert by_rows == (BY_ROWS if how == "rows" else set())
    assert how == "rows" or not any("row_kernels" in key for keys in used.values() for key in keys)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["half, rows", "half, patches"])
def test_the_kernels_are_exact_for_numbers_of_half_the_bytes(how):
    cases = ["three channels", "stride", "steps beyond the kernel", "several parts", "rows, no padding"]
    lines = in_a_process("-c", INTERPRETED, how, *cases, TRITON_INTERPRET="1").splitlines()
    by_rows = [name for name, *keys in (line.split("|") for line in lines) if "row_kernels.differentiated" in keys]
    assert [line.split("|")[0] for line in lines] == cases
    assert by_rows == (cases[3:] if how == "half, rows" else [])


def in_a_process(*words: str, **variables: str) -> str:
    """What Python prints for these words in a process of its own, which may import Triton."""
    pytest.importorskip("triton")
    paths = os.pathsep.join([str(Path(study.__file__).parents[1]), str(Path(helpers.__file__).parents[1])])
    asked = os.environ | {"PYTHONPATH": paths} | variables
    ran = subprocess.run([sys.executable, *words], env=asked, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("name", "capability"), seldom([("as they are", 90), *((n, 90) for n in VARIANTS), ("as they are", 86)])
)
def test_the_kernels_compile_and_fit_in_shared_memory(name, capability):
    """Of an H100 and of the RTX cards with the least; also with what `benchmarks.gpu.convolutions` tries on an H100."""
    asked = json.dumps(VARIANTS.get(name, {}))
    found = json.loads(in_a_process("-m", "helpers.gpu.compiling", str(capability), asked))
    assert found["kernels"] >= 9
    assert 0 < found["most"] <= found["allowed"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_compiler_knows_shapes_and_memory_beforehand(case):
    images, weight, bias = case.made(torch.float32, CPU)
    how = [*case.stride], [*case.padding]
    y = operations.filtered(images, weight, bias, *how)
    asked = {
        operations.filtered: [(images, weight, bias, *how), (images, weight, bias, *how, True, y)],
        operations.spread: [(y, weight, [*case.size], *how)],
        operations.differentiated: [(images, y, [*case.kernel], *how, case.biased, each) for each in (False, True)],
    }
    if not case.shared:
        asked[operations.spread].append((y, weight, [*case.size], *how, images, images))
    for operation, arguments in ((key, each) for key, several in asked.items() for each in several):
        torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


LAYERS = {
    "odd": nn.Conv2d(3, 4, 3, padding=1),
    "stride": nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "no bias": nn.Conv2d(3, 4, 3, bias=False),
    "one by one": nn.Conv2d(3, 4, 1, stride=2),
    "tall": nn.Conv2d(3, 4, (3, 1), padding=(1, 0)),
    "same": nn.Conv2d(3, 4, 3, padding="same"),
    "same, of an even kernel": nn.Conv2d(3, 4, (1, 2), padding="same"),
    "groups": nn.Conv2d(3, 3, 3, groups=3),
    "dilated": nn.Conv2d(3, 4, 3, dilation=2),
    "circular": nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    "padding wider than the kernel": nn.Conv2d(3, 4, 1, padding=1),
}
OURS = {"odd", "stride", "no bias", "one by one", "tall", "same"}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_layers_have_the_gradients_of_models_that_are_alone(name, monkeypatch):
    """With a ReLU in place behind them, and a layer before them whose gradient needs that of their images."""
    torch.manual_seed(0)
    layer = LAYERS[name]
    before, last = nn.Conv2d(2, 3, 1), nn.LazyLinear(5)
    model = nn.Sequential(before, layer, nn.ReLU(inplace=True), nn.Flatten(), last)
    x, y = torch.randn(2, 4, 2, 6, 7), torch.randint(5, (8,))
    model(x[0])
    layout = Layout(model)
    rows = torch.randn(2, layout.width) / 4

    def losses(outputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), y, reduction="none")

    form = Vmapped(model, rows, layout, flat=True)
    assert ("forward" in vars(layer)) == (name in OURS)
    found, [gradients] = form.backward(x, losses, torch.zeros(2, 0))
    vars(layer).pop("forward", None)
    for lane in range(2):
        weights = {key: view[lane].clone().requires_grad_() for key, view in layout.views(rows).items()}
        outputs = functional_call(model, weights, x[lane])
        alone = nn.functional.cross_entropy(outputs, y[4 * lane :][:4], reduction="none")
        torch.testing.assert_close(found[4 * lane :][:4], alone.detach())
        each = torch.autograd.grad(alone.mean(), [weights[key] for key in layout.trained])
        for columns, one in zip(layout.columns, each, strict=True):
            torch.testing.assert_close(gradients[lane, columns], one.flatten(), rtol=1e-4, atol=1e-6)
