"""Which column is what: roles, metrics and hyperparameters, by their names or as the user says."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from analysis.counting import NUMBER
from analysis.question.columns import TABLE_COLUMNS
from study.exchange.importing import ImportRefused
from study.exchange.readers.wandb_files import STEP
from workloads.suggest import suggest

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "eval": "val"}
SPLITS |= {"evaluation": "val", "dev": "val", "test": "test"}
"""Word in the name of a metric -> the split of the data."""
ROLES: dict[str, tuple[str, ...]] = {
    "run": ("run", "run_id", "run_name", "run_uuid", "trial", "trial_id", "name", "experiment", "exp_name", "exp_id"),
    "step": (
        *("step", "global_step", "steps", "iteration", "iter", "iterations", "iters", "update", "updates"),
        *("num_updates", "train_step", "training_step", "trainer_global_step", "train_global_step"),
    ),
    "epoch": ("epoch", "epochs"),
    "examples": ("examples", "examples_seen", "samples_seen", "images_seen", "tokens_seen", "consumed_samples"),
    "batch_size": (
        *("global_batch_size", "effective_batch_size", "total_batch_size", "global_train_batch_size"),
        *("batch_size", "train_batch_size", "batchsize", "bs"),
    ),
    "optimizer": (
        "optimizer",
        "optimiser",
        "optim",
        "optimizer_name",
        "optimizer_type",
        "opt",
        "optim_name",
        "opt_name",
    ),
    "status": ("status", "state"),
    "seed": ("seed", "random_seed", "rng_seed"),
    "workload": ("workload", "task"),
    "dataset": ("dataset", "data_set", "dataset_name", "data"),
    "model": ("model", "model_name", "arch", "architecture"),
    "train_examples": ("train_examples", "num_train_examples", "train_set_size", "num_training_examples"),
    "train_steps": ("train_steps", "max_steps", "total_steps", "num_steps", "num_train_steps", "max_iters"),
    "first_bad_step": ("first_bad_step",),
    "tokens_per_example": ("tokens_per_example",),
    "drop_last": ("drop_last", "dataloader_drop_last", "drop_last_batch", "drop_remainder"),
    "split": ("split", "phase", "subset", "data_split", "partition"),
    "metric": ("metric", "tag", "metric_name", "key"),
    "value": ("value", "metric_value"),
}
"""What a column or setting can be -> the names by which it is recognised, the first one that is there."""
OF_SETTINGS: tuple[str, ...] = ("workload", "optimizer", "batch_size", "dataset", "model", "seed", "status")
OF_SETTINGS += ("train_examples", "train_steps", "first_bad_step", "tokens_per_example", "drop_last")
"""Roles that settings of a run can have."""
NAMES = ("workload", "optimizer")
"""Roles whose values are names, also if they look like numbers."""
GOES_ON = re.compile(r"[ _]?(?:[xX×^]|\*\*?)[ _]?\d+|[.,]?\d+|[kKmMgG](?![A-Za-z])")
"""What makes another number of the digits before it: a product, a power, a separator of thousands, a unit."""
WHOLE_BATCH = ("global_batch_size", "effective_batch_size", "total_batch_size", "global_train_batch_size")
"""Names of batch sizes that certainly count the examples of a whole update."""
PARTS: tuple[str, ...] = (
    *("gradient_accumulation_steps", "gradient_accumulation", "grad_accumulation_steps", "grad_accum_steps"),
    *("grad_accum", "accumulate_grad_batches", "accumulation_steps", "accum_steps", "accum_iter", "accum"),
    *("world_size", "num_gpus", "n_gpus", "ngpus", "n_gpu", "gpus", "num_devices", "n_devices", "num_processes"),
)
"""Names of the number of parts of a batch: a batch size beside it may be that of one part."""
POSITIONS = ("step", "epoch", "examples")
"""Roles that say how far training was; the first one that is there counts."""
SHORT = {"lr": "learning_rate", "wd": "weight_decay"}
"""Common short names of hyperparameters."""
NO_METRICS: tuple[str, ...] = (
    "lr",
    "learning_rate",
    "epoch",
    "step",
    "global_step",
    "grad_norm",
    "runtime",
    "time",
    "steps_per_second",
)
NO_METRICS += ("samples_per_second", "examples", "samples", "size", "batch_size", "steps")
"""Quantities with the name of a split that are no errors."""
LABELS: tuple[str, ...] = (
    *("created", "runtime", "duration", "wall_time", "walltime", "timestamp", "time", "start_time", "end_time", "date"),
    *("relative_time", "host", "hostname", "user", "notes", "tags", "sweep", "agent", "commit", "git_hash", "group"),
    *("output_dir", "log_dir", "logdir", "save_dir", "artifact_uri", "experiment_id", "source_type", "source_name"),
    *("run", "run_id", "run_uuid", "run_name", "name", "id", "index", "trial", "trial_id", "line", "device"),
    *("exp_name", "exp_id", "experiment", "lifecycle_stage", "job_id", "project"),
    *("train_time", "training_time", "elapsed", "seconds", "total_flos", "grad_norm"),
)
"""Names of what describes a run but is no hyperparameter."""
OF_SPEED = ("_runtime", "_per_second", "_per_sec")
"""Ends of such names, as in `train_samples_per_second`."""
OF_WANDB = (STEP, "_runtime", "_timestamp", "_wandb")
"""Columns that W&B adds to a history; other names that begin with `_` are the user's."""
OF_EXPORT = {"repeat": 0, "budget_multiple": 1, "stage": 0, "rerun": None, "rule": None, "base_batch_size": None}
"""Columns of `study export` that identify a search -> their values in the first one, which alone is imported."""
FROM_EXPORT: tuple[str, ...] = (
    *OF_EXPORT,
    "search",
    "certify",
    "goal_metric",
    "goal_threshold",
    "end",
    "steps_to_goal",
    "least_error",
    "counted",
    "exact",
)
FROM_EXPORT += ("seconds_training", "seconds_evaluation")
"""Columns of `study export` that follow from the others."""


