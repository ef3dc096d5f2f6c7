"""Trial-steps per second: this engine beside what a user would write, measured in one interleaved run.

    python -m benchmarks.engine [--json FILE] [--models softmax,mlp] [--batch-sizes 2,8] [--optimizer adam] [--rounds 3]
        [--device cpu] [--precision tf32] [--seconds 0.3] [--made-up-data]

A   `DataLoader` + `nn.Module` + a library's optimizer (default: momentum), one trial at a time, with torch's defaults:
    all threads of a CPU; on a GPU, TF32 in convolutions. Language models draw windows of 64 tokens as nanoGPT does
B   the serial engine: one process per core, or one on the GPU, each with one thread, data in memory, `channels_last`
    and fused updates
C   this engine through its public interface: `Workers` train a study proposed by its `Tuner`

Rounds run A, B, C, A, B, C, ...; each figure is the median over rounds. B and C are both timed until the slower core
has finished its steps, so neither is credited with what a faster core could do meanwhile. The peak is that of an fp32
matrix product in as many processes as B has. All models and batch sizes take about 45 minutes on two cores.
`--precision` is that of B and C. `--seconds` shortens all measurements.
`--made-up-data` replaces the data sets by random numbers of the same shape, which take the same time, for machines that
lack the data.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib import import_module
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from study.config import preflight
from study.config.jobs import Job, parse_jobs
from study.data.resident import Data
from study.devices.cores import cores
from study.devices.machine import processor
from study.devices.placement import settle_arithmetic, usable
from study.devices.precision import settle
from study.engine.run import Run
from study.engine.trial.evaluation import initial_model
from study.records import PRECISIONS, Study
from study.search.points import point
from study.search.tuner import Tuner
from study.space import values
from study.workers.pool import TrialTooLarge, Workers
from study.workers.start import one_thread_environment
from workloads.base import Split, Splits, Workload
from workloads.data.datasets import DATASETS
from workloads.language.modelling import LanguageModelling
from workloads.user_code.importing import build

MODELS = {
    "softmax": ["workload=softmax_mnist"],
    "mlp": ["workload=fc_mnist", "workload.widths=[128]"],
    "mlp1024": ["workload=fc_mnist"],
    "cnn": ["workload=simple_cnn_mnist"],
    "resnet8": ["workload=resnet_cifar", "schedule=constant"],
    "transformer": ["workload=transformer_shakespeare", "schedule=constant"],
    "lstm": ["workload=lstm_shakespeare", "schedule=constant"],
}
RATE = 0.001
WRITTEN: dict[str, tuple[dict[str, float], Callable[[Iterable[torch.nn.Parameter]], Any]]] = {
    "momentum": ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9)),
    "adam": ({"beta1": 0.9}, lambda p: torch.optim.Adam(p, lr=RATE)),
    "lamb": ({"beta1": 0.9}, lambda p: import_module("pytorch_optimizer").Lamb(p, lr=RATE)),  # of the dev extra
}
"""Optimizer -> its fixed hyperparameters besides the learning rate, and the optimizer that a user would write."""
BATCH_SIZES: dict[str, tuple[int, ...]] = {"transformer": (2, 8, 32), "lstm": (2, 8, 32)}
"""Model -> its batch sizes; USUAL_BATCH_SIZES for the others."""
USUAL_BATCH_SIZES = (2, 8, 32, 128, 512, 2048)
LONG = 5
"""B and C are measured this many times longer than A, to reduce the effects of trial starts and of unequal cores."""
ON_A_GPU = 3
"""On a GPU, C runs this many times longer still: it builds its models one by one and records an update, which takes
seconds of the hours of a sweep."""
LEAST_STEPS = 30
"""Fewest steps of each process: the first step of a trial is slower than the many steps that follow in a sweep."""
TRIALS = 128  # enough lanes for any worker


class HardlyEvaluated:
    """A workload with only eight validation and test examples, because A and B do not evaluate."""

    def __init__(self, name: str, train_examples: int, workload: dict[str, Any], made_up: bool = False) -> None:
        self.name, self.train_examples, self.real = name, train_examples, build(workload)
        self.made_up = workload["dataset"] if made_up else None
        self.errors, self.hyperparameters = self.real.errors, self.real.hyperparameters
        self.model, self.loss = self.real.model, self.real.loss

    def splits(self, device: torch.device) -> Splits:
        """The real training set, and eight examples of the other splits."""
        if self.made_up is not None and isinstance(self.real, LanguageModelling):
            return made_up_windows(self.real, device)
        if self.made_up is not None:
            return made_up_splits(self.made_up, self.train_examples, device)
        train, val, test = self.real.splits(device)
        return Splits(train, (val[0][:8], val[1][:8]), (test[0][:8], test[1][:8]))


def made_up_splits(dataset: str, train_examples: int, device: torch.device, **_: Any) -> Splits:
    """A replacement of `workloads.data.datasets.splits`: random numbers in the shape of the data set."""
    shape, classes = DATASETS[dataset].shape, DATASETS[dataset].classes
    inputs = torch.randn(train_examples, *shape, device=device)
    targets = torch.randint(classes, (train_examples,), device=device)
    few = inputs[:8], targets[:8]
    return Splits((inputs, targets), few, few)


def made_up_windows(workload: LanguageModelling, device: torch.device) -> Splits:
    """A replacement of `LanguageModelling.splits`: random tokens."""
    shape = workload.train_examples, workload.context + 1
    tokens = torch.randint(workload.tokens, shape, device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    few = inputs[:8], targets[:8]
    return Splits((inputs, targets), few, few)


@contextmanager
def replaced_data() -> Iterator[None]:
    """A block in which all data are made up."""
    with (
        mock.patch("workloads.data.datasets.splits", made_up_splits),
        mock.patch.object(LanguageModelling, "splits", made_up_windows),
    ):
        yield


@cache
def paper_updates() -> Mapping[int, int]:
    """Batch size -> updates of 100 trials of the paper's ResNet-8 study at full budget."""
    jobs = parse_jobs(["workload=resnet_cifar", "preset=paper"])
    return {job.study.batch_size: 100 * job.study.train_steps for job in jobs}


