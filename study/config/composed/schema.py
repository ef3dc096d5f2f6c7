"""The Hydra schema: every key that a command line can set, its default and its meaning.

It mirrors the records field by field: Hydra needs mutable dataclasses, while records are frozen and check values. The
meanings are the text of docs/configuration.md, which `docs/generate.py` writes.
"""

import copy
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, cast, get_type_hints

MISSING: Any = "???"  # OmegaConf's mark of a value that must be given


def key(meaning: str, default: Any = MISSING, *, values: str = "", by: str = "") -> Any:
    """A field and its entry in the documentation.

    Arguments:
        values: legal values of the key, if its type does not show them.
        by: the group whose files set the key, if the schema does not set its default.
    """
    about = {"meaning": meaning, "values": values, "by": by}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.copy(default), metadata=about)
    return field(default=default, metadata=about)


@dataclass
class OptimizerConfig:
    name: str = key("the optimizer; choose it with `optimizer=NAME`", by="optimizer")
    target: str | None = key(
        "with `optimizer=torch`: the import path of any `torch.optim.Optimizer` class",
        None,
        values="such as `torch.optim.RAdam` or `pytorch_optimizer.Ranger21`",
    )
    arguments: dict[str, Any] = key(
        "with `optimizer=torch`: further keyword arguments of its constructor, of any type; give numbers to be tuned "
        "as `search.space` entries instead",
        {},
        values="such as `optimizer.arguments.num_iterations=2000`",
    )
    no_decay: list[str] = key(
        "parts of the names of parameters that `weight_decay` and `l2` leave out; upper and lower case are alike. "
        "`ndim<2` stands for all parameters with fewer than two dimensions",
        [],
        values="such as `[bias,norm]` or `'[ndim<2]'`",
    )


@dataclass
class BatchScheduleConfig:
    kind: str = key("how the batch size grows in a trial; choose it with `batch_schedule=NAME`", by="batch_schedule")
    coupling: str = key(
        "how the learning rate follows: times the batch size relative to the first one (`linear`), or its square root. "
        "`search.space.learning_rate` is that of the first batch size",
        "none",
        values="`none`, `linear`, `square_root`",
    )
    most: int | None = key("the batch size grows to at most this; null: the training examples", None)
    switches: list[int] = key(
        "with `batch_schedule=listed`: examples seen at which the batch size changes",
        [],
        values="such as `[4096,20000]`",
    )
    sizes: list[int] = key("the batch size from each of these switches on", [], values="such as `[64,256]`")
    source: str | None = key(
        "read switches and sizes from the critical batch sizes of a results folder of `study branch`; on the command "
        "line also `batch_schedule.from`",
        None,
        values="a results folder",
    )


@dataclass
class BudgetConfig:
    epochs: float = key("the step budget of a trial, in passes over the training examples", by="workload")
    steps: int = key("the smallest step budget, where `budget.epochs` gives fewer steps", by="workload")
    max_steps: int | None = key(
        "the largest step budget, where `budget.epochs` or `budget.tokens` gives more steps; null: no limit", None
    )
    tokens: float | None = key(
        "a step budget in training tokens, for workloads with `tokens_per_example`; the largest of `budget.epochs`, "
        "`budget.tokens` and `budget.steps` counts, so `budget.epochs=0` leaves the tokens alone",
        None,
        values="a number, such as `1e8`",
    )
    single_pass: bool = key(
        "no training example is seen twice: refuse step budgets that need more examples than there are", False
    )


@dataclass
class EvaluationConfig:
    first: float = key("the first evaluation, as a fraction of the step budget", 0.02, values="in (0, 1]")
    ratio: float = key("each evaluation comes at this multiple of the steps of the previous one", 1.1, values="above 1")
    every: int | None = key(
        "measure the training and test errors at every n-th evaluation of the validation error, where the goal is met, "
        "and at the end of the step budget. Null: 5; with `stopping=race` or `evaluation.exact=false` only at the goal "
        "and at the end",
        None,
    )
    examples: int | None = key("most evaluated examples of a split, a fixed random part of it; null: all", None)
    exact: bool = key(
        "`false` ends an evaluation as soon as it misses the goal for certain, after a seventh of the examples on "
        "average. Steps-to-results stay the same; errors above the goal are not known. For `stopping=race` or `goal`, "
        "`search=sobol` or `random`, and goals on `val/classification_error` or `val/cross_entropy_error`",
        True,
    )


@dataclass
class SeedsConfig:
    search: int = key("seed of the points that are tried", 0)
    trial: int = key("seed of initialisation and dropout", 0)
    data_order: int = key("seed of the order of the data", 0)
    shared: bool = key("give all batch sizes the same points and seeds, as older versions did", False)


