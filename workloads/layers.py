"""Layers that mean the same whatever shares their process, and whatever parts a batch comes in.

Randomness is a pure function of (trial seed, step, layer, element); statistics are those of fixed groups of examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Whole = TypeVar("Whole", int, Tensor)

_LAYER_STRIDE = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive numbers over the 32-bit range


class Keyed(nn.Module):
    """A layer with counter-based randomness: no generator, hence nothing shared between trials.

    Before each training step the engine writes the step's key into `key` (`set_keys`). What is drawn from it is the
    same on every device, alone or under `torch.vmap`.
    """

    key: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = 0  # number of the first example within its batch, where the batch comes in parts
        # Not saved: the key is a function of the step, never state.
        self.register_buffer("key", torch.zeros((), dtype=torch.int32), persistent=False)


class Dropout(Keyed):
    """Dropout (Srivastava et al. 2014): element i of a batch is kept where hash(key, i) >= p."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * (keep_mask(x.shape, self.key, self.p, self.first).to(x.dtype) / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class GradientNoise(Keyed):
    """Independent numbers for each step of a trial, uniform over 256 levels up to 1.73 deviations either way.

    Whoever asks only for a covariance is served as by a normal distribution, at a quarter of a hash for each number.
    The parts of a batch that is taken in parts have independent noise.
    """

    LEVELS = ((256**2 - 1) / 12) ** 0.5  # standard deviation of the whole numbers from -128 to 127

    def forward(self, shape: torch.Size, deviation: Tensor) -> Tensor:
        """Numbers [*shape] of mean 0 and this standard deviation."""
        hashed = _hashed(torch.Size([-(-shape.numel() // 4)]), self.key + _signed(self.first * _LAYER_STRIDE))
        levels = hashed.view(torch.int8)[..., : shape.numel()].unflatten(-1, shape)
        return levels.to(deviation.dtype).add_(0.5) * (deviation / self.LEVELS)


class GhostBatchNorm(nn.Module):
    """Batch norm whose statistics are those of ghost batches (Hoffer et al. 2017): `group` consecutive examples each.

    So a model means the same at every batch size, and whatever parts a batch comes in; the engines never part a group.
    What is left over at the end of a batch joins its last group. Evaluations use running averages of the groups'
    means and unbiased variances, moved once a step by `end_step`.

    Arguments:
        channels: C, of inputs [B, C, ...].
        group: examples; where there is nothing but channels, at least 2.
        momentum: weight of a step in the running averages.
    """

    running_mean: Tensor
    running_variance: Tensor
    seen: Tensor

    def __init__(self, channels: int, group: int = 32, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        if group < 1:
            raise ValueError(f"a ghost batch has at least one example, but got group={group}.")
        self.group, self.momentum, self.epsilon = group, momentum, epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))
        # Sums over the examples of this step; empty between steps, and so no state.
        self.register_buffer("seen", torch.zeros(2 * channels + 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self._normalised(x, self.running_mean, self.running_variance)
        whole = max(0, len(x) // self.group - 1) * self.group
        groups = [*x[:whole].split(self.group), x[whole:]] if whole else [x]
        return torch.cat([self._with_its_own(group) for group in groups])

    def _with_its_own(self, group: Tensor) -> Tensor:
        mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_variance)
        normalised = self._normalised(group, mean, variance)
        self.seen += len(group) * torch.cat([mean, variance, mean.new_ones(1)])
        return normalised

    def _normalised(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """In training, a momentum of 1 leaves the statistics of x behind."""
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.training, 1.0, self.epsilon)

    def end_step(self, total: Callable[[Tensor], Tensor]) -> None:
        """Move the running averages by what this step has seen, in `total` over the devices that shared it."""
        *sums, examples = total(self.seen).split([len(self.bias), len(self.bias), 1])
        for running, seen in zip((self.running_mean, self.running_variance), sums, strict=True):
            running.lerp_(seen / examples, self.momentum)
        self.seen.zero_()

    def extra_repr(self) -> str:
        return f"{len(self.bias)}, group={self.group}"


class GlobalMeanPool(nn.Module):
    """[B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        if x.stride(1) == 1:  # channels last: the gradient of a mean is laid out in the order of what it is taken of
            return torch.mean(x.permute(0, 2, 3, 1), dim=(1, 2))
        return torch.mean(x, dim=(-2, -1))


def together(model: nn.Module, batch_size: int) -> int:
    """How many consecutive examples of a batch this model must see at once: all where it has plain batch norm."""
    if whole_batch_layers(model):
        return batch_size
    return math.lcm(*(layer.group for layer in ghost_layers(model)))


def whole_batch_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose statistics are those of all examples that they are given."""
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def ghost_layers(model: nn.Module) -> list[GhostBatchNorm]:
    """The layers whose running averages move at the end of a step."""
    return [layer for layer in model.modules() if isinstance(layer, GhostBatchNorm)]


def keep_mask(shape: torch.Size, key: Tensor, p: float, first: int = 0) -> Tensor:
    """Which elements are kept: bool [*key.shape, *shape], for int32 keys of any shape; examples count from `first`."""
    return _hashed(shape, key, first * shape[1:].numel()).bitwise_and_(_LOW_31) >= int(p * 2**31)


def _hashed(shape: torch.Size, key: Tensor, start: int = 0) -> Tensor:
    """A random int32 for each element, counted from `start`, and key: [*key.shape, *shape]."""
    counter = torch.arange(start, start + shape.numel(), dtype=torch.int32, device=key.device).view(shape)
    key = key.view(*key.shape, *(1 for _ in shape))
    return _mix(_mix(counter ^ key) + key)


def _mix(x: Tensor) -> Tensor:
    """The 32-bit integer hash `lowbias32` (Wellons 2018), on int32 tensors; masks make the shifts logical."""
    x = x ^ (x >> _16).bitwise_and_(_LOW_16)
    x.mul_(_FIRST)
    x.bitwise_xor_((x >> _15).bitwise_and_(_LOW_17))
    x.mul_(_SECOND)
    return x.bitwise_xor_((x >> _16).bitwise_and_(_LOW_16))


def _int32(number: int) -> Tensor:
    """A constant, ready made: a Python number is made an int64 tensor and that an int32 at each call, which costs more
    than what is then done to some thousand numbers."""
    return torch.tensor(_signed(number), dtype=torch.int32, device="cpu")


def keyed_layers(model: nn.Module) -> list[Keyed]:
    """The layers of `model` that want a key at each step, in a fixed order."""
    return [module for module in model.modules() if isinstance(module, Keyed)]


def set_keys(layers: list[Keyed], seed: int, step: int, first: int = 0) -> None:
    """Give every layer its key for one step of the trial with this seed, for a batch from example `first` on."""
    for number, layer in enumerate(layers):
        layer.first = first
        layer.key.fill_(layer_key(seed, step, number))


def layer_key(seed: Whole, step: Whole, layer: Whole) -> Whole:
    """A signed 32-bit key; distinct for neighbouring seeds, steps and layers. Numbers, or int64 tensors of them."""
    key = _mix_int(seed & 0xFFFFFFFF)
    key = _mix_int((key + step * _LAYER_STRIDE) & 0xFFFFFFFF)
    key = _mix_int((key + (layer + 1) * _LAYER_STRIDE) & 0xFFFFFFFF)
    return _signed(key)


def _signed(key: Whole) -> Whole:
    """The lowest 32 bits of a whole number as int32 holds them."""
    return (key + 2**31) % 2**32 - 2**31


def _mix_int(x: Whole) -> Whole:
    """`_mix` on Python integers or int64 tensors, from 0 to 2^32; tensors are overwritten."""
    x ^= x >> 16
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


_15, _16 = _int32(15), _int32(16)
_LOW_16, _LOW_17, _LOW_31 = _int32(0xFFFF), _int32(0x1FFFF), _int32(0x7FFFFFFF)
_FIRST, _SECOND = _int32(0x7FEB352D), _int32(0x846CA68B)
