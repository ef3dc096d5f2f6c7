"""The order of examples: a pure function of (seed, step)."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from study.data.order import Batches, epoch_permutation

CPU = torch.device("cpu")
sizes = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 2**63 - 1))
def test_concatenated_batches_are_concatenated_permutations(size, seed):
    examples, batch_size = size
    batches = Batches(seed, examples, batch_size, CPU)
    found = [batches(step) for step in range(-(-3 * examples // batch_size))]
    assert all(len(batch) == batch_size for batch in found)
    for epoch in torch.cat(found)[: 3 * examples].view(3, examples):
        assert epoch.sort().values.tolist() == list(range(examples))


@given(sizes, st.randoms(use_true_random=False))
def test_any_asking_order_gives_the_same_batches(size, random):
    examples, batch_size = size
    in_order, asked = Batches(1, examples, batch_size, CPU), Batches(1, examples, batch_size, CPU)
    expected = [in_order(step) for step in range(12)]
    steps = list(range(12)) * 2
    random.shuffle(steps)
    for step in steps:
        assert torch.equal(asked(step), expected[step])


def test_a_batch_straddles_two_epochs():
    batches = Batches(5, 10, 4, CPU)
    first, second = epoch_permutation(5, 0, 10), epoch_permutation(5, 1, 10)
    assert torch.equal(batches(2), torch.cat([first[8:], second[:2]]))
    assert torch.equal(batches(3), second[2:6])


def test_a_range_of_batches_is_the_batches_one_after_another():
    for step in (0, 3, 17):
        expected = torch.stack([Batches(5, 10, 4, CPU)(step + i) for i in range(9)])
        assert torch.equal(Batches(5, 10, 4, CPU).range(step, 9), expected)


def test_seeds_and_epochs_have_their_own_orders():
    orders = {tuple(epoch_permutation(seed, epoch, 50).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_permutations_are_uniform():
    """Every example comes first about equally often: 6,000 epochs of 6, within four standard deviations."""
    firsts = torch.tensor([int(epoch_permutation(seed, 0, 6)[0]) for seed in range(6000)])
    counts = torch.bincount(firsts, minlength=6)
    assert ((counts - 1000).abs() < 4 * (6000 * 5 / 36) ** 0.5).all()


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_an_impossible_batch_size_is_refused(batch_size):
    with pytest.raises(ValueError, match=f"got {batch_size}"):
        Batches(0, 10, batch_size, CPU)
