"""Groups of Inductor's scheduler are counted as kernels of known bytes, and the compiled update saves some."""

import json
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

META = torch.device("meta")
RECORDED = json.loads((Path(__file__).parents[3] / "benchmarks/measured/trace.json").read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's compiler imports what torch deprecates
]
F = torch.nn.functional
KNOWN = {
    "element-wise": (lambda x: (x + 1).relu() * 2, [(8, 64)], [("element-wise", 2048, 2048, 0)]),
    "sum": (lambda x: (x * x + 1).sum(1), [(8, 64)], [("sum", 2048, 32, 0)]),
    "product": (
        lambda x, w, b: (x @ w + b).relu(),
        [(2, 8, 16), (2, 16, 4), (2, 1, 4)],
        [("product", 1024 + 512, 256, 2 * 2 * 8 * 4 * 16), ("element-wise", 256 + 32, 256, 0)],
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, groups=2).relu(),
        [(2, 8, 6, 6), (16, 4, 3, 3)],
        [("convolution", 2304 + 2304, 2048, 2 * 512 * 36), ("element-wise", 2048, 2048, 0)],
    ),
    "part of a row": (lambda x: x[:, :3] + 1, [(8, 64)], [("element-wise", 96, 96, 0)]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_kernels_of_groups(name):
    from benchmarks.trace.compiled import fused

    function, shapes, expected = KNOWN[name]
    arguments = [torch.empty(shape, device=META) for shape in shapes]
    found = fused(make_fx(function)(*arguments), arguments)
    assert [(kernel.kind, kernel.read, kernel.written, kernel.flop) for kernel in found] == expected


@pytest.fixture
def threads():
    """Sets torch's number of threads for the test: as many as it likes, where none is asked for."""
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("model", "batch_size", "precision", "element_wise", "count"),
    [
        ("resnet8", 128, "fp32", 0, 1),
        ("resnet8", 128, "bf16", 0, 1),
        ("cnn", 2, "fp32", 2 * 2 * 1024 * 3136, 2),
        ("cnn", 2, "bf16", 2 * 2 * 1024 * 3136, 1),
    ],
)
def test_the_compiled_update_reads_and_writes_less(model, batch_size, precision, element_wise, count, threads):
    """`element_wise`: FLOP of products that are written out (`study.engine.fused.rewritten`)."""
    if torch.__version__.split(".")[:2] != RECORDED["versions"]["torch"].split(".")[:2]:
        pytest.skip("recorded with another version of torch")
    from benchmarks.trace.compiled import compiled

    threads(count)
    today, recorded = (
        next(
            row
            for row in RECORDED["rows"]
            if (row["model"], row["batch_size"], row["precision"], row["arithmetic"])
            == (model, batch_size, precision, how)
        )
        for how in ("vmap", "vmap compiled")
    )
    found = compiled(model, batch_size, "momentum", precision=precision).row()
    assert found["flop"] == today["flop"] - element_wise
    assert found["bytes"] <= 1.01 * recorded["bytes"] < today["bytes"]
    # The first graph that Inductor fuses in a process may have a kernel more.
    assert found["kernels"] <= recorded["kernels"] + 1 < today["kernels"]