def study_of(
    model: str, batch_size: int, optimizer: str, device: str, made_up: bool = False, precision: str = "fp32"
) -> tuple[Study, Job]:
    """A study without early stopping; its trials are evaluated once, at their end, on eight examples."""
    held = {"learning_rate": RATE, **WRITTEN[optimizer][0]}
    fixed = [f"search.space.{name}={value}" for name, value in held.items()]
    never = ["evaluation.first=1.0", "stopping=budget", f"search.trials={TRIALS}"]
    where = [f"batch_size={batch_size}", f"engine.device={device}", f"precision={precision}"]
    arguments = [*MODELS[model], f"optimizer={optimizer}", *fixed, *never, *where]
    with replaced_data() if made_up else nullcontext():
        [job] = preflight.settle(parse_jobs(arguments))
    real = dict(job.study.workload)
    wrapped = {"_target_": "benchmarks.engine.HardlyEvaluated", "workload": real, "made_up": made_up}
    wrapped |= {key: real[key] for key in ("name", "train_examples")}
    return replace(job.study, workload=wrapped), job


def one_device(asked: str) -> str:
    """The first of several GPUs, so that A, B and C run on the same one."""
    device = usable(asked)
    return "cuda:0" if device == "cuda" else device


def rate(step: Callable[[], object], device: str, seconds: float, calls: int = 0) -> float:
    """Calls per second after a warm-up, of this many calls or (0) over this many seconds."""
    synchronise = partial(torch.cuda.synchronize, device) if device != "cpu" else lambda: None
    step()
    step()
    synchronise()
    count, start = 0, time.perf_counter()
    while count < calls or (not calls and (count < 2 or time.perf_counter() - start < seconds)):
        step()
        count += 1
    synchronise()
    return count / (time.perf_counter() - start)


@lru_cache(maxsize=1)
def loaded(workload: str) -> tuple[Workload, Splits]:
    """A workload and its data, cached between rounds so that all processes start to measure at the same time."""
    built = build(json.loads(workload))
    return built, built.splits(torch.device("cpu"))


def tensors_of(split: Split) -> tuple[Tensor, Tensor]:
    """The inputs and the targets of a split of tensors, which all measured workloads have."""
    assert isinstance(split, tuple)
    return split


