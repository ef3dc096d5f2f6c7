"""The large-batch recipe of Goyal et al. 2017, each item an equivalence that the engines keep.

(b), accumulation over unequal micro-batches, is in test_memory; (d), decay that is not rescaled with the loss, in
test_training; (e), one shuffle of each epoch for all workers, whose shares are parts of a batch, in test_order.
"""

import pytest
import torch
from helpers.blobs import Blobs
from hypothesis import given
from hypothesis import strategies as st

from study.engine.run import Run
from study.optimizers import OPTIMIZERS


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_scale_their_loss_by_1_over_k_make_one_device(make_study, workers):
    """(a) Section 3, remark 3: gradients of each worker's mean loss times 1/k, summed, are the global batch's."""
    space = {"learning_rate": 0.1, "momentum": 0.9}
    study = make_study(space=space, examples=64, batch_size=16)
    trial = study.trial(0, space)
    shared, whole = (Run(study, Blobs(), Blobs().data(), trial, micro_batch) for micro_batch in (16 // workers, None))
    gradients = []
    for worker in range(workers):
        shared.model.zero_grad()
        (shared.losses(worker)[0].mean() / workers).backward()
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