@dataclass(frozen=True)
class Asked:
    """What the user says about names.

    Attributes:
        columns: name -> the columns that it is read from (`--map`); several form the name of a run, or are the factors
            of a batch size, numbers among them.
        values: name -> a value that holds for all runs (`--set`).
        pattern: names in the name of a run (`--run-name`), such as `{optimizer}_bs{batch_size}`; None: none.
        size: the setting whose values are workloads of their own (`--size`); None: none.
    """

    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    pattern: str | None = None
    size: str | None = None

    @classmethod
    def parse(
        cls,
        maps: Iterable[str] = (),
        sets: Iterable[str] = (),
        pattern: str | None = None,
        size: str | None = None,
    ) -> Self:
        """Read `--map`, `--set` and `--run-name`; `size` is kept as it is.

        Raises:
            ImportRefused: one of them is malformed.

        >>> asked = Asked.parse(["step=global_step"], ["optimizer=adam"], "bs{batch_size}_lr{lr}*")
        >>> asked.columns, asked.values, asked.in_name("bs64_lr0.1_a")
        ({'step': ['global_step']}, {'optimizer': 'adam'}, {'batch_size': '64', 'lr': '0.1'})
        """
        pairs = [_pair("--map", text) for text in maps]
        columns = {name: found.split("*" if name == "batch_size" else ",") for name, found in pairs}
        for name, found in columns.items():
            if len(found) > 1 and name not in ("run", "batch_size"):
                raise ImportRefused(f"--map {name}={','.join(found)}: only the name of a run has several columns.")
        if columns.get("step") and plain(columns["step"][0]) in ROLES["epoch"]:  # the unit is in the name
            columns["epoch"] = columns.pop("step")
        for name in [name for name in columns if "/" in name]:
            known = metric(name)
            if known is None:
                raise ImportRefused(f"--map {name}=...: a metric begins with train/, val/ or test/.")
            columns[known] = columns.pop(name)
        values = dict(_pair("--set", text) for text in sets)
        names = re.findall(r"\{(\w+)\}", pattern or "")
        if pattern is not None and (not names or len(set(names)) < len(names)):
            raise ImportRefused(f"--run-name must name each value once, as 'bs{{batch_size}}_*', but got {pattern!r}.")
        for name in sorted(TABLE_COLUMNS.difference(ROLES).intersection([*columns, *values, *names])):
            raise ImportRefused(
                f"a hyperparameter {name} would share its name with a column of the tables; call it own_{name}."
            )
        return cls(columns, values, pattern, size)

    @property
    def set_otherwise(self) -> set[str]:
        """The settings that come from `--set` and `--run-name`, whatever the log says.

        >>> sorted(Asked.parse(sets=["optimizer=adam"], pattern="bs{batch_size}_lr{lr}*").set_otherwise)
        ['batch_size', 'learning_rate', 'optimizer']
        """
        return {*self.values, *(SHORT.get(name, name) for name in re.findall(r"\{(\w+)\}", self.pattern or ""))}

    def in_name(self, run: str) -> dict[str, str] | None:
        """What the name of a run says by the pattern; None if it does not fit. Numbers are taken whole.

        Raises:
            ImportRefused: a number goes on in what the pattern leaves out, as 2 in `bs2x8` by `bs{batch_size}*`.
        """
        parts = re.split(r"(\{\w+\}|\*)", self.pattern or "*")
        found = [
            ".*?" if part == "*" else rf"(?P<{part[1:-1]}>{NUMBER}|.+?)" if part.startswith("{") else re.escape(part)
            for part in parts
        ]
        match = re.fullmatch("".join(found), run)
        if match is None:
            return None
        for part, following in zip(parts[1::2], parts[2::2], strict=True):
            number = "" if part == "*" or following else match[part[1:-1]]
            if re.fullmatch(NUMBER, number) and (more := GOES_ON.match(run, match.end(part[1:-1]))):
                raise ImportRefused(
                    f"--run-name {self.pattern!r} would read {part[1:-1]} as {number} in the run {run!r}, where "
                    f"{number}{more[0]} may be another number; write what follows into the pattern, or give a table "
                    f"with the columns run and {part[1:-1]}, in one folder with the log."
                )
        return match.groupdict()


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, other = (part.strip() for part in text.partition("="))
    if not name or not equals or not other:
        what = "NAME=COLUMN, such as step=global_step" if option == "--map" else "NAME=VALUE, such as optimizer=adam"
        raise ImportRefused(f"{option} must read {what}, but got {text!r}.")
    return name, other


