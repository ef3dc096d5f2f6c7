"""The arithmetic `vmap`: any module that `torch.vmap` supports, with own rules where those of torch are slow.

Shapes: l lanes, B examples in a batch, N inputs that all lanes share, P numbers in a row with the parameters of one
model; D inputs and H outputs of a linear layer.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import proxy  # a reference cycle would keep models of ended trials on the device

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from study.data import trees
from study.data.trees import Tree
from study.engine.fused import recurrent
from study.engine.fused.convolution import rule as convolutions
from study.engine.fused.layout import Layout, Loss, differentiated
from study.engine.fused.stack import Stack
from study.optimizers.per_parameter import Treatments
from study.records import Study
from study.user_code.autocast import computed
from workloads.layers import Attention, CausalAttention, ghost_layers, keyed_layers

OWN_RULE_WEIGHTS = 2**15
"""Linear layers with at least this number of weights are faster with `_Product`, smaller ones with torch's own rule."""

SMALL_BATCH = 4
"""Largest batch size at which lanes pay on a CPU; above it, fused convolutions are no faster than separate ones."""
SMALL_MODEL = 2**19
"""Most trained parameters with which lanes pay on a CPU; those of larger models come from memory either way."""


ATTENTION = (nn.functional.scaled_dot_product_attention, nn.functional.multi_head_attention_forward)
"""Functions of torch that compute attention."""


def can(model: nn.Module, study: Study) -> bool:
    """Whether the model may be a function of its inputs, parameters, keys and constant buffers alone. That buffers are
    constant is left to `study.engine.can_fuse`."""
    return obstacle(model) is None


def obstacle(model: nn.Module) -> str | None:
    """The layer whose running statistics or random numbers lanes would share, with the cure; None if there is none."""
    for layer in model.modules():
        kind = type(layer).__name__
        norm = isinstance(layer, nn.modules.batchnorm._NormBase)
        if norm and layer._buffers.get("running_mean") is not None:
            return f"{kind} keeps running statistics; workloads.layers.GhostBatchNorm has those of each trial"
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            return f"{kind} draws from one generator for all trials; workloads.layers.Dropout does not"
        if isinstance(layer, nn.RReLU):
            return f"{kind} draws from one generator for all trials; LeakyReLU does not"
        if isinstance(layer, nn.RNNBase) and not recurrent.can(layer):
            return f"torch.vmap has no rule for {kind}"
    return None


def pays(model: nn.Module, study: Study, device: str) -> bool:
    """Whether training one model alone would leave the device partly idle."""
    if torch.device(device).type != "cpu":
        return True
    if study.precision == "bf16":
        return False  # not measured
    parameters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    stepwise = any(
        isinstance(layer, nn.RNNBase) for layer in model.modules()
    )  # torch's own LSTM is several times faster
    return study.batch_size <= SMALL_BATCH and parameters <= SMALL_MODEL and not stepwise


def stack(template: nn.Module, study: Study, rows: int, special: Treatments, apart: Collection[str]) -> Stack:
    """A stack with room for `rows` trials."""
    return Stack(template, study.algorithm, rows, Vmapped, study.averages, special, apart, study.precision == "bf16")


