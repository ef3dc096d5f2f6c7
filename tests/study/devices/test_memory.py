"""Micro-batches fit, accumulate to the large batch, and shrink when memory runs out; bf16 is another precision."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.blobs import CPU, Blobs
from helpers.desks import Desk, assert_near, assert_same_bits, full, room_for, trained
from hypothesis import given
from hypothesis import strategies as st

from study import store
from study.devices import generators, memory
from study.engine.run import Run
from study.user_code import activations

BLOBS = Blobs()
TOLERANCE = 1e-5  # relative, of every measured error after 12 updates


@pytest.fixture
def question(make_study):
    return make_study(batch_size=33, steps=12)


def run(study):
    return trained(study, Desk([study.trial(0, {"learning_rate": 0.1, "momentum": 0.9})]), workload=BLOBS)[0]


@pytest.mark.parametrize("micro_batch", [1, 4, 11, 17, 32])  # 33 = 8 x 4 + 1: the last may be smaller
def test_accumulation_equals_the_large_batch(question, micro_batch):
    whole, parts = run(question), run(replace(question, micro_batch=micro_batch))
    assert parts.micro_batch == micro_batch
    assert_near(parts, whole, TOLERANCE)


def test_running_out_of_memory_restarts_the_trial_with_half_the_micro_batch(question, monkeypatch):
    room_for(10, monkeypatch)
    curve = run(question)
    monkeypatch.undo()
    assert curve.micro_batch == 9  # 33 -> 17 -> 9
    assert_same_bits(curve, run(replace(question, micro_batch=9)))


def test_a_single_example_that_does_not_fit_ends_the_study(question, monkeypatch):
    monkeypatch.setattr(Run, "losses", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(question)
    said = memory.too_large(question, "cuda:0")
    assert said.startswith("one trial of tiny at batch size 33 does not fit on cuda:0: choose a smaller model")
    assert memory.too_large(question, "cuda:0", RuntimeError("no plan\nat all")) == f"{said} (no plan)"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true"),
    ],
)
def test_out_of_memory_has_many_names(error):
    assert memory.out_of_memory(error)


@pytest.mark.parametrize("message", ["CUDA error: an illegal memory access was encountered", "shapes differ"])
def test_other_errors_are_not_taken_for_want_of_memory(question, monkeypatch, message):
    def broken(self, part):
        raise RuntimeError(message)

    monkeypatch.setattr(Run, "losses", broken)
    with pytest.raises(RuntimeError, match=message):
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


GIB = 2**30


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 80 GiB whose numbers a test sets; `emptied` counts how often torch's cache was returned."""
    there = SimpleNamespace(free=10 * GIB, reserved=30 * GIB, allocated=25 * GIB, emptied=0)

    def empty_cache():
        there.emptied += 1

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (there.free, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: there.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: there.allocated)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    return there


def test_free_memory_is_what_no_process_holds_and_what_torch_keeps_for_reuse(gpu):
    assert memory.free_bytes("cuda:1") == 15 * GIB
    assert memory.free_bytes("cpu") == memory.device_bytes("cpu") > 0


@pytest.mark.parametrize(("free", "emptied"), [(79, 0), (40, 0), (39, 1), (0, 1)])
def test_an_order_takes_over_the_memory_of_the_one_before_unless_it_is_short(gpu, free, emptied):
    gpu.free = free * GIB
    memory.release_if_short("cuda:0")
    assert gpu.emptied == emptied


def test_micro_batches_do_not_depend_on_free_memory(monkeypatch):
    asked = []

    def properties(index):
        asked.append(index)
        return SimpleNamespace(total_memory=80 * GIB)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    assert [memory.device_bytes(device) for device in ("cuda", "cuda:0", "cuda:3")] == [80 * GIB] * 3
    assert asked == [0, 0, 3]


def test_the_generator_of_the_given_gpu_is_seeded(monkeypatch):
    current, seeded = [0], []

    @contextmanager
    def chosen(device):
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", chosen)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda key: seeded.append((current[-1], key)))
    with generators.restored():
        generators.seed(7, torch.device("cuda", 2))
        generators.seed(7, CPU)
    assert seeded == [(2, 7)]
    assert current == [0]


def test_what_autograd_saves_is_counted_once_and_without_parameters():
    # inputs 24, ReLU output 32, mask 32 and dropped 32 floats, log-probabilities 5 floats, target 8 bytes
    assert (
        4 * (24 + 32 + 5)
        < activations.saved_bytes(BLOBS, *BLOBS.splits(CPU).train)
        <= 4 * (24 + 4 * 32 + 2 * 5 + 2) + 64
    )


def test_a_later_run_keeps_the_micro_batch_of_the_first(tmp_path, make_study):
    started = make_study(micro_batch=4)
    store.open_study(tmp_path, started, {})
    question, _ = store.recorded(tmp_path, make_study())
    assert question["micro_batch"] == 4
    store.check(tmp_path, [make_study()])  # no other question


def test_bf16_is_near_fp32_and_is_not_fp32(question):
    full, half = run(question), run(replace(question, precision="bf16"))
    assert not np.array_equal(full.errors["val/loss"], half.errors["val/loss"])
    np.testing.assert_allclose(half.errors["val/loss"], full.errors["val/loss"], rtol=0.05)
