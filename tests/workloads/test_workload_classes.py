"""Models have the published shapes, the loss smooths as said, and bad workloads are refused."""

import re
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from workloads.base import IGNORED, classification_error, cross_entropy_error
from workloads.classification import smoothed_cross_entropy
from workloads.data.datasets import DATASETS
from workloads.layers import Dropout
from workloads.resnet_cifar import GlobalMeanPool
from workloads.user_code.importing import build

COMMON = {"name": "x", "train_examples": 100, "validation_examples": 10}
FC = {"_target_": "workloads.fully_connected.FullyConnected", "dataset": "mnist", "widths": [], **COMMON}
CNN = {"_target_": "workloads.simple_cnn.SimpleCNN", "dataset": "mnist", **COMMON}
RESNET = {"_target_": "workloads.resnet_cifar.ResNetCifar", "dataset": "cifar10", **COMMON}

MODELS = {
    "softmax": (FC, 784 * 10 + 10),
    "mlp_digits": (FC | {"dataset": "digits", "widths": [128]}, 64 * 128 + 128 + 128 * 10 + 10),
    "fc_1024": (FC | {"widths": [1024]}, 814_090),
    "fc_1024_1024": (FC | {"widths": [1024, 1024]}, 814_090 + 1024 * 1024 + 1024),
    "fc_cifar": (FC | {"dataset": "cifar10", "widths": [7]}, 3072 * 7 + 7 + 7 * 10 + 10),
    "cnn_narrow": (CNN | {"size": "narrow"}, 416 + 12_832 + 7 * 7 * 32 * 512 + 512 + 5_130),
    "cnn_base": (CNN, 3_274_634),  # "about 3.27 M parameters"
    "resnet_8": (RESNET, 75_050),
    "resnet_14": (RESNET | {"blocks_per_stage": 2}, 75_050 + 2 * (2_320 + 9_248 + 36_928)),
}


@pytest.mark.parametrize(("config", "parameters"), MODELS.values(), ids=MODELS)
def test_parameters_and_outputs(config, parameters):
    model = build(config).model()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert not list(model.buffers()) or all(isinstance(m, Dropout) for m in model.modules() if m._buffers)
    inputs = torch.randn(3, *DATASETS[config["dataset"]].shape)
    outputs = model.eval()(inputs)
    assert outputs.shape == (3, 10)
    assert outputs.isfinite().all()
    # No normalisation over the batch: an example's output does not depend on its neighbours.
    torch.testing.assert_close(model(inputs[:1]), outputs[:1])


@pytest.mark.parametrize(("n", "convolutions"), [(1, 7), (2, 13)])
def test_resnet_has_6n_plus_2_layers_and_no_batch_norm(n, convolutions):
    model = build(RESNET | {"blocks_per_stage": n}).model()
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (convolutions, 1)
    assert not any("Norm" in kind.__name__ for kind in kinds)
    channels = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert channels == [16] + [16] * 2 * n + [32] * 2 * n + [64] * 2 * n
    assert all((m.bias == 0).all() for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))


def test_resnet_shortcuts_pool_and_pad():
    """With the residual branches silenced only the shortcuts are left."""
    block = build(RESNET).model()[2]
    for parameter in block.second.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 16, 8, 8)
    out = block(x)
    assert out.shape == (2, 32, 4, 4)
    torch.testing.assert_close(out[:, :16], F.avg_pool2d(x, 2))
    assert (out[:, 16:] == 0).all()


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_the_last_mean_of_resnet_lays_gradients_out_as_what_it_is_taken_of(layout):
    x = torch.randn(4, 8, 6, 6).contiguous(memory_format=layout).requires_grad_()
    found = []
    pooled = GlobalMeanPool()(x)
    x.register_hook(found.append)
    pooled.square().sum().backward()
    assert found[0].stride() == x.stride()
    assert torch.equal(pooled, x.mean(dim=(-2, -1)))
    assert torch.equal(found[0], (2 * pooled / 36)[..., None, None].expand_as(x))


def test_he_initialisation():
    layer = build(FC | {"widths": [1024]}).model()[1]
    assert layer.weight.std().item() == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    assert (layer.bias == 0).all()


def test_a_model_is_drawn_from_the_global_generator():
    workload = build(FC)
    torch.manual_seed(1)
    one, other = workload.model()[1].weight, workload.model()[1].weight
    torch.manual_seed(1)
    assert torch.equal(workload.model()[1].weight, one)
    assert not torch.equal(one, other)


