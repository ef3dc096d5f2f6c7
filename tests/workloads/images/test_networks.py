"""Networks for images compute what layers of torch do with the same weights, and start as documented."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.users.pictures import COMMON, GHOST, NETWORKS
from torch import nn

from workloads.images.norms import norm_layer
from workloads.images.resnet import Block, ResNet, resnet, size_of
from workloads.images.vgg import SIZES as VGGS
from workloads.images.vgg import Vgg, vgg
from workloads.images.vit import SIZES as VITS
from workloads.images.vit import VisionTransformer, Vit
from workloads.layers import Dropout
from workloads.resnet_cifar import ResNetCifar

X = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
PHOTOGRAPH = (3, 224, 224)
GHOSTS = norm_layer("ghost")

PARAMETERS = {
    # As published by torchvision, with batch norm for the residual networks; for ViTs also Touvron et al. 2021.
    "resnet 18": (lambda: resnet(3, 1000, size_of(18), norm=GHOSTS), 11_689_512),
    "resnet 34": (lambda: resnet(3, 1000, size_of(34), norm=GHOSTS), 21_797_672),
    "resnet 50": (lambda: resnet(3, 1000, size_of(50), norm=GHOSTS), 25_557_032),
    "resnet 101": (lambda: resnet(3, 1000, size_of(101), norm=GHOSTS), 44_549_160),
    "resnet 152": (lambda: resnet(3, 1000, size_of(152), norm=GHOSTS), 60_192_808),
    "vgg 11": (lambda: vgg(PHOTOGRAPH, 1000, VGGS[11], norm=norm_layer("none")), 132_863_336),
    "vgg 11 normed": (lambda: vgg(PHOTOGRAPH, 1000, VGGS[11], norm=GHOSTS), 132_868_840),
    "vgg 13": (lambda: vgg(PHOTOGRAPH, 1000, VGGS[13], norm=norm_layer("none")), 133_047_848),
    "vgg 16": (lambda: vgg(PHOTOGRAPH, 1000, VGGS[16], norm=norm_layer("none")), 138_357_544),
    "vgg 19": (lambda: vgg(PHOTOGRAPH, 1000, VGGS[19], norm=norm_layer("none")), 143_667_240),
    "vit tiny": (lambda: VisionTransformer(PHOTOGRAPH, 1000, VITS["tiny"], patch=16), 5_717_416),
    "vit small": (lambda: VisionTransformer(PHOTOGRAPH, 1000, VITS["small"], patch=16), 22_050_664),
    "vit base": (lambda: VisionTransformer(PHOTOGRAPH, 1000, VITS["base"], patch=16), 86_567_656),
    # He et al. 2016a, table 6: 0.27, 0.85 and 1.7 million.
    "resnet 20": (lambda: cifar(20), 269_722),
    "resnet 56": (lambda: cifar(56), 853_018),
    "resnet 110": (lambda: cifar(110), 1_727_962),
}


def cifar(depth):
    return resnet(3, 10, size_of(depth), stem="cifar", shortcut="padding", norm=GHOSTS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_published_networks(name):
    make, published = PARAMETERS[name]
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in make().parameters()) == published


def trained(model):
    """The model with random norms and biases, as after training."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


