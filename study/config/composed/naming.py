"""Names of workloads and folders that tell swept arguments apart."""

import re
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from analysis.labels import listed
from study.config.composed.choices import GROUPS
from study.config.composed.paths import literal

IN_FOLDER = re.compile(r"(workload|optimizer|batch_schedule|batch_sizes?|results)\b")
"""Keys that already name the folder of a study."""


def to_tell_apart(overrides: Sequence[Any]) -> list[str]:
    """The arguments of the workload whose values the names of workloads must tell apart: those that are swept, unless
    `workload.name` is given, or results folders tell them apart."""
    keys = [each.key_or_group for each in overrides if each.is_sweep_override()]
    swept = [key for key in keys if key.startswith("workload.")]
    folders = " ".join(str(each.input_line) for each in overrides if each.key_or_group == "results")
    apart = "results" in keys or any(f"${{{key}}}" in folders for key in swept)
    named = any(each.key_or_group == "workload.name" for each in overrides)
    return [] if named or apart else swept


def shared_folder(swept: Sequence[str], arguments: Sequence[str], config: DictConfig, whose: str) -> str:
    """Says that studies would share a folder, and the cure.

    Arguments:
        swept: those of the arguments that give a key several values, such as `seeds.search=0,1`.
        whose: the folder, such as `mlp_digits, momentum, batch size 8 in results/mlp_digits`.
    """
    typed = " ".join(arguments)
    outside = [argument for argument in (each.lstrip("+") for each in swept) if not IN_FOLDER.match(argument)]
    blamed = [argument for argument in outside if f"${{{argument.partition('=')[0]}}}" not in typed]
    if not blamed:
        return f"two studies would share the folder of {whose}; give each its own results=DIR or workload.name=NAME."
    asked, they = ("asks", "they") if len(blamed) == 1 else ("ask", "these studies")
    # As typed: a reference in it names the folder already.
    given = [value.strip("'\"") for key, _, value in (each.partition("=") for each in arguments) if key == "results"]
    cures = "; ".join(_cures(blamed, next((each for each in given if "${" in each), str(config.results))))
    return (
        f"{listed(blamed)} {asked} for a study with each value, but {they} would share the folder of {whose}; {cures}."
    )


def _cures(swept: Sequence[str], results: str) -> list[str]:
    """What to do about keys with several values that no folder is named by, so that all of them are cured."""
    cures: list[str] = []
    own_folder: list[str] = []
    one_value: list[str] = []
    for argument in swept:
        key, _, values = argument.partition("=")
        if re.fullmatch(r"search\.space\.\w+", key):
            low, *others = values.split(",")
            cures.append(f"tune over a list, {key}=[{values}]")
            if len(others) == 1 and not re.search("[a-z]{2}", values):
                cures[-1] += f", or a range, {key}.low={low} {key}.high={others[0]}"
        elif key in GROUPS and key != "schedule":
            one_value.append(key)
        else:
            own_folder.append(key)
    if one_value:
        whose = "it" if len(swept) == 1 else listed(one_value)
        cures.append(f"give {whose} one value, and other commands the others, each with its own results=DIR")
    if own_folder:
        whose = "each" if len(swept) == len(own_folder) else f"each value of {listed(own_folder)}"
        folder = "/".join([results, *(f"${{{key}}}" for key in own_folder)])
        cures.append(f"give {whose} its own folder, 'results={folder}'")
    return cures


def named(config: DictConfig, swept: Sequence[str]) -> DictConfig:
    """Name the workload by its swept arguments, such as `fc_mnist_widths-128`; all stay in one results folder."""
    if swept:
        config.results = literal(str(config.results))  # a reference to the name keeps the name without arguments
        parts = [f"{key.rpartition('.')[2]}-{_as_name(OmegaConf.select(config, key))}" for key in swept]
        config.workload.name = "_".join([str(config.workload.name), *parts])
    return config


def _as_name(value: Any) -> str:
    """A value as a part of the name of a folder."""
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return re.sub(r"[^\w.+]+", "-", str(plain)).strip("-")