@dataclass
class SearchConfig:
    sampler: str = key(
        "how points are proposed; choose it with `search=NAME`. `tpe`, `gp` and `cmaes` learn from finished trials, "
        "so that their results have no confidence intervals",
        by="search",
    )
    trials: int = key(
        "feasible trials (that did not diverge) at each batch size. On the command line, and without `search=`, it "
        "chooses `search=sobol`. With `search=refine` it follows from the rounds",
        100,
    )
    max_launches: int | None = key(
        "launch at most this many trials; null: ten times `search.trials`. Chooses `search=sobol` in the same way", None
    )
    extend: bool = key(
        "if the best trials sit at an edge of the search space, widen it and search again (needs about 30 trials); the "
        "rounds of `search=refine` go beyond the edge by themselves",
        False,
    )
    extend_factor: float = key("how much wider a range becomes each time, on its own scale", 1.5, values="at least 1.1")
    extend_limit: int = key("widen the search space at most this many times; 0: never", 3)
    budgets: list[float] = key(
        "search under each of these multiples of the step budget; the fewest steps count",
        [1.0],
        values="numbers above 0, 1 among them, such as `[0.5,1,2]`",
    )
    repeats: int = key("repeat the whole search this many times with other seeds", 0)
    reruns: int = key(
        "train the tuned configuration of each batch size this many times more, with fresh seeds. On the command line, "
        "and without `search=`, it chooses `search=sobol`",
        0,
    )
    fresh_data: str | None = key(
        "with each fresh seed (of `search.reruns` or `search.confirm`) also another split into training and validation "
        "data (`split`: `workload.split_seed` + 1 + its number), or other random parts of the evaluated "
        "splits (`validation`, with `evaluation.examples`). Their spread then includes the luck of the split. Null: "
        "all have the same data",
        None,
        values="`split`, `validation`",
    )
    scouts: int | None = key(
        "with `search=refine`: quasi-random trials that each batch size begins with; null: 6, or 2 D + 2 "
        "with D > 4 tuned parameters",
        None,
    )
    refine: list[int] = key(
        "with `search=refine`: trials of each round that follows; a model of all batch sizes proposes their points",
        [4, 4, 4, 4, 3],
    )
    candidates: int = key("with `search=refine`: configurations that are compared at the end of the rounds", 2)
    screens: int = key("with `search=refine`: fresh seeds with which each candidate is compared", 2)
    confirm: int = key(
        "with `search=refine`: fresh seeds that the tuned configuration is trained with; the estimate of S(B) is their "
        "median",
        4,
    )
    added: int = key(
        "with `search=refine`: after the screens, this many times another round as long as the last one, with screens",
        0,
    )
    pool: bool = key("with `search=refine`: one model of all batch sizes; false: one of each batch size alone", True)
    until: str | None = key(
        "go on after the search, with more fresh seeds, then more rounds (or trials), until the intervals span at most "
        "this factor to either side: `factor` of the comparison of each pair of optimizers over all batch sizes, "
        "`width` of each S(B)",
        None,
        values="`'factor 1.3'`, `'width 1.5'`",
    )
    until_cost: float = key(
        "with `search.until`: train at most this many times the trainings that the search has without it", 3.0
    )
    storage: str | None = key(
        "let others watch the search: keep Optuna's view of it in a journal file or a database",
        None,
        values="`journal`, or a database URL such as `sqlite:///optuna.db`",
    )
    space: dict[str, Any] = key(
        "the search space: a range, a list of choices or a fixed number for each hyperparameter, see below",
        {},
        by="optimizer",
    )


@dataclass
class EngineConfig:
    name: str = key(
        "train several trials at once when that is faster (`auto`), never (`serial`) or whenever possible (`lanes`); "
        "or, for workload=command alone, by a command of yours (`command`). "
        "Fixed once a study has started, because results differ in the last bits",
        "auto",
        values="`auto`, `serial`, `lanes`, `command`",
    )
    device: str = key(
        "the device to train on; `auto`: a GPU if there is one", "auto", values="`auto`, `cpu`, `cuda`, `cuda:1`"
    )
    workers: int | None = key(
        "processes that train; null: one for each CPU core, or for each GPU. On a CPU the number changes no trial", None
    )
    devices: int | None = key(
        "split the batches of each trial over this many GPUs, or processes of a CPU. The batch size stays the global "
        "one; curves equal those of one device to rounding. Null: 1, or the processes that torchrun started",
        None,
    )
    lanes: int | None = key(
        "trials that a process trains at once; null: measured. On a CPU the number changes no trial", None
    )
    data_memory: float | None = key(
        "stream data sets larger than this many GiB instead of keeping them on the device; null: half of its memory",
        None,
    )
    loaders: int = key("processes that read streamed data, for training and for evaluation each", 2)
    compile: Any = key(
        "compile the update of the trials that train at once, which takes up to some minutes for each batch size; "
        "`auto`: on a GPU, if the study is much longer than that. The last bits change. A CPU compiles nothing",
        "auto",
        values="`auto`, `true`, `false`",
    )
    timeout: float | None = key(
        "with `workload=command`: a command that writes no new line of metrics for this many seconds hangs; it is "
        "ended and counts as failed, see `workload.failed`. Null: no limit",
        None,
    )


@dataclass
class CheckpointConfig:
    minutes: float | None = key(
        "save a checkpoint of running trials this often; a killed sweep loses no more of them. Null: never", 10.0
    )


