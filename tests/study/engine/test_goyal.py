"""The large-batch recipe of Goyal et al. 2017, each item an equivalence that the engines keep.

(b), accumulation over unequal micro-batches, is in test_memory; (d), decay that is not rescaled with the loss, in
test_training.
"""

from __future__ import annotations

import pytest
import torch
from helpers.blobs import Blobs
from hypothesis import given
from hypothesis import strategies as st

from study.data.order import Batches
from study.data.resident import Data
from study.engine.serial import Run
from study.optimizers import OPTIMIZERS

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_scale_their_loss_by_1_over_k_make_one_device(make_study, workers):
    """(a) Section 3, remark 3: gradients of each worker's mean loss times 1/k, summed, are the global batch's."""
    space = {"learning_rate": 0.1, "momentum": 0.9}
    study = make_study(space=space, examples=64, batch_size=16)
    data = Data.of(Blobs().splits(CPU))
    trial = study.trial(0, space)
    shared, whole = (Run(study, Blobs(), data, trial, micro_batch) for micro_batch in (16 // workers, None))
    gradients = []
    for worker in range(workers):
        shared.model.zero_grad()
        (shared.losses(worker).mean() / workers).backward()
        gradients.append([p.grad.clone() for p in shared.model.parameters()])
    whole._descend(learning_rate=0.1)
    for p, *parts in zip(whole.model.parameters(), *gradients, strict=True):
        torch.testing.assert_close(p.grad, torch.stack(parts).sum(0))


@given(
    rates=st.lists(st.floats(1e-3, 10), min_size=2, max_size=20),
    momentum=st.floats(0, 0.99),
    slopes=st.lists(st.floats(-1, 1), min_size=20, max_size=20),
)
def test_momentum_correction_is_momentum_across_any_change_of_the_learning_rate(rates, momentum, slopes):
    """(c) Section 3, remark 2: v <- m (lr / lr before) v + lr g; w <- w - v is u <- m u + g; w <- w - lr u."""
    found = []
    for name in ("momentum", "folded_momentum"):
        optimizer, w = OPTIMIZERS[name], torch.zeros(1, dtype=torch.float64)
        state = optimizer.init(w)
        for step, (rate, slope) in enumerate(zip(rates, slopes, strict=False), start=1):
            h = {"learning_rate": rate, "momentum": momentum, "momentum_correction": 1.0}
            scalars = {key: torch.tensor(value, dtype=torch.float64) for key, value in h.items()}
            g = torch.tensor([slope], dtype=torch.float64)
            w, state = optimizer.update(w, g, state, scalars, torch.tensor(float(step)))
        found.append(float(w))
    assert found[0] == pytest.approx(found[1], rel=1e-9, abs=1e-9)


@given(examples=st.integers(1, 60), batch=st.integers(1, 60), workers=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_workers_share_one_shuffle_of_each_epoch(examples, batch, workers, seed):
    """(e) Section 3, remark 4: every epoch's shares, worker by worker and step by step, are the whole set once."""
    batches = Batches(seed, examples, min(batch, examples), CPU)
    steps = -(-3 * examples // batches.batch_size)
    seen = torch.cat([share for step in range(steps) for share in batches(step).tensor_split(workers)])
    epochs = seen[: 3 * examples].view(3, examples)
    assert all(torch.equal(epoch.sort().values, torch.arange(examples)) for epoch in epochs)
    assert examples < 12 or not torch.equal(epochs[0], epochs[1])