def plain(name: str) -> str:
    """A name in lower case with underscores.

    >>> plain("Batch Size"), plain("batchSize"), plain("params.batch-size"), plain("schedule/β")
    ('batch_size', 'batch_size', 'params_batch_size', 'schedule_β')
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[\W_]+", "_", apart.lower()).strip("_")


def last(name: str) -> str:
    """The last part of a nested name, such as `optimizer/lr`.

    >>> last("optimizer/lr"), last("params.lr"), last("lr")
    ('lr', 'lr', 'lr')
    """
    return re.split(r"[/.]", name)[-1]


def metric(column: str) -> str | None:
    """The metric that a column is by its name, else None.

    >>> [metric(name) for name in ("val/loss", "valid_loss", "Loss/validation", "eval/acc top1", "learning_rate")]
    ['val/loss', 'val/loss', 'val/loss', 'val/acc_top1', None]
    """
    words = [word for word in re.split(r"[/._: -]+", column) if word]
    for position in (0, -1):
        split = SPLITS.get(words[position].lower()) if len(words) > 1 else None
        if split:
            rest = plain("_".join(words[1:] if position == 0 else words[:-1]))
            return None if rest in NO_METRICS else f"{split}/{rest}"
    return None


def could_be_metric(column: str) -> bool:
    """True if a column may be a quantity without its split, such as `loss`: it has no other known meaning."""
    short = plain(column)
    known = {name for spellings in ROLES.values() for name in spellings}
    own = {*known, *NO_METRICS, *LABELS, *SHORT, ""}
    return metric(column) is None and short not in own and not is_of_wandb(column)


def describes_run(name: str) -> bool:
    """True if a name describes a run but is no hyperparameter.

    >>> [describes_run(name) for name in ("hostname", "train_steps_per_second", "momentum")]
    [True, True, False]
    """
    return plain(name) in LABELS or plain(name).endswith(OF_SPEED)


def is_of_wandb(name: str) -> bool:
    """True if W&B adds a column of this name, or of one nested in it.

    >>> [is_of_wandb(name) for name in ("_step", "_wandb/runtime", "_momentum")]
    [True, True, False]
    """
    return re.split(r"[/.]", name)[0] in OF_WANDB


def is_certain(column: str) -> bool:
    """True if a name is that of a metric even if it never changes: it begins with a split and a slash."""
    return column.partition("/")[0].lower() in SPLITS and "/" in column


def roles(names: Collection[str], asked: Mapping[str, Sequence[str]], nested: Collection[str] = ()) -> dict[str, str]:
    """Role -> the name that has it.

    Arguments:
        names: of columns or settings.
        asked: `Asked.columns`.
        nested: roles that the last part of a name is enough for, if one name alone ends with it.

    >>> roles(["_step", "bs", "val/loss", "optim/lr"], {})
    {'step': '_step', 'batch_size': 'bs'}
    >>> roles(["data/batch_size"], {}, nested=["batch_size"])
    {'batch_size': 'data/batch_size'}
    """
    found = {role: columns[0] for role, columns in asked.items() if columns[0] in names}
    taken = {columns[0] for role, columns in asked.items() if role != "run"}
    whole: dict[str, str] = {}
    ends: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: name.startswith("_")):  # W&B's own _step comes last
        if name not in taken:
            whole.setdefault(plain(name), name)
            if metric(name) is None:
                ends.setdefault(plain(last(name)), []).append(name)
    for role, known in ROLES.items():
        if role not in asked:
            first = [whole[name] for name in known if name in whole]
            first.sort(key=lambda name: name.startswith("_"))
            alone = [ends[name][0] for name in known if role in nested and len(ends.get(name, ())) == 1]
            found |= dict.fromkeys([role] if first or alone else [], [*first, *alone, ""][0])
    return found


def hyperparameter(name: str, others: Collection[str]) -> str:
    """The name of a hyperparameter in a results folder: the last part of its own name if no other one ends so.

    >>> hyperparameter("optimizer/lr", ["optimizer/lr", "seed"]), hyperparameter("a/eps", ["a/eps", "b/eps"])
    ('learning_rate', 'a_eps')

    A name that a column of the tables has gets another beginning, unless it says what a run is:

    >>> hyperparameter("seeds", ["seeds"]), hyperparameter("batch_size", ["batch_size", "global_batch_size"])
    ('own_seeds', 'batch_size')
    """
    short = plain(last(name))
    alone = sum(plain(last(other)) == short for other in others) == 1
    found = short if alone else plain(name)
    return f"own_{found}" if found in TABLE_COLUMNS.difference(OF_SETTINGS) else SHORT.get(found, found)


def is_rate(name: str) -> bool:
    """True if a name is that of the learning rate, also beside a split as in `train/learning_rate`."""
    return hyperparameter(name, [name]) == SHORT["lr"]


def listed(names: Iterable[Any], most: int = 20) -> str:
    """Names for a message; after the first 20, their number."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more or "none"


def cure(role: str, names: Collection[str]) -> str:
    """The `--map` for a missing role: with the name that looks most like it, else with COLUMN."""
    near = suggest(role, names)
    match = re.search(r"'([^']+)'", near) if near else None
    return f"--map {role}={match[1] if match else 'COLUMN'}"
