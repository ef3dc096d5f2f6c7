"""A `collate` that draws random numbers, such as one that masks words, repeats them at every reading."""

from typing import Any

import pytest
import torch
from helpers.blobs import CPU
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from study.data.examples import Examples
from study.data.single_pass import InOrder, Request, SinglePass
from study.data.streaming import Stream
from workloads.base import Splits


def mixed(rows: list[Any]) -> tuple[Tensor, Tensor]:
    """Mixup: nothing happens to an example that is alone, so the digest of the data does not see it."""
    inputs, targets = default_collate(rows)
    share = torch.rand(())
    return share * inputs + (1 - share) * inputs.roll(1, 0), targets


def held() -> Examples:
    split = TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40))
    return Examples(Splits(split, split, split), mixed)


REQUESTS = [("train", [4, 1, 7], 5), ("train", [2, 3, 9], 5), ("val", [0, 1, 2]), ("val", [3, 4])]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_batch_is_the_same_whoever_reads_it_and_whatever_was_drawn_before(loaders):
    expected = [held().read(*request) for request in REQUESTS]
    torch.rand(3)
    before = torch.get_rng_state()
    assert same(list(Stream(held(), CPU, loaders).read(REQUESTS)), expected)
    assert same([held().read(*request) for request in REQUESTS[::-1]], expected[::-1])
    assert torch.equal(torch.get_rng_state(), before)


def test_other_steps_draw_other_numbers():
    one, two = (held().read("train", [4, 1, 7], key)[0] for key in (5, 6))
    assert not torch.equal(one, two)


def test_so_does_a_stream():
    def read() -> list[Any]:
        rows = [(torch.tensor([float(number)]), number) for number in range(20)]
        stream = InOrder(SinglePass(type("Rows", (), {"__iter__": lambda _: iter(rows)})(), 20, 8), mixed)
        return [stream[Request(0, place, 5)][:2] for place in (0, 5)]

    first = read()
    torch.rand(3)
    assert same(read(), first)