class Reference:
    """A network written with functions of torch, which takes its parameters in their order."""

    def __init__(self, model, norm):
        self.left, self.norm = list(model.parameters()), norm

    def convolution(self, x, stride=1):
        weight = self.left.pop(0)
        bias = self.left.pop(0) if self.norm == "none" else None
        x = F.conv2d(x, weight, bias, stride, padding=weight.shape[-1] // 2)
        if self.norm == "none":
            return x
        scale, shift = self.left.pop(0), self.left.pop(0)
        if self.norm == "ghost":
            groups = x[:GHOST], x[GHOST:]
            return torch.cat([F.batch_norm(each, None, None, scale, shift, training=True) for each in groups])
        return F.group_norm(x, {"group": 2, "layer": 1}[self.norm], scale, shift)

    def linear(self, x):
        return F.linear(x, self.left.pop(0), self.left.pop(0))


def residual(x, reference, strides, stem, shortcut):
    """Blocks with these strides of each of their convolutions."""
    x = F.relu(reference.convolution(x, 2 if stem == "imagenet" else 1))
    if stem == "imagenet":
        x = F.max_pool2d(x, 3, 2, padding=1)
    for block in strides:
        y = x
        for number, stride in enumerate(block):
            y = reference.convolution(y if number == 0 else F.relu(y), stride)
        if y.shape != x.shape and shortcut == "projection":
            x = reference.convolution(x, max(block))
        elif y.shape != x.shape:
            x = x[..., :: max(block), :: max(block)]
            x = torch.cat([x, x.new_zeros(len(x), y.shape[1] - x.shape[1], *x.shape[2:])], dim=1)
        x = F.relu(x + y)
    return reference.linear(x.mean((2, 3)))


@pytest.mark.parametrize("norm", ["ghost", "group", "layer", "none"])
@pytest.mark.parametrize(
    ("options", "strides"),
    [
        ({"depth": 8, "stem": "cifar"}, [(1, 1), (2, 1), (2, 1)]),
        ({"depth": 8, "stem": "cifar", "shortcut": "padding", "blocks": (2, 1)}, [(1, 1), (1, 1), (2, 1)]),
        ({"depth": 50, "blocks": (2, 2)}, [(1, 1, 1), (1, 1, 1), (1, 2, 1), (1, 1, 1)]),
        ({"depth": 50, "blocks": (1, 1), "shortcut": "padding"}, [(1, 1, 1), (1, 2, 1)]),
    ],
)
def test_residual_networks_are_layers_of_torch(options, strides, norm):
    workload = ResNet(**COMMON, width=8, norm=norm, ghost_batch=GHOST, norm_groups=2, **options)
    model, x = trained(workload.model()), X.repeat(1, 1, 4, 4) if "stem" not in options else X
    reference = Reference(model, norm)
    expected = residual(x, reference, strides, workload.stem, workload.shortcut)
    assert not reference.left
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["ghost", "group", "layer", "none"])
def test_vgg_networks_are_layers_of_torch(norm):
    options = {"convolutions": (1, 2), "filters": (4, 6, 8), "units": (7, 5), "dropout": 0.0, "norm": norm}
    model = trained(Vgg(**COMMON, **options, ghost_batch=GHOST, norm_groups=2).model())
    kinds = [type(layer).__name__ for layer in model]
    after = {"ghost": "GhostBatchNorm", "none": "ReLU"}.get(norm, "GroupNorm")
    assert [kinds[i + 1] for i, kind in enumerate(kinds) if kind == "Conv2d"] == [after] * 3
    layers = [nn.Sequential(*model[:i]) for i, kind in enumerate(kinds) if kind in ("MaxPool2d", "Flatten")]
    assert [layer(X).shape[1:] for layer in layers] == [(4, 8, 8), (6, 4, 4), (6, 2, 2)]
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    x = layers[-1](X).flatten(1)
    expected = linear[2](F.relu(linear[1](F.relu(linear[0](x)))))
    torch.testing.assert_close(model(X), expected)


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_vision_transformers_are_layers_of_torch(pool):
    model = trained(Vit(**COMMON, width=16, depth=2, heads=2, mlp_width=24, patch=4, pool=pool).model())
    patches = nn.Conv2d(1, 16, 4, stride=4)
    layers = [
        nn.TransformerEncoderLayer(16, 2, 24, 0.0, activation="gelu", batch_first=True, norm_first=True)
        for _ in range(2)
    ]
    with torch.no_grad():
        patches.weight.copy_(model.embedding.weight.view(16, 1, 4, 4))
        patches.bias.copy_(model.embedding.bias)
        for ours, theirs in zip(model.layers, layers, strict=True):
            taken = [ours.attention.qkv, ours.attention.out, ours.mlp[0], ours.mlp[2], *ours.norms]
            parameters = [parameter for each in taken for parameter in each.parameters()]
            for parameter, value in zip(theirs.parameters(), parameters, strict=True):
                parameter.copy_(value)
    x = patches(X).flatten(2).mT
    if pool == "token":
        x = torch.cat([model.token.expand(len(x), 1, 16), x], dim=1)
    x = x + model.positions
    for layer in layers:
        x = layer(x)
    x = model.norm(x)
    expected = model.head(x[:, 0] if pool == "token" else x.mean(1))
    torch.testing.assert_close(model(X), expected)
    torch.testing.assert_close(model(X.contiguous(memory_format=torch.channels_last)), expected)


@pytest.mark.parametrize("norm", ["ghost", "group", "layer"])
def test_pre_activation_networks_have_a_norm_in_front_of_every_relu(norm):
    model = ResNetCifar(**COMMON, norm=norm).model()
    kind = type(norm_layer(norm)(32))
    assert sum(isinstance(layer, kind) for layer in model.modules()) == 2 * 3 + 1
    block = trained(model[2])
    expected = block.second(F.relu(block.between(block.first(F.relu(block.before(X.expand(6, 16, 8, 8)))))))
    shortcut = F.avg_pool2d(X.expand(6, 16, 8, 8), 2)
    expected = expected + torch.cat([shortcut, torch.zeros(6, 16, 4, 4)], dim=1)
    torch.testing.assert_close(block(X.expand(6, 16, 8, 8)), expected)


