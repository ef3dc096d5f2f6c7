"""Writes a batch-size schedule for other trainers, in the formats that their own sources document.

A batch of this project holds examples; language models call them samples or sequences, of `tokens` tokens each.
"""

import csv
import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.labels import listed
from analysis.question.batch_schedules import BatchSchedule, Phases
from study.errors import UsageError


@dataclass(frozen=True)
class Written:
    """A schedule to write.

    Attributes:
        name: of its curve, for comments.
        points: (examples seen, batch size from there on), as declared.
        phases: the batch size of each update.
        schedule: gives the factor on the learning rate.
        tokens: in each example; None: unknown.
    """

    name: str
    points: Sequence[tuple[int, int]]
    phases: Phases
    schedule: BatchSchedule
    tokens: int | None = None

    @property
    def first(self) -> int:
        """The first batch size."""
        return self.phases.sizes[0]

    @property
    def factors(self) -> list[float]:
        """The factor on the learning rate in each phase."""
        return [self.schedule.factor(size, self.first) for size in self.phases.sizes]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A record for each phase: its first update and the examples seen before, from 0, the batch size, and the
        factor on the learning rate; the last record is the end of the budget."""
        phases, tokens = self.phases, self.tokens
        ends = [*zip(phases.starts, phases.sizes, self.factors, strict=True), (phases.steps, None, None)]
        records = []
        for step, size, factor in ends:
            seen = phases.examples(step)
            counted = {"step": step, "examples_seen": seen} | ({"tokens_seen": seen * tokens} if tokens else {})
            records.append({**counted, "batch_size": size, "learning_rate_factor": factor})
        return records

    @property
    def declared(self) -> list[tuple[int, int]]:
        """The points, with the first batch size at 0."""
        return [(0, self.first), *self.points]


Files = dict[str, str]
"""Name of a file -> its text."""


def as_csv(written: Written) -> Files:
    """A row for each phase (`Written.rows`)."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(written.rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(written.rows)
    return {"schedule.csv": text.getvalue()}


def as_megatron(written: Written) -> Files:
    """Arguments of Megatron-LM's pretrain scripts.

    `--step-batch-size-schedule` takes any steps. Its thresholds are tokens where the script knows its sequence length,
    which all language models do, and samples elsewhere. Older versions have `--rampup-batch-size` alone: equal
    increments after equal numbers of samples, which a ramp of this project is.
    """
    unit = written.tokens or 1
    steps = " ".join(f"{place * unit}:{size}" for place, size in written.declared)
    kind = f"tokens, {unit} in each sample" if written.tokens else "samples"
    factors = [f"{factor:g}" for factor in written.factors]
    lines = [
        f"# {written.name}; thresholds in {kind}",
        f'--step-batch-size-schedule "{steps}"',
        f"--train-samples {written.phases.examples(written.phases.steps)}",
        f"# without that argument (versions before 2026): {_rampup(written)}",
    ]
    if len({*factors}) > 1:
        lines.append(f"# Megatron-LM does not couple the learning rate to it: here it was times {', '.join(factors)}")
    return {"megatron.args": "\n".join(lines) + "\n"}


def _rampup(written: Written) -> str:
    """`--rampup-batch-size` with the same batch sizes, or why it has none."""
    places, sizes = zip(*written.declared, strict=True)
    increments = {b - a for a, b in itertools.pairwise(sizes)}
    count, end = len(places) - 1, places[-1]
    even = all(abs(place - end * k / count) <= 1 for k, place in enumerate(places)) if count else False
    if count and even and len(increments) == 1:
        return f"--rampup-batch-size {sizes[0]} {increments.pop()} {end} --global-batch-size {sizes[-1]}"
    return "--rampup-batch-size cannot express it: its increments, or the samples between them, are not equal"


def as_olmo(written: Written) -> Files:
    """A callback of OLMo-core's trainer. Batch sizes and durations are in tokens.

    It changes the batch size by whole factors alone, multiplies the learning rate by the square root of the factor, and
    waits until the batches processed are a multiple of it, at most as many batches.

    Raises:
        UsageError: the tokens of an example are unknown, a factor is not whole, or the coupling is another.
    """
    if written.tokens is None:
        raise UsageError("OLMo-core counts tokens, but the tokens of an example are unknown; give --tokens N.")
    sizes = [size for _, size in written.declared]
    odd = [f"{a} -> {b}" for a, b in itertools.pairwise(sizes) if b % a]
    if odd:
        raise UsageError(f"OLMo-core changes the batch size by whole factors alone, but got {listed(odd)}.")
    if len(sizes) > 1 and written.schedule.coupling != "square_root":
        raise UsageError(
            "OLMo-core multiplies the learning rate by the square root of the factor, but this schedule was trained "
            f"with batch_schedule.coupling={written.schedule.coupling}; choose square_root, or --format csv."
        )
    durations = ", ".join(f"Duration.tokens({place * written.tokens})" for place, _ in written.declared)
    batches = ", ".join(str(size * written.tokens) for size in sizes)
    return {
        "olmo.py": f"# {written.name}; for Adam and AdamW, and schedulers in tokens\n"
        "from olmo_core.train import Duration\n"
        "from olmo_core.train.callbacks import BatchSizeSchedulerCallback\n\n"
        "batch_size_scheduler = BatchSizeSchedulerCallback(\n"
        f"    batch_sizes=[{batches}],\n    schedule=[{durations}],\n)\n"
    }


def as_torchtitan(written: Written) -> Files:
    """A TOML file for each phase: torchtitan has one global batch size for a run, so each run goes on from the
    checkpoint of the one before. `training.steps` counts from the first run."""
    files = {}
    phases = written.phases
    ends = [*phases.starts[1:], phases.steps]
    for number, (size, end, factor) in enumerate(zip(phases.sizes, ends, written.factors, strict=True), start=1):
        files[f"stage-{number}.toml"] = (
            f"# {written.name}, stage {number} of {len(ends)}: keep the checkpoint folder of the stage before.\n"
            f"# optimizer.lr: {factor:g} times that of stage 1. lr_scheduler counts the steps of its own run: keep it\n"
            "# constant, or set its lengths by hand.\n"
            f"[training]\nglobal_batch_size = {size}\nsteps = {end}\n\n[checkpoint]\nenable = true\n"
        )
    return files


FORMATS: dict[str, Callable[[Written], Files]] = {
    "csv": as_csv,
    "megatron": as_megatron,
    "olmo": as_olmo,
    "torchtitan": as_torchtitan,
}
