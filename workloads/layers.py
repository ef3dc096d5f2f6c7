"""Layers whose results depend neither on other trials in the process nor on the split into micro-batches.

Random numbers are a pure function of (trial seed, step, layer, element); statistics are taken over fixed groups of
examples.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Whole = TypeVar("Whole", int, Tensor)

_LAYER_STRIDE = 0x9E3779B9  # 2^32 / golden ratio: spreads consecutive numbers over the 32-bit range


class Keyed(nn.Module):
    """A layer with counter-based random numbers. It uses no generator, so trials share no state.

    Before each training step the engine writes the step's key into `key` (`set_keys`). The random numbers of a key are
    the same on every device, with and without `torch.vmap`.
    """

    key: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = 0  # index, within the batch, of the first example of a micro-batch
        # Not saved: the key is a function of the step, not state.
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
    """Independent random numbers for each step of a trial, uniform over 256 levels within 1.73 standard deviations.

    Mean and covariance equal those of normal noise, at the cost of a quarter of a hash per number. Micro-batches of one
    batch have independent noise.
    """

    LEVELS = ((256**2 - 1) / 12) ** 0.5  # standard deviation of the whole numbers from -128 to 127

    def forward(self, shape: torch.Size, deviation: Tensor) -> Tensor:
        """Random numbers [*shape] with mean 0 and standard deviation `deviation`."""
        hashed = _hashed(torch.Size([-(-shape.numel() // 4)]), self.key + _signed(self.first * _LAYER_STRIDE))
        levels = hashed.view(torch.int8)[..., : shape.numel()].unflatten(-1, shape)
        return levels.to(deviation.dtype).add_(0.5) * (deviation / self.LEVELS)


class GhostBatchNorm(nn.Module):
    """Batch norm with the statistics of ghost batches (Hoffer et al. 2017): groups of `group` consecutive examples.

    The model is therefore the same function at every batch size and micro-batch size; engines never split a group. The
    remainder at the end of a batch joins its last group. Evaluations use running averages of the groups' means and
    unbiased variances, which `end_step` updates once per step.

    Arguments:
        channels: C, of inputs [B, C, ...].
        group: examples per ghost batch; at least 2 for inputs [B, C].
        momentum: weight of one step in the running averages.
    """

    running_mean: Tensor
    running_variance: Tensor
    seen: Tensor

    def __init__(self, channels: int, group: int = 32, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        if group < 1:
            raise ValueError(f"GhostBatchNorm needs a group of at least 1 example, but got group={group}.")
        self.group, self.momentum, self.epsilon = group, momentum, epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))
        # Sums over the examples of this step. Zero between steps, so not state.
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
        """In training, momentum 1 writes the statistics of x into `mean` and `variance`."""
        return F.batch_norm(x, mean, variance, self.weight, self.bias, self.training, 1.0, self.epsilon)

    def end_step(self, total: Callable[[Tensor], Tensor]) -> None:
        """Update the running averages with this step's statistics; `total` sums them over the devices."""
        self.average_(self.running_mean, self.running_variance, total(self.seen))
        self.seen.zero_()

    def average_(self, mean: Tensor, variance: Tensor, seen: Tensor) -> None:
        """Move running averages [..., C] towards the means of the sums `seen` [..., 2 C + 1]. A norm that saw no
        example, because the model keeps it in evaluation mode, keeps its own."""
        channels = len(self.bias)
        *sums, examples = seen.split([channels, channels, 1], dim=-1)
        for running, of_step in zip((mean, variance), sums, strict=True):
            running.lerp_(torch.where(examples > 0, of_step / examples, running), self.momentum)

    def extra_repr(self) -> str:
        return f"{len(self.bias)}, group={self.group}"


class Attention(nn.Module):
    """Scaled dot-product attention (Vaswani et al. 2017) in which each token attends to all.

    Queries, keys and values [B, h, T, d] -> [B, h, T, d], by torch's fused kernels. `torch.vmap` has no rule for these
    kernels; where it runs the model, the engine calls `by_products` in place of `forward`, which is up to twice as fast
    there as torch's own replacement.
    """

    causal = False

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    @classmethod
    def by_products(cls, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same to rounding, as matrix products and a softmax."""
        scores = (q * q.shape[-1] ** -0.5) @ k.mT
        if cls.causal:
            tokens = q.shape[-2]
            scores = scores + torch.full((tokens, tokens), -math.inf, dtype=q.dtype, device=q.device).triu_(1)
        return scores.softmax(-1) @ v


class CausalAttention(Attention):
    """Attention in which each token attends to those up to it."""

    causal = True


class GlobalMeanPool(nn.Module):
    """[B, C, H, W] -> [B, C]."""

    def forward(self, x: Tensor) -> Tensor:
        if x.stride(1) == 1:  # channels last: the gradient takes the layout of the permuted input
            return torch.mean(x.permute(0, 2, 3, 1), dim=(1, 2))
        return torch.mean(x, dim=(-2, -1))


def together(model: nn.Module, batch_size: int) -> int:
    """Number of consecutive examples that the model must see at once; the whole batch for plain batch norm."""
    if whole_batch_layers(model):
        return batch_size
    return math.lcm(*(layer.group for layer in ghost_layers(model)))


def whole_batch_layers(model: nn.Module) -> list[nn.Module]:
    """The layers whose statistics depend on all examples of a forward pass."""
    return [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def ghost_layers(model: nn.Module) -> list[GhostBatchNorm]:
    """The layers whose running averages are updated at the end of a step."""
    return [layer for layer in model.modules() if isinstance(layer, GhostBatchNorm)]


def keep_mask(shape: torch.Size, key: Tensor, p: float, first: int = 0) -> Tensor:
    """The kept elements: bool [*key.shape, *shape], for int32 keys of any shape; examples count from `first`."""
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
    """A constant tensor. To convert a Python number at each call would cost more than hashing a thousand elements."""
    return torch.tensor(_signed(number), dtype=torch.int32, device="cpu")


def keyed_layers(model: nn.Module) -> list[Keyed]:
    """The layers of `model` that need a key at each step, in a fixed order."""
    return [module for module in model.modules() if isinstance(module, Keyed)]


def set_keys(layers: list[Keyed], seed: int, step: int, first: int = 0) -> None:
    """Give every layer its key for one step of the trial with this seed; the micro-batch starts at example `first`."""
    for number, layer in enumerate(layers):
        layer.first = first
        layer.key.fill_(layer_key(seed, step, number))


def layer_key(seed: Whole, step: Whole, layer: Whole) -> Whole:
    """A signed 32-bit key; distinct for neighbouring seeds, steps and layers. Takes integers or int64 tensors."""
    key = _mix_int(seed & 0xFFFFFFFF)
    key = _mix_int((key + step * _LAYER_STRIDE) & 0xFFFFFFFF)
    key = _mix_int((key + (layer + 1) * _LAYER_STRIDE) & 0xFFFFFFFF)
    return _signed(key)


def _signed(key: Whole) -> Whole:
    """The lowest 32 bits of a whole number, read as a signed 32-bit integer."""
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
