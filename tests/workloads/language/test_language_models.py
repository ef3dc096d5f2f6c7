"""Transformers and LSTMs compute what the layers of torch do with the same weights, and start as documented."""

import math

import pytest
import torch
from helpers.users.windows import COMMON, SHAPE
from torch import nn

from workloads.language.lstm import LstmLm
from workloads.language.transformer import POSITIONS, SIZES, TransformerLm
from workloads.layers import Attention, CausalAttention
from workloads.transformer_layers import ACTIVATIONS, NORMS, Rotary, sinusoids

TOKENS = torch.randint(256, (3, 8), generator=torch.Generator().manual_seed(0))


def transformer(**options):
    torch.manual_seed(0)
    return TransformerLm(**COMMON | SHAPE | options).model().eval()


def lstm(**options):
    torch.manual_seed(0)
    return LstmLm(**COMMON | {"width": 12} | options).model().eval()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_place", ["pre", "post"])
def test_layers_are_those_of_torch(norm_place, activation):
    """The whole stack, outputs and gradients, with random biases and norms as after training."""
    model = transformer(norm_place=norm_place, activation=activation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    layers = [
        nn.TransformerEncoderLayer(
            16, 2, 24, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_place == "pre"
        )
        for _ in range(2)
    ]
    for ours, theirs in zip(model.layers, layers, strict=True):
        pairs = {
            theirs.self_attn.in_proj_weight: ours.attention.qkv.weight,
            theirs.self_attn.in_proj_bias: ours.attention.qkv.bias,
            **same(theirs.self_attn.out_proj, ours.attention.out),
            **same(theirs.linear1, ours.mlp[0]),
            **same(theirs.linear2, ours.mlp[2]),
            **same(theirs.norm1, ours.norms[0]),
            **same(theirs.norm2, ours.norms[1]),
        }
        with torch.no_grad():
            for parameter, value in pairs.items():
                parameter.copy_(value)
    x = torch.randn(3, 8, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = other
    for layer in layers:
        expected = layer(expected, src_mask=mask, is_causal=True)
    found = model.layers(one)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        model.layers[0].attention.qkv.weight.grad, layers[0].self_attn.in_proj_weight.grad, rtol=1e-4, atol=1e-3
    )


def same(theirs, ours):
    return {theirs.weight: ours.weight, theirs.bias: ours.bias}


@pytest.mark.parametrize(
    "options",
    [
        *({"positions": positions, "norm_place": place} for positions in POSITIONS for place in ("pre", "post")),
        *({"norm": norm, "activation": act} for norm, act in zip(NORMS, ACTIVATIONS, strict=True)),
        {"tied": False},
    ],
    ids=str,
)
def test_a_token_is_predicted_from_those_up_to_it(options):
    model = transformer(**options)
    changed = TOKENS.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 256
    one, other = model(TOKENS), model(changed)
    assert one.shape == (3, 8, 257)
    torch.testing.assert_close(one[:, :5], other[:, :5])
    assert not torch.isclose(one[:, 5:], other[:, 5:]).all(-1).any()
    torch.testing.assert_close(model(TOKENS[:, :5]), one[:, :5])
    reversed_start = TOKENS.clone()
    reversed_start[:, :4] = TOKENS[:, :4].flip(1)
    assert not torch.isclose(model(reversed_start)[:, 4], one[:, 4]).all(), "the order of tokens must count"


def test_the_parts_of_the_whole_model():
    """Embedding, positions, layers, last norm and tied head, by hand."""
    model = transformer(positions="sinusoidal")
    x = nn.functional.embedding(TOKENS, model.embedding.weight) * 4 + sinusoids(8, 16)
    expected = model.norm(model.layers(x)) @ model.embedding.weight.T
    torch.testing.assert_close(model(TOKENS), expected)
    learned = transformer()
    x = learned.embedding.weight[TOKENS] + learned.positions.weight
    torch.testing.assert_close(learned(TOKENS), learned.norm(learned.layers(x)) @ learned.embedding.weight.T)


def test_rotary_scores_depend_on_the_distance_alone():
    rotary, (q, k) = Rotary(12, 6), torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    queries, keys = (rotary(each.expand(1, 1, 12, 6))[0, 0] for each in (q, k))
    scores = queries @ keys.T
    for distance in range(12):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    # As complex numbers: position 5 turns pair number i by 5 * 10000^(-i / 3).
    turned = torch.complex(q[:3], q[3:]) * torch.polar(torch.ones(3), 5 * 10_000 ** (-torch.arange(3) / 3))
    torch.testing.assert_close(queries[5], torch.cat([turned.real, turned.imag]))


@pytest.mark.parametrize("layer", [Attention, CausalAttention])
def test_attention_by_products_is_that_of_torch(layer):
    q, k, v = (each.requires_grad_() for each in torch.randn(3, 2, 4, 9, 8).unbind())
    one, other = layer()(q, k, v), layer.by_products(q, k, v)
    torch.testing.assert_close(one, other)
    for a, b in zip(*(torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (one, other)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


PARAMETERS = {
    # Per layer 4 W^2 + 2 W M of weights, 4 W + W + M of biases and 4 W of norms; M = 4 W: 12 W^2 + 13 W.
    "base": 6 * (12 * 512**2 + 13 * 512) + 2 * 512,
    "shallow": 2 * (12 * 512**2 + 13 * 512) + 2 * 512,
    "narrow_and_shallow": 2 * (12 * 256**2 + 13 * 256) + 2 * 256,
    "wide": 6 * (12 * 1024**2 + 13 * 1024) + 2 * 1024,
    "small": 2 * (12 * 128**2 + 13 * 128) + 2 * 128,
}


@pytest.mark.parametrize("size", SIZES)
def test_parameters_of_the_sizes(size):
    workload = TransformerLm(**COMMON, size=size, tokenizer="bpe", vocabulary=1000)
    with torch.device("meta"):
        found = sum(parameter.numel() for parameter in workload.model().parameters())
    assert found == PARAMETERS[size] + (1000 + 8) * SIZES[size].width


def test_numbers_replace_those_of_the_size():
    assert TransformerLm(**COMMON, size="base", depth=3, heads=4).shape == (512, 3, 4, 2048)


def test_initial_weights_of_gpt_2():
    model = transformer(width=128, mlp_width=512, depth=8).requires_grad_(False)
    assert model.embedding.weight.std() == pytest.approx(0.02, rel=0.05)
    for layer in model.layers:
        for inner, last in ((layer.attention.qkv, layer.attention.out), (layer.mlp[0], layer.mlp[2])):
            assert inner.weight.std() == pytest.approx(0.02, rel=0.05)
            assert last.weight.std() == pytest.approx(0.02 / 4, rel=0.05)
            assert not inner.bias.any()
            assert not last.bias.any()


def test_initial_weights_of_the_paper():
    model = transformer(width=128, mlp_width=512, norm_place="post", positions="sinusoidal").requires_grad_(False)
    assert model.embedding.weight.std() == pytest.approx(128**-0.5, rel=0.05)
    for part in model.layers[0].attention.qkv.weight.chunk(3):
        assert part.abs().max() == pytest.approx(math.sqrt(6 / 256), rel=0.01)
    assert model.layers[0].mlp[0].weight.abs().max() == pytest.approx(math.sqrt(6 / 640), rel=0.01)


@pytest.mark.parametrize("make", [transformer, lstm])
def test_a_model_starts_near_chance_and_drops_in_training_only(make):
    losses = nn.functional.cross_entropy(make()(TOKENS).detach().flatten(0, 1), TOKENS.roll(-1, 1).flatten())
    assert losses == pytest.approx(math.log(257), abs=0.3)
    model = make(dropout=0.5)
    assert torch.equal(model(TOKENS), model(TOKENS))
    assert not torch.equal(model(TOKENS), model.train()(TOKENS))


@pytest.mark.parametrize("options", [{}, {"depth": 2}, {"embedding_width": 5}, {"depth": 2, "tied": True}], ids=str)
def test_the_lstm_is_that_of_torch(options):
    model = lstm(**options)
    depth = options.get("depth", 1)
    theirs = nn.LSTM(options.get("embedding_width", 12), 12, depth, batch_first=True)
    with torch.no_grad():
        for number, layer in enumerate(model.lstms):
            for name, parameter in layer.named_parameters():
                theirs.get_parameter(name.replace("l0", f"l{number}")).copy_(parameter)
    expected = model.head(theirs(model.embedding(TOKENS))[0])
    torch.testing.assert_close(model(TOKENS), expected)
    assert (model.head.weight is model.embedding.weight) == options.get("tied", False)


def test_initial_weights_of_the_lstm():
    model = lstm(width=100).requires_grad_(False)
    [layer] = model.lstms
    assert layer.weight_hh_l0.abs().max() == pytest.approx(0.1, rel=0.01)
    forget = torch.arange(400) // 100 == 1
    assert torch.equal(layer.bias_ih_l0, forget.float())
    assert not layer.bias_hh_l0.any()
    assert model.embedding.weight.abs().max() == pytest.approx(0.1, rel=0.01)