class Vmapped:
    """Any module, through `torch.vmap` of its forward pass; autograd sees one graph for all lanes.

    Frozen parameters that are in no row are the template's: constants that `torch.vmap` does not copy.

    Arguments:
        template: a module for which `can` holds.
        weights: rows [l, P].
        half: compute products and convolutions in bfloat16.
        flat: copy all gradients side by side, so that an update makes one call per operation of its rule, not one per
            operation and parameter. It does not pay on a CPU, where memory traffic costs more than calls. None: on
            devices other than CPUs.
    """

    def __init__(
        self, template: nn.Module, weights: Tensor, layout: Layout, half: bool = False, flat: bool | None = None
    ) -> None:
        flat = weights.device.type != "cpu" if flat is None else flat
        self.half, self.device = half, weights.device
        self.template, self.layout = template, layout
        self.columns = [slice(0, layout.trained_width)] if flat else layout.columns
        self.gaps = [weights.new_zeros(len(weights), gap) for gap in layout.gaps] if flat else []
        self.weights = {name: view.detach() for name, view in layout.views(weights).items()}
        self.trained = [self.weights[name].requires_grad_() for name in layout.trained]
        ours = {id(layer.key) for layer in keyed_layers(template)}
        self.keys = [name for name, buffer in template.named_buffers() if id(buffer) in ours]
        self.ghosts = dict(zip(layout.ghosts, ghost_layers(template), strict=True))
        self.seen = {name: weights.new_zeros(len(weights), len(layer.seen)) for name, layer in self.ghosts.items()}
        self.attends = None if weights.device.type == "cpu" else False
        self.alone = flat and len(weights) == 1
        self.rules: list[nn.Module] = []
        """Layers that compute a single model better than the rules for lanes, which take their place."""
        for layer in template.modules():
            held: Any = proxy(layer)
            if type(layer) is nn.Linear and layer.weight.requires_grad and layer.weight.numel() >= OWN_RULE_WEIGHTS:
                layer.forward = partial(_linear, held)  # type: ignore[method-assign]
            elif type(layer) in (Attention, CausalAttention):
                layer.forward = held.by_products
                self.rules.append(layer)
            elif type(layer) is nn.Embedding and layer.padding_idx is not None and layer.max_norm is None:
                layer.forward = partial(_embedded, held)  # type: ignore[method-assign]
                self.rules.append(layer)
            elif isinstance(layer, nn.LSTM):
                layer.forward = partial(recurrent.lstm, held, _product)  # type: ignore[assignment]
            elif flat and type(layer) is nn.Conv2d and convolutions.can(layer):
                layer.forward = partial(convolutions.convolved, held)  # type: ignore[method-assign]
                self.rules.append(layer)

    @staticmethod
    def predicts_alone(device: torch.device) -> bool:
        return device.type == "cpu"

    def separate(self) -> None:
        self.columns, self.gaps = self.layout.columns, []

    def outputs(self, inputs: Tree) -> Tree:
        self.template.eval()
        if self.predicts_alone(trees.device_of(inputs)):  # grouped convolutions are slow on a CPU at large batches
            lanes = [dict(zip(self.weights, lane, strict=True)) for lane in zip(*self.weights.values(), strict=True)]
            each = [self._called(lane, own) for lane, own in zip(lanes, _private(inputs), strict=False)]
            stacked = zip(*map(trees.leaves, each), strict=True)
            found = trees.like(each[0], [torch.stack(leaf) for leaf in stacked])
        else:
            found = self._over_lanes(lambda weights: self._called(weights, inputs), self.weights)
        self.template.train()
        return found

    def backward(self, inputs: Tree, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        with torch.enable_grad():
            outputs = self._forward(inputs, keys)
        losses, gradients = differentiated(loss, outputs, self.trained)
        for name, layer in self.ghosts.items():  # not before: the rows must not change until they are differentiated
            layer.average_(
                self.weights[f"{name}running_mean"], self.weights[f"{name}running_variance"], self.seen[name]
            )
        each = [gradient.reshape(len(gradient), -1) for gradient in gradients]  # a parameter may be one number
        if self.gaps:
            each = [torch.cat([part for pair in zip(each, self.gaps, strict=True) for part in pair], dim=1)]
        return losses, each

    def _called(self, weights: Any, inputs: Tree) -> Tree:
        """The outputs of a model with these weights, or with (weights, buffers)."""
        given = trees.arguments(self.template, inputs)
        precision = "bf16" if self.half else "fp32"
        return computed(precision, self.device, lambda: functional_call(self.template, weights, *given))

    def _forward(self, inputs: Tree, keys: Tensor) -> Tree:
        """The outputs [l, B, ...] of each model for its own inputs [l, B, ...]."""
        buffers = {name: keys[:, number] for number, name in enumerate(self.keys)}
        buffers |= {f"{name}seen": seen.zero_() for name, seen in self.seen.items()}

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], *x: Tensor) -> Tree:
            return self._called((parameters, buffers), trees.like(inputs, x))

        return self._over_lanes(forward, self.weights, buffers, *trees.leaves(inputs))

    def _over_lanes(self, function: Callable[..., Tree], *arguments: Any) -> Tree:
        """`torch.vmap` of a function of a model's tensors. On a GPU one model alone is called as it is: its libraries
        have kernels for it, in the layout of the data, that they lack for groups."""
        if not self.alone:
            return self._attending(lambda: _vmapped(function, *arguments))
        with _own_forwards(self.rules):
            found = function(*tree_map(lambda tensor: tensor.squeeze(0), arguments))
        return trees.mapped(lambda tensor: tensor.unsqueeze(0), found)

    def _attending(self, call: Callable[[], Tree]) -> Tree:
        """The result of `call`, with attention computed as products: `torch.vmap` has no rule for its fused kernels.

        The first call finds out whether the model uses attention, because the context takes 50 microseconds.
        """
        if self.attends is False:
            return call()
        with sdpa_kernel(SDPBackend.MATH), _Attention() as seen:
            found = call()
        self.attends = seen.called
        return found