def test_cnn_drops_units_in_training_only():
    model = build(CNN | {"dropout": 0.4}).model()
    x = torch.randn(2, 1, 28, 28)
    assert not torch.equal(model(x), model.eval()(x))
    assert [m.p for m in model.modules() if isinstance(m, Dropout)] == [0.4]


LOGITS, LABELS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 4, 0])


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1, 0.5])
@pytest.mark.parametrize(
    ("convention", "on_label", "on_others"),
    [("paper", lambda e: 1 - e, lambda e: e / 4), ("uniform", lambda e: 1 - e + e / 5, lambda e: e / 5)],
)
def test_label_smoothing_by_hand(epsilon, convention, on_label, on_others):
    labels = torch.full((6, 5), on_others(epsilon))
    labels[range(6), LABELS] = on_label(epsilon)
    assert labels.sum(1) == pytest.approx(1)
    probabilities = LOGITS.exp() / LOGITS.exp().sum(1, keepdim=True)
    expected = -(labels * probabilities.log()).sum(1)
    torch.testing.assert_close(smoothed_cross_entropy(LOGITS, LABELS, epsilon, convention), expected)
    as_tensor = smoothed_cross_entropy(LOGITS, LABELS, torch.tensor(epsilon), convention)
    torch.testing.assert_close(as_tensor, expected)
    if convention == "uniform":
        torchs = F.cross_entropy(LOGITS, LABELS, reduction="none", label_smoothing=epsilon)
        torch.testing.assert_close(torchs, expected)


def test_the_loss_smooths_as_configured_unless_smoothing_is_tuned():
    plain, smooth = build(FC), build(FC | {"label_smoothing": 0.1, "label_smoothing_convention": "uniform"})
    torch.testing.assert_close(plain.loss(LOGITS, LABELS), cross_entropy_error(LOGITS, LABELS))
    torch.testing.assert_close(smooth.loss(LOGITS, LABELS), smoothed_cross_entropy(LOGITS, LABELS, 0.1, "uniform"))
    for workload, convention in ((plain, "paper"), (smooth, "uniform")):
        expected = smoothed_cross_entropy(LOGITS, LABELS, 0.3, convention)
        torch.testing.assert_close(workload.loss(LOGITS, LABELS, label_smoothing=0.3), expected)
    torch.testing.assert_close(smooth.loss(LOGITS, LABELS, label_smoothing=0), cross_entropy_error(LOGITS, LABELS))


@pytest.mark.parametrize("convention", ["paper", "uniform"])
@pytest.mark.parametrize("ignored", [IGNORED, 99])
def test_ignored_targets_have_no_loss_and_no_gradient(convention, ignored):
    logits = LOGITS.clone().requires_grad_()
    some = torch.arange(len(LABELS)) % 2 == 0
    found = smoothed_cross_entropy(logits, LABELS.where(some, ignored), 0.1, convention, ignored)
    torch.testing.assert_close(found, smoothed_cross_entropy(LOGITS, LABELS, 0.1, convention).where(some, 0))
    found.sum().backward()
    assert ((logits.grad != 0).any(1) == some).all()
    if convention == "uniform":
        options = {"reduction": "none", "label_smoothing": 0.1, "ignore_index": ignored}
        torch.testing.assert_close(found, F.cross_entropy(LOGITS, LABELS.where(some, ignored), **options))


def test_errors_are_per_example_and_unsmoothed():
    logits = torch.tensor([[2.0, 1.0], [1.0, 2.0], [0.0, 3.0]])
    labels = torch.tensor([0, 0, 1])
    assert classification_error(logits, labels).tolist() == [0.0, 1.0, 0.0]
    found = build(FC | {"label_smoothing": 0.5}).errors["cross_entropy_error"](logits, labels)
    torch.testing.assert_close(found, F.cross_entropy(logits, labels, reduction="none"))


