"""The Hydra schema: what a command line can set, with its defaults.

It mirrors the records field by field: Hydra needs mutable dataclasses, records are frozen and judge values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MISSING: Any = "???"  # how OmegaConf marks what must be given


@dataclass
class OptimizerConfig:
    name: str = MISSING
    target: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class BudgetConfig:
    epochs: float = MISSING
    steps: int = MISSING
    max_steps: int | None = None


@dataclass
class EvaluationConfig:
    first: float = 0.02
    ratio: float = 1.1
    every: int = 5


@dataclass
class SeedsConfig:
    search: int = 0
    trial: int = 0
    data_order: int = 0


@dataclass
class SearchConfig:
    sampler: str = MISSING
    trials: int = 100
    max_launches: int | None = None
    extend: bool = False
    extend_factor: float = 1.5
    extend_limit: int = 3
    budgets: list[float] = field(default_factory=lambda: [1.0])
    repeats: int = 0
    reruns: int = 0
    storage: str | None = None
    space: dict[str, Any] = field(default_factory=dict)


@dataclass
class EngineConfig:
    name: str = "auto"
    device: str = "auto"
    workers: int | None = None
    devices: int | None = None
    lanes: int | None = None
    data_memory: float | None = None
    loaders: int = 2


@dataclass
class CheckpointConfig:
    minutes: float | None = 10.0


@dataclass
class SweepConfig:
    workload: dict[str, Any] = field(default_factory=dict)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: str = MISSING
    batch_sizes: list[int] = field(default_factory=list)
    batch_size: int | None = None
    shards: int = 1
    goal: str = MISSING
    stopping: str = "race"
    race_factor: float = 2.0
    precision: str = "fp32"
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seeds: SeedsConfig = field(default_factory=SeedsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    results: str = MISSING