def _private(inputs: Tree) -> Iterator[Tree]:
    """Inputs for one model after another, which may write into them."""
    first = trees.cloned(inputs)
    before = [leaf._version for leaf in trees.leaves(first)]
    yield first
    writes = before != [leaf._version for leaf in trees.leaves(first)]
    while True:
        yield trees.cloned(inputs) if writes else inputs


class _Attention(TorchFunctionMode):
    """Finds out whether a block calls torch's attention."""

    called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called = self.called or func in ATTENTION
        return func(*args, **(kwargs or {}))


@contextmanager
def _own_forwards(layers: Sequence[nn.Module]) -> Iterator[None]:
    """A block in which these layers compute by the methods of their classes."""
    rules = [vars(layer).pop("forward") for layer in layers]
    try:
        yield
    finally:
        for layer, rule in zip(layers, rules, strict=True):
            layer.forward = rule


def _vmapped(function: Callable[..., Tree], *arguments: Any) -> Tree:
    """`torch.vmap` of a function whose result may be any tree, also of classes that torch does not know as trees."""
    made: list[Tree] = []

    def flat(*given: Any) -> tuple[Tensor, ...]:
        made[:] = [function(*given)]
        return tuple(trees.leaves(made[0]))

    tensors = torch.vmap(flat)(*arguments)
    return trees.like(made[0], tensors)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return _product(x, layer.weight, layer.bias)


def _embedded(layer: nn.Embedding, x: Tensor) -> Tensor:
    """Torch's rule gives padding no gradient in the first lane only."""
    found = nn.functional.embedding(x, layer.weight, scale_grad_by_freq=layer.scale_grad_by_freq)
    assert layer.padding_idx is not None
    return torch.where(x.eq(layer.padding_idx).unsqueeze(-1), found.detach(), found)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b, in the precision of autocast."""
    if torch.is_autocast_enabled(x.device.type):
        half = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(half), weight.to(half), None if bias is None else bias.to(half)
    return _Product.apply(x, weight, bias)


class _Product(torch.autograd.Function):
    """x W^T + b, with a weight gradient in the layout of W. Autograd's is transposed and 17 times slower to copy.

    Under `torch.vmap` W is [l, H, D]. The rule `vmap` is written out, because a generated one takes a millisecond per
    layer.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product = torch.matmul(x, weight.mT)
        return product if bias is None else product.add_(bias if weight.dim() == 2 else bias.unsqueeze(-2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.biased = inputs[2] is not None

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        [dy] = gradients
        rows, inputs = (_rows(each, weight) for each in (dy, x))
        needs_x = ctx.needs_input_grad[0]
        return dy @ weight if needs_x else None, rows.mT @ inputs, rows.sum(-2) if ctx.biased else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        def lanes(tensor: Tensor, dim: int | None) -> Tensor:
            return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        weight, bias = lanes(weight, in_dims[1]), None if bias is None else lanes(bias, in_dims[2])
        shape = lanes(x, in_dims[0]).shape[:-1]
        if in_dims[0] is None:
            x = x.reshape(-1, x.shape[-1])  # it may copy: here once, below for every lane
        rows = _rows(lanes(x, in_dims[0]), weight)
        y = _Product.apply(rows, weight, bias)
        # Not a view where the shape is right: in-place changes of a view make autograd copy it.
        return y if y.shape[:-1] == shape else y.view(*shape, y.shape[-1]), 0


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    """Reshape x [*lanes, ..., D] to [*lanes, n, D]; the weight [*lanes, H, D] gives the lanes, if any."""
    return x.reshape(*weight.shape[:-2], -1, x.shape[-1])