def test_a_single_logit_has_no_classification_error():
    """Its argmax is class 0, whatever it is."""
    with pytest.raises(ValueError, match=r"at least two classes, but got logits \[3, 1\].*outputs.squeeze\(1\) > 0"):
        classification_error(torch.tensor([[1.0], [-1.0], [2.0]]), torch.tensor([1, 0, 1]))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"_target_": None}, ["_target_", "None"]),
        ({"_target_": "FullyConnected"}, ["_target_", "'FullyConnected'"]),
        ({"_target_": "workloads.nothing.Nothing"}, ["_target_", "'workloads.nothing.Nothing'"]),
        ({"_target_": "workloads.simple_cnn.Nothing"}, ["_target_", "'workloads.simple_cnn.Nothing'"]),
        ({"widhts": [3]}, ["no argument 'widhts'", "did you mean 'widths'"]),
        ({"dataset": "mnits"}, ["unknown data set 'mnits'", "did you mean 'mnist'"]),
        ({"train_examples": 0}, ["workload.train_examples must be", "at least 1", "0"]),
        ({"train_examples": "all"}, ["train_examples", "all"]),
        ({"validation_examples": 0}, ["workload.validation_examples must be", "at least 1", "0"]),
        ({"split_seed": -1}, ["split_seed", "-1"]),
        ({"label_smoothing": 1}, ["workload.label_smoothing must be", "in [0, 1)", "1"]),
        ({"label_smoothing": -0.1}, ["workload.label_smoothing must be", "in [0, 1)", "-0.1"]),
        ({"label_smoothing_convention": "papr"}, ["label_smoothing_convention", "uniform", "'papr'"]),
        ({"widths": [3, 0]}, ["workload.widths", "0"]),
        ({"widths": [1.5]}, ["workload.widths", "1.5"]),
        ({"widths": 5}, ["widths", "5"]),
        (CNN | {"size": "huge"}, ["unknown workload.size 'huge'", "base"]),
        (CNN | {"dropout": 1.0}, ["workload.dropout must be", "in [0, 1)", "1.0"]),
        (RESNET | {"blocks_per_stage": 0}, ["workload.blocks_per_stage must be", "at least 1", "0"]),
    ],
)
def test_build_refuses(config, words):
    config = config if len(config) > 1 else FC | config
    with pytest.raises(ValueError) as refusal:
        build(config)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("missing", ["_target_", "dataset", "widths"])
def test_build_names_what_is_missing(missing):
    with pytest.raises(ValueError, match=missing):
        build({key: value for key, value in FC.items() if key != missing})


def test_workloads_of_equal_arguments_are_equal():
    assert build(FC | {"widths": [3, 4]}) == build(FC | {"widths": (3, 4)}) != build(FC | {"widths": [3]})


def test_resnet_8_starts_near_chance():
    """Found on CIFAR-10: gain 2 in every layer began at up to 4.1 nats, and good learning rates killed the net."""
    model_losses = []
    for seed in range(8):
        torch.manual_seed(seed)
        # Neighbouring pixels of photographs agree; white noise would hide the fault.
        inputs = F.interpolate(torch.randn(64, 3, 4, 4), size=(32, 32), mode="bilinear")
        inputs, targets = inputs / inputs.std(), torch.arange(64) % 10
        model_losses.append(F.cross_entropy(build(RESNET).model()(inputs), targets).item())
    assert np.mean(model_losses) < 3  # log 10 is 2.3


class Undecorated:
    name: str
    train_examples: int


def test_a_class_without_a_constructor_is_told_of_dataclass():
    config = {"_target_": f"{__name__}.Undecorated", "name": "mine", "train_examples": 8}
    with pytest.raises(ValueError, match="takes no argument 'name', and no other; is it a class without @dataclass or"):
        build(config)


UNUSABLE = {
    "an import": ("import nowhere_else", "No module named 'nowhere_else' ({file}, line 1: import nowhere_else)"),
    "at import": ("1 / 0", "ZeroDivisionError: division by zero ({file}, line 1: 1 / 0)"),
    "in a library": ("import json\njson.loads('')", "line 2: json.loads(''))"),
    "a number": ("Made = 3", "must be an importable class, but made_unusable.Made is 3."),
    "a module": ("import json as Made", "must be an importable class, but made_unusable.Made is <module 'json'"),
    "compiled": ("Made = dict", "must be an importable class, but made_unusable.Made is <class 'dict'>."),
    "missing": ("", "module 'made_unusable' has no attribute 'Made'. The module"),
    "in __init__": (
        "class Made:\n    def __init__(self, name):\n        self.width.size",
        "'Made' object has no attribute 'width' ({file}, line 3: self.width.size)",
    ),
    "a property": (
        "from dataclasses import dataclass as d\n@d\nclass Made:\n    name: str\n    @property\n    def name(self): 0",
        "made_unusable.Made refused its arguments: property 'name' of 'Made' object has no setter",
    ),
}


@pytest.mark.parametrize(("source", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_class_that_cannot_be_used_is_told_with_the_users_line(tmp_path, monkeypatch, source, said):
    file = tmp_path / "made_unusable.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_unusable", raising=False)
    with pytest.raises(ValueError, match=re.escape(said.format(file=file))):
        build({"_target_": "made_unusable.Made", "name": "mine"})
    sys.modules.pop("made_unusable", None)
