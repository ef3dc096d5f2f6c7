"""Names of workloads that tell swept arguments apart."""

import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from study.config.paths import literal


def named(config: DictConfig, swept: Sequence[str]) -> DictConfig:
    """Name the workload by its swept arguments, such as `fc_mnist_widths-128`; all stay in one results folder."""
    if swept:
        config.results = literal(str(config.results))  # a reference to the name keeps the name without arguments
        values = [_as_name(OmegaConf.select(config, key)) for key in swept]
        parts = [f"{key.rpartition('.')[2]}-{value}" for key, value in zip(swept, values, strict=True)]
        config.workload.name = "_".join([str(config.workload.name), *parts])
    return config


def _as_name(value: Any) -> str:
    """A value as a part of the name of a folder."""
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return re.sub(r"[^\w.+]+", "-", str(plain)).strip("-")