@dataclass
class TrackConfig:
    tensorboard: bool = key("record the trials in TensorBoard's event files; `track=tensorboard` sets it", False)
    mlflow: bool = key("record the trials in MLflow; `track=mlflow` sets it", False)
    wandb: bool = key("record the trials in Weights & Biases; `track=wandb` sets it", False)
    trackio: bool = key("record the trials in Trackio; `track=trackio` sets it", False)
    trials: bool = key("also a run for each trial, with its learning curves", False)


@dataclass
class SweepConfig:
    workload: dict[str, Any] = key(
        "the workload; choose it with `workload=NAME`. For its own keys see below", {}, by="workload"
    )
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: str = key(
        "the learning rate schedule; choose it with `schedule=NAME`, or let each trial choose with "
        "`search.space.schedule`",
        by="schedule",
    )
    batch_schedule: BatchScheduleConfig = field(default_factory=BatchScheduleConfig)
    batch_sizes: list[Any] = key(
        "the batch sizes to sweep", [], values="such as `[8,64]` or `[16k tokens,32k tokens]`", by="workload"
    )
    batch_size: Any = key(
        "sweep only these batch sizes. A batch size is always the global one: examples per update. For workloads with "
        "`tokens_per_example` it may be in tokens, with k = 1,024",
        None,
        values="such as `64,256` or `32k tokens`",
    )
    shards: int = key(
        "split the trials of each study into this many parts, so that several processes or jobs can work on it", 1
    )
    goal: str = key(
        "the error that counts as solved", by="workload", values="such as `'val/classification_error < 0.25'`"
    )
    stopping: str = key(
        "when to stop a trial: at the goal or once it needs more than `race_factor` times the fewest steps so far "
        "(`race`), at the goal (`goal`), or at the end of its step budget (`budget`)",
        "race",
        values="`race`, `goal`, `budget`",
    )
    race_factor: float = key("how far a trial may fall behind the best so far, with `stopping=race`", 2.0)
    precision: str = key(
        "of matrix products and convolutions: `tf32` lets GPUs round their factors to 10 bits of mantissa, and `bf16` "
        "computes them under bfloat16 autocast; weights stay in fp32",
        "fp32",
        values="`fp32`, `tf32`, `bf16`",
    )
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    notify: str | None = key(
        "post one message to this address when the sweep ends or fails; needs `pip install 'batch-size-study[notify]'`",
        None,
        values="a URL of apprise, such as `ntfy://topic`",
    )
    results: str = key(
        "the folder for measurements, tables, figures and report: `results/` and the workload's name unless given",
        by="workload",
    )


SPACE = {
    "learning_rate.high=3": "change one end of a range. A range is `{low: 1e-3, high: 1, scale: log}`; its scale is "
    "`linear`, `log` or `reverse_log` (log of one minus the value). `integer: true` keeps whole numbers. "
    "`hard: [low]` says that the range cannot be widened below its low end",
    "momentum=0.9": "fix a hyperparameter",
    "label_smoothing=[0,0.01,0.1]": "tune over a list of choices; this one is for workloads with label smoothing",
    "schedule=[constant,linear_decay,cosine]": "a schedule for each trial, instead of `schedule=`. The ranges of its "
    "hyperparameters come from the files of the schedules unless given; a trial has only those of its own schedule",
    "warmup_steps=10": "a linear warmup before any schedule, or `warmup_examples=5000`, or `warmup_tokens=1e6` for "
    "workloads with `tokens_per_example`. Each may be a range",
    "batch_growth={low: 1, high: 64, scale: log}": "tune a parameter of `batch_schedule`; trials then differ in their "
    "batch sizes, and train one at a time",
    "warmup_initial_factor=0": "the warmup starts from this fraction of the learning rate",
    "l2=1e-4": "an L2 penalty that is part of the gradient, as the weight decay of `torch.optim.SGD`. For every "
    "optimizer chosen by name. It is not rescaled with the loss or the batch size",
    "weight_decay=0.01": "decoupled weight decay, as in AdamW. For every optimizer chosen by name",
    "clip_norm=1.0": "clip the gradient of each update to this norm, of all parameters together, as "
    "`torch.nn.utils.clip_grad_norm_` does. For every optimizer. The L2 penalty is added afterwards",
    "ema_decay=0.99": "a moving average of the weights. Its errors are measured too, such as "
    "`val/ema_classification_error`, and can be the goal",
    "beta2_half_life_examples={low: 1e3, high: 1e6, scale: log}": "`momentum`, `beta1`, `beta2` or `ema_decay` by its "
    "half-life in examples, which stays the same at every batch size; `beta2_half_life_tokens` counts tokens",
}
"""An override of search.space -> its meaning, for the documentation."""


def every_key(config: type = SweepConfig, prefix: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    """(dotted name, field, type) of every key that takes a value."""
    kinds = get_type_hints(config)
    for each in fields(config):
        name, kind = f"{prefix}{each.name}", kinds[each.name]
        if is_dataclass(kind):
            yield from every_key(cast(type, kind), f"{name}.")
        else:
            yield name, each, kind