def written_batches(train: tuple[Tensor, Tensor], batch_size: int, pinned: bool) -> Iterator[Any]:
    """The batches of the loop that a user would write: of a `DataLoader`; windows of tokens drawn as nanoGPT does."""
    if not train[0].is_floating_point():
        while True:
            chosen = torch.randint(len(train[0]), (batch_size,)).tolist()
            batch = [torch.stack([tokens[i] for i in chosen]) for tokens in train]
            yield [tokens.pin_memory() for tokens in batch] if pinned else batch
    loader = DataLoader(TensorDataset(*train), batch_size, shuffle=True, drop_last=True, pin_memory=pinned)
    yield from chain.from_iterable(repeat(loader))


def loop_a(device: str, seconds: float, study: Study) -> float:
    """Steps per second of the loop that a user would write."""
    workload, splits = loaded(json.dumps(study.workload))
    model = workload.model().to(device)
    optimizer = WRITTEN[study.optimizer][1](model.parameters())
    batches = written_batches(tensors_of(splits.train), study.batch_size, pinned=device != "cpu")

    def step() -> None:
        x, y = next(batches)
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()
        optimizer.step()

    return rate(step, device, seconds)


def plain_rate(device: str, seconds: float, steps: int, study: Study) -> float:
    """Steps per second of one tuned plain process, over this many steps or (0) over this many seconds."""
    workload, splits = loaded(json.dumps(study.workload))
    settle(study.precision)
    data = Data.of(splits, torch.device(device))
    run = Run(study, workload, data, study.trial(0, values(study.search.space, point(study, 0))))

    def step() -> None:
        run.update(RATE)
        run.step += 1

    return rate(step, device, seconds, steps)


def loop_b(study: Study, tuned: Pool, brief: float, device: str, seconds: float) -> float:
    """Steps per second of one tuned plain process per core; all make the same number of steps.

    Arguments:
        brief: a first estimate of their steps per second.
    """
    count = len(tuned.processes)
    steps = max(LEAST_STEPS, round(LONG * seconds * brief / count))
    return count * min(tuned.each(partial(plain_rate, device, seconds, steps), study))


def peak(device: str, seconds: float, _: Study) -> float:
    """fp32 FLOP per second of one one-thread process."""
    settle("fp32")
    width = 1536 if device == "cpu" else 4096
    a, b = torch.randn(2, width, width, device=device)
    return rate(lambda: a @ b, device, seconds) * 2 * width**3


