"""The written-out gradient of cross entropy has the bits of autograd's, and only such losses have it."""

from dataclasses import dataclass

import pytest
import torch

from study.engine.fused.cross_entropy import CrossEntropy, is_cross_entropy
from study.engine.fused.layout import differentiated
from workloads.fully_connected import FullyConnected

DIGITS = {"name": "digits", "dataset": "digits", "train_examples": 8, "validation_examples": 8, "widths": (4,)}


@pytest.mark.parametrize(
    ("lanes", "examples", "classes"), [(1, 1, 2), (4, 1, 10), (8, 33, 10), (2, 512, 10), (3, 7, 1000)]
)
@pytest.mark.parametrize("kind", ["usual", "large", "ignored", "diverged"])
def test_losses_and_gradients_have_the_bits_of_autograd(lanes, examples, classes, kind):
    generator = torch.Generator().manual_seed(lanes)
    outputs = torch.randn(lanes, examples, classes, generator=generator)
    targets = torch.randint(classes, (lanes * examples,), generator=generator)
    if kind == "large":
        outputs *= 1e4
    if kind == "ignored":
        targets[::2] = -100
    if kind == "diverged":
        outputs[0, 0] = torch.inf
    loss = CrossEntropy(targets)
    outputs.requires_grad_()
    found, [gradient] = differentiated(loss, outputs, [outputs])
    expected, [autograd] = differentiated(lambda given: loss(given), outputs, [outputs])
    for one, other in ((found, expected), (gradient, autograd)):
        assert one.shape == other.shape
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))


class Own(FullyConnected):
    def loss(self, outputs, targets, label_smoothing=None):
        return 2 * super().loss(outputs, targets, label_smoothing)


@dataclass(frozen=True)
class Unlike:
    """Not of our class, whatever its loss."""

    loss = FullyConnected.loss
    label_smoothing = 0.0


class Wrapped:
    """Takes the loss of another workload, as an attribute of its own."""

    def __init__(self) -> None:
        self.loss = FullyConnected(**DIGITS).loss


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (FullyConnected(**DIGITS), True),
        (FullyConnected(**DIGITS, label_smoothing=0.1), False),
        (Own(**DIGITS), False),
        (Unlike(), False),
        (Wrapped(), False),
    ],
)
def test_only_the_loss_of_classification_is_plain(workload, expected):
    assert is_cross_entropy(workload) is expected