def test_without_a_norm_the_pre_activation_network_is_as_before():
    names = [name for name, _ in ResNetCifar(**COMMON).model().named_parameters()]
    assert names[:4] == ["0.weight", "0.bias", "1.first.weight", "1.first.bias"]
    assert names[-2:] == ["6.weight", "6.bias"]


def test_no_convolution_of_one_pixel_has_a_stride():
    """Its gradient writes outside of its memory on CPUs, see `_shortcut`."""
    for depth in (8, 50):
        layers = [
            layer for layer in resnet(3, 10, size_of(depth), norm=GHOSTS).modules() if isinstance(layer, nn.Conv2d)
        ]
        assert not [layer for layer in layers if layer.kernel_size == (1, 1) and layer.stride != (1, 1)]


@pytest.mark.parametrize("norm", ["ghost", "none"])
@pytest.mark.parametrize("zero_init", [True, False])
def test_a_block_starts_as_its_shortcut(norm, zero_init):
    model = ResNet(**COMMON, depth=8, width=8, stem="cifar", norm=norm, zero_init=zero_init).model()
    x = torch.rand(6, 8, 8, 8)
    first = next(layer for layer in model if isinstance(layer, Block))
    assert torch.equal(first(x), x) == zero_init


def test_initial_weights():
    model = resnet(3, 1000, size_of(18), norm=GHOSTS).requires_grad_(False)
    convolution = model[-3].branch[0]
    assert convolution.weight.std() == pytest.approx(math.sqrt(2 / (9 * 512)), rel=0.02)
    assert model[-1].weight.std() == pytest.approx(0.01, rel=0.02)
    network = vgg((3, 32, 32), 10, norm=norm_layer("none"), units=(512, 512)).requires_grad_(False)
    layers = [layer for layer in network if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        deviation = math.sqrt((1 if layer is layers[0] else 2) / layer.weight[0].numel())
        assert layer.weight.std() == pytest.approx(0.01 if layer is layers[-1] else deviation, rel=0.05)
        assert not layer.bias.any()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_starts_near_chance_and_drops_in_training_only(name):
    torch.manual_seed(0)
    workload = NETWORKS[name]
    inputs, targets = workload.splits(torch.device("cpu")).train
    model = workload.model()
    assert workload.loss(model(inputs), targets).mean().item() < 3.2  # log 10 is 2.3
    without = trained(model).eval()(inputs)
    assert torch.equal(model(inputs), without)
    dropped = [layer for layer in model.modules() if isinstance(layer, Dropout)]
    assert bool(dropped) == name.startswith(("vgg", "vit"))
    for layer in dropped:
        layer.train()
    assert torch.equal(model(inputs), without) != bool(dropped)


@pytest.mark.parametrize(
    ("build", "options", "words"),
    [
        (ResNet, {"depth": 21}, "workload.depth must be 18, 34, 50, 101, 152 or, .* 6n \\+ 2, .* but got 21"),
        (ResNet, {"block": "basics"}, "unknown workload.block 'basics'.*basic"),
        (ResNet, {"stem": "none"}, "unknown workload.stem 'none'"),
        (ResNet, {"shortcut": "pad"}, "unknown workload.shortcut 'pad'"),
        (ResNet, {"width": 0}, "workload.width must be a whole number of at least 1, but got 0"),
        (ResNet, {"blocks": (2, 0)}, "each of workload.blocks must be a whole number of at least 1, but got 0"),
        (ResNet, {"norm": "group", "width": 48}, "norm_groups must divide the 48 channels .* got 32; .* is 24"),
        (ResNetCifar, {"norm": "group", "norm_groups": 32}, "must divide the 16 channels"),
        (Vgg, {"depth": 12}, "workload.depth must be 11, 13, 16, 19, but got 12"),
        (Vgg, {}, "5 stages halve .* at least 32 x 32 pixels, but those of digits have 8 x 8"),
        (Vgg, {"convolutions": (1, 1), "filters": (4,)}, "workload.filters must have a number for each of 2 stages"),
        (Vgg, {"convolutions": (1, 0)}, "each of workload.convolutions must be"),
        (Vgg, {"convolutions": (1, 1), "dropout": 1.0}, "workload.dropout must be a number in \\[0, 1\\)"),
        (Vit, {"size": "huge"}, "unknown workload.size 'huge'"),
        (Vit, {"patch": 3}, "workload.patch must divide .*, 8 x 8 pixels, but got 3"),
        (Vit, {"patch": 4, "heads": 5}, "divisible by workload.heads, but got width=384 and heads=5"),
        (Vit, {"patch": 4, "pool": "max"}, "unknown workload.pool 'max'"),
    ],
)
def test_refusals(build, options, words):
    with pytest.raises(ValueError, match=words):
        build(**COMMON, **options)
