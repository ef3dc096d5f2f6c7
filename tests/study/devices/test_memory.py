"""Micro-batches fit, accumulate to the large batch, and shrink when memory runs out; bf16 is another precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from study import store
from study.data.resident import Data
from study.devices import memory
from study.engine import serial
from study.records import Budget
from workloads.base import Splits, classification_error, cross_entropy_error
from workloads.layers import Dropout

TOLERANCE = 1e-5  # relative, of every measured error after 12 updates


class Small:
    """Three classes in six dimensions, with dropout."""

    name = "tiny"
    train_examples = 64
    hyperparameters = ()

    @property
    def errors(self):
        return {"classification_error": classification_error, "loss": cross_entropy_error}

    def splits(self, device):
        generator = torch.Generator().manual_seed(0)
        return Splits(
            *(
                (torch.randn(n, 6, generator=generator), torch.randint(3, (n,), generator=generator))
                for n in (64, 40, 20)
            )
        )

    def model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), Dropout(0.4), nn.Linear(16, 3))

    def loss(self, outputs, targets):
        return cross_entropy_error(outputs, targets)


class Once(serial.Proposals):
    """One trial, its whole budget."""

    def __init__(self, study):
        self.study = study
        self.trials = [study.trial(0, {"learning_rate": 0.1, "momentum": 0.9})]

    def ask(self, wait):
        return self.trials.pop() if self.trials else None

    def step_limit(self, index):
        return self.study.train_steps


@pytest.fixture
def question(make_study):
    return make_study(stopping="budget", batch_size=33, budget=Budget(epochs=0, steps=12))


def run(study):
    [curve] = serial.train(study, Small(), Data.of(Small().splits(torch.device("cpu"))), Once(study))
    return curve


@pytest.mark.parametrize("micro_batch", [1, 4, 11, 17, 32])  # 33 = 8 x 4 + 1: the last may be smaller
def test_accumulation_equals_the_large_batch(question, micro_batch):
    whole, parts = run(question), run(replace(question, micro_batch=micro_batch))
    assert parts.micro_batch == micro_batch
    for name, errors in whole.errors.items():
        if name.endswith("/loss"):
            np.testing.assert_allclose(parts.errors[name], errors, rtol=TOLERANCE, err_msg=name)


def test_running_out_of_memory_restarts_the_trial_with_half_the_micro_batch(question, monkeypatch):
    losses = serial.Run.losses

    def bounded(self, part):
        if self.parts[part].stop - self.parts[part].start > 10:
            raise torch.OutOfMemoryError("no room")
        return losses(self, part)

    monkeypatch.setattr(serial.Run, "losses", bounded)
    curve = run(question)
    monkeypatch.undo()
    assert curve.micro_batch == 9  # 33 -> 17 -> 9
    expected = run(replace(question, micro_batch=9))
    for name, errors in expected.errors.items():
        np.testing.assert_array_equal(curve.errors[name], errors)


def test_a_single_example_that_does_not_fit_ends_the_study(question, monkeypatch):
    def full(self, part):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(serial.Run, "losses", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(question)
    said = memory.too_large(question, "cuda:0")
    assert said.startswith("one trial of tiny at batch size 33 does not fit on cuda:0: choose a smaller model")
    assert memory.too_large(question, "cuda:0", RuntimeError("no plan\nat all")) == f"{said} (no plan)"


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("GET was unable to find an engine to execute this computation"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`"), True),
        (RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_out_of_memory_has_many_names(error, full):
    assert memory.out_of_memory(error) is full


def test_other_errors_are_not_taken_for_want_of_memory(question, monkeypatch):
    def broken(self, part):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(serial.Run, "losses", broken)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(question)


@given(st.integers(1, 100_000), st.floats(1, 1e9), st.floats(1e6, 1e12))
def test_micro_batches_cover_the_batch_in_equal_parts(batch_size, example, room):
    micro = memory.micro_batch(batch_size, example, room)
    parts = -(-batch_size // micro)
    assert 1 <= micro <= batch_size
    assert (parts - 1) * micro < batch_size <= parts * micro
    assert micro == 1 or micro * example * memory.WORKING_SET <= memory.STEP_SHARE * room
    workers = memory.most_workers(micro, example, room)
    assert workers == 1 or workers * micro * example * memory.WORKING_SET <= memory.SHARE * room * (1 + 1e-9)


def test_what_autograd_saves_is_counted_once_and_without_parameters():
    inputs, targets = Small().splits(torch.device("cpu")).train
    # inputs 6, ReLU output 16, mask 16 and dropped 16 floats, log-probabilities 3 floats, target 8 bytes
    assert 4 * (6 + 16 + 3) < memory.saved_bytes(Small(), inputs, targets) <= 4 * (6 + 4 * 16 + 2 * 3 + 2) + 64


def test_a_later_run_keeps_the_micro_batch_of_the_first(tmp_path, make_study):
    started = make_study(micro_batch=4)
    store.open_study(tmp_path, started, {})
    question, _ = store.held(tmp_path, make_study())
    assert question["micro_batch"] == 4
    store.check(tmp_path, [make_study()])  # no other question


def test_bf16_is_near_fp32_and_is_not_fp32(question):
    full, half = run(question), run(replace(question, precision="bf16"))
    assert not np.array_equal(full.errors["val/loss"], half.errors["val/loss"])
    np.testing.assert_allclose(half.errors["val/loss"], full.errors["val/loss"], rtol=0.05)
