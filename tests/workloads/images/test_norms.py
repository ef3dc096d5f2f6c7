"""The norms of image networks are those of torch, and the same at every split of a batch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from study.data.order import places
from workloads.images.norms import NORMS, norm_layer
from workloads.layers import GhostBatchNorm, together

X = torch.randn(11, 6, 4, 5, generator=torch.Generator().manual_seed(0)) * 3 + 1


def made(norm, **options):
    """A norm of six channels with scales and shifts as after training."""
    layer = norm_layer(norm, **{"ghost_batch": 4, "groups": 3} | options)(6)
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, torch.full((6,), float(name == "weight")))
        nn.init.normal_(parameter)
    return layer


REFERENCES = {
    "ghost": lambda x, w, b: torch.cat([F.batch_norm(g, None, None, w, b, training=True) for g in (x[:4], x[4:])]),
    "group": lambda x, w, b: F.group_norm(x, 3, w, b),
    "layer": lambda x, w, b: F.layer_norm(x, x.shape[1:]) * w.view(6, 1, 1) + b.view(6, 1, 1),
}


@pytest.mark.parametrize("norm", REFERENCES)
def test_a_norm_is_that_of_torch(norm):
    layer = made(norm)
    torch.testing.assert_close(layer(X), REFERENCES[norm](X, layer.weight, layer.bias))


def test_no_norm_changes_nothing():
    layer = made("none")
    assert torch.equal(layer(X), X)
    assert not list(layer.parameters())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("batch", "devices", "micro_batch"), [(11, 1, 4), (11, 2, None), (8, 2, 4), (3, 1, 2)])
def test_parts_of_a_batch_are_the_whole(norm, batch, devices, micro_batch):
    """As the engine splits it: also batches smaller than a ghost batch, or no multiple of one."""
    layer, x = made(norm), X[:batch]
    parts = [part for share in places(batch, devices, micro_batch, together(layer, batch)) for part in share]
    assert len(parts) > 1 or (norm == "ghost" and batch < 8)
    expected = layer(x)
    layer.end_step(lambda seen: seen) if norm == "ghost" else None
    of_whole = [buffer.clone() for buffer in layer.buffers()]
    again = made(norm)
    again.load_state_dict({name: each for name, each in layer.state_dict().items() if "running" not in name}, False)
    torch.testing.assert_close(torch.cat([again(x[part]) for part in parts]), expected, rtol=1e-5, atol=1e-5)
    again.end_step(lambda seen: seen) if norm == "ghost" else None
    for found, buffer in zip(again.buffers(), of_whole, strict=True):
        torch.testing.assert_close(found, buffer)


@pytest.mark.parametrize("norm", NORMS)
def test_an_evaluation_judges_each_example_alone(norm):
    layer = made(norm)
    layer(X)
    layer.eval()
    torch.testing.assert_close(torch.cat([layer(x) for x in X.split(1)]), layer(X))


@pytest.mark.parametrize(
    ("norm", "options", "words"),
    [
        ("batch", {}, "unknown workload.norm 'batch'"),
        ("ghost", {"ghost_batch": 0}, "workload.ghost_batch must be a whole number of at least 1, but got 0"),
        ("group", {"groups": 1.5}, "workload.norm_groups must be a whole number of at least 1, but got 1.5"),
        ("group", {"groups": 4}, "must divide the 6 channels of every layer with a norm, but got 4; .* below it is 3"),
        ("group", {"groups": 32}, "but got 32; .* below it is 6"),
    ],
)
def test_refusals(norm, options, words):
    with pytest.raises(ValueError, match=words):
        norm_layer(norm, **options)(6)


def test_the_default_ghost_batch_is_that_of_the_paper():
    layer = norm_layer("ghost")(6)
    assert isinstance(layer, GhostBatchNorm)
    assert layer.group == 32