class Pool:
    """Processes that run the same measurement at the same time."""

    def __init__(self, count: int, tuned: bool) -> None:
        context, ready = mp.get_context("spawn"), settle_arithmetic if tuned else None
        self.processes = [ProcessPoolExecutor(1, context, ready) for _ in range(count)]
        with one_thread_environment() if tuned else nullcontext():
            self.each(int, 0)  # start them now, in this environment

    def each(self, call: Callable[[Any], float], study: Any) -> list[float]:
        """The measurement of each process."""
        return [future.result() for future in [process.submit(call, study) for process in self.processes]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A pool that the end of Python finds open may be woken through a pipe that is closed already.
        for process in self.processes:
            process.shutdown()


class Search:
    """The trials of one study, for the workers."""

    def __init__(self, study: Study) -> None:
        self.study, self.tuner = study, Tuner(study)
        self.checkpoints: dict[int, bytes] = {}
        self.folder = Path()  # only commands keep files
        self.ask, self.step_limit, self.learns = self.tuner.ask, self.tuner.step_limit, self.tuner.learns

    def reached(self, steps: Mapping[int, int]) -> None:
        """Progress is not shown."""

    def queues(self) -> list[Search]:
        return [self]

    def prepare(self) -> bool:
        return False

    def too_large(self, queue: Any, reason: str) -> None:
        raise RuntimeError(reason)


def loop_c(study: Study, workers: Workers, step_seconds: float, seconds: float) -> float:
    """Trial-steps per second of the engine: wall time from the first request for a trial to the last curve.

    Unlike B, the time includes the start of the trials.
    """
    lanes = workers.cost_of(study).lanes
    longer = LONG if workers.placement.device == "cpu" else LONG * ON_A_GPU
    steps = max(LEAST_STEPS, round(longer * seconds / step_seconds / lanes))
    search = replace(study.search, trials=lanes * workers.count)
    bounded = replace(study, budget=replace(study.budget, epochs=0, steps=steps), search=search)
    asked = Search(bounded)
    trained, start = 0, time.perf_counter()
    for _, curve in workers.train(asked):
        asked.tuner.tell(curve)
        trained += int(curve.steps[-1])
    return trained / (time.perf_counter() - start)


def flop_per_step(study: Study) -> int:
    """Floating-point operations of matrix products and convolutions in one update."""
    workload = build(study.workload)
    inputs, targets = tensors_of(workload.splits(torch.device("cpu")).train)
    model = initial_model(workload, study.trial(0, {}), torch.device("cpu"))
    examples = min(study.batch_size, 8)
    with FlopCounterMode(display=False) as counter:
        workload.loss(model(inputs[:examples]), targets[:examples]).mean().backward()
    return counter.get_total_flops() * study.batch_size // examples


def measured(
    study: Study, job: Job, plain: Pool, tuned: Pool, device: str, count: int, seconds: float
) -> dict[str, Any]:
    """The figures of one model and batch size, from `count` rounds."""
    with Workers(job.placement) as workers:
        [cost] = workers.measure([study])
        if isinstance(cost, TrialTooLarge):
            raise cost
        brief = sum(tuned.each(partial(plain_rate, device, seconds, 0), study))

        def one_round() -> tuple[float, float, float, float]:
            a = sum(plain.each(partial(loop_a, device, seconds), study))
            b, c = loop_b(study, tuned, brief, device, seconds), loop_c(study, workers, cost.step, seconds)
            return a, b, c, sum(tuned.each(partial(peak, device, seconds), study))

        one_round()  # untimed, so that every process has loaded its data
        rounds = [one_round() for _ in range(count)]
    a, b, c, most = (statistics.median(values) for values in zip(*rounds, strict=True))
    ratios = {f"c_over_{'ab'[i]}": statistics.median(row[2] / row[i] for row in rounds) for i in (0, 1)}
    names = {"optimizer": study.optimizer, "batch_size": study.batch_size, "arithmetic": study.arithmetic}
    names |= {"precision": study.precision}
    rates = {"lanes": cost.lanes, "a": a, "b": b, "c": c}
    return names | rates | ratios | {"share_of_peak": c * flop_per_step(study) / most, "rounds": rounds}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batch-sizes", help="such as 2,8; default: those of each model")
    parser.add_argument("--optimizer", choices=WRITTEN, default="momentum")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto", help="such as cpu or cuda:1; default: a GPU if there is one")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of a measurement of A; B and C take 5 times as many"
    )
    parser.add_argument("--made-up-data", action="store_true")
    chosen = parser.parse_args()
    device = one_device(chosen.device)
    torch.set_num_threads(1)
    with Pool(1, tuned=False) as plain, Pool(cores() if device == "cpu" else 1, tuned=True) as tuned:
        rows = list(table(chosen, device, plain, tuned))
    if chosen.json:
        gpu = None if device == "cpu" else torch.cuda.get_device_name(device)
        machine = {"processor": processor(), "gpu": gpu, "torch": torch.__version__, "platform": platform.platform()}
        chosen.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


def table(chosen: argparse.Namespace, device: str, plain: Pool, tuned: Pool) -> Iterator[dict[str, Any]]:
    """Print the rows of the table and give them."""
    print("model      batch   arithmetic lanes   A steps/s   B steps/s   C steps/s     C/A     C/B   of peak")
    for model in chosen.models.split(","):
        asked = map(int, chosen.batch_sizes.split(",")) if chosen.batch_sizes else None
        for batch_size in asked or BATCH_SIZES.get(model, USUAL_BATCH_SIZES):
            study, job = study_of(model, batch_size, chosen.optimizer, device, chosen.made_up_data, chosen.precision)
            row = {"model": model, **measured(study, job, plain, tuned, device, chosen.rounds, chosen.seconds)}
            print(
                f"{model:10} {batch_size:5} {row['arithmetic']:>10} {row['lanes']:5} "
                f"{row['a']:11,.1f} {row['b']:11,.1f} {row['c']:11,.1f} "
                f"{row['c_over_a']:7.2f} {row['c_over_b']:7.2f} {row['share_of_peak']:9.1%}",
                flush=True,
            )
            yield row


if __name__ == "__main__":
    main()
