"""`study compare` says what is found about each pair, and refuses curves that share nothing."""

from pathlib import Path
from shutil import copytree

import pytest

PUBLISHED = Path(__file__).parents[3] / "results/published"


@pytest.fixture
def compared(tmp_path, says):
    """What `study compare` says about some published studies; a folder for each workload."""

    def run(*names, status=0):
        for name in names:
            workload, optimizer, size = name.split("/")
            inside = f"{workload}/studies/{workload}/{optimizer}/{size}"
            copytree(PUBLISHED / inside, tmp_path / inside)
        folders = sorted({tmp_path / name.split("/")[0] for name in names})
        return says("compare", *folders, "--output", tmp_path / "both", "--figures", "svg", "--static", status=status)

    return run


OPTIMIZERS = [f"fc_mnist_128/{optimizer}/512" for optimizer in ("adam", "momentum", "sgd")]
WORKLOADS = ["fc_mnist_128/adam/512", "fc_mnist_1024/adam/512"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            OPTIMIZERS,
            [
                "Adam needs fewer steps than SGD at batch size 512 (2.07 times, 1.78 to 2.4)",
                "Momentum needs fewer steps than SGD at batch size 512 (2.04 times, 1.38 to 3.02)",
                "No other pair of Adam, Momentum and SGD is shown to differ",
            ],
        ),
        (
            WORKLOADS,
            ["adam to validation error < 0.03: fc_mnist_1024 needs fewer steps than fc_mnist_128 at batch size 512"],
        ),
    ],
)
def test_each_pair_is_told_once(compared, names, said):
    found = compared(*names)
    assert [found.count(each) for each in said] == [1] * len(said)
    assert "in common" not in found


@pytest.mark.parametrize(
    ("names", "there"),
    [
        (
            ["fc_mnist_128/adam/8", "fc_mnist_1024/momentum/8"],
            "fc_mnist_1024 with momentum at batch size 8; fc_mnist_128 with adam at batch size 8.",
        ),
        (["fc_mnist_128/adam/8"], "fc_mnist_128 with adam at batch size 8."),
    ],
)
def test_curves_that_share_nothing_are_refused(compared, names, there):
    said = compared(*names, status=2)
    assert said.startswith("study: nothing to compare: ")
    assert said.endswith(f"of two workloads with one optimizer, but got {there}")


@pytest.mark.slow
def test_curves_without_a_batch_size_in_common_are_not_compared_at_one_without_a_word(compared):
    said = compared("fc_mnist_128/adam/8", "fc_mnist_128/adam/32", "fc_mnist_128/sgd/512")
    assert (
        "No batch size in common, so no steps are compared: fc_mnist_128 with adam at batch sizes 8 and 32; "
        "fc_mnist_128 with sgd at batch size 512."
    ) in said
    assert "tied" not in said
