"""Translate the records of older versions into the names of this version. No other module knows the old names."""

from collections.abc import Mapping
from typing import Any

from analysis.question.stages import EARLIER

ARITHMETICS = {"bmm": "linear_chain", "deferred": "linear_blocks"}
REMOVED_ARITHMETICS = ("grouped",)
"""Removed arithmetics. Their studies can be read and reported, but not continued."""
UNRECORDED = {"evaluation_chunk": 1024, "race_over": EARLIER}
"""The values of all versions that did not record them."""
WORKLOADS = {"workloads.nqm.NoisyQuadraticModel": "workloads.noisy_quadratic.NoisyQuadraticModel"}
"""Import paths of classes that moved."""
ARGUMENTS = {"workloads.resnet_cifar.ResNetCifar": {"norm": "none", "ghost_batch": 32, "norm_groups": 8}}
"""Class -> the arguments that it did not have in older versions, with the values that mean the same."""


def question(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded question in the names of this version.

    >>> found = question({"arithmetic": "bmm", "workload": {"_target_": "workloads.nqm.NoisyQuadraticModel"}})
    >>> found["arithmetic"], found["workload"]
    ('linear_chain', {'_target_': 'workloads.noisy_quadratic.NoisyQuadraticModel'})
    """
    found = {**UNRECORDED, **recorded}
    if recorded.get("seeds"):  # imported studies have none
        found["seeds"] = {"shared": True} | recorded["seeds"]
    if recorded.get("evaluation"):
        found["evaluation"] = {"exact": True} | recorded["evaluation"]
    if "arithmetic" in recorded:
        found["arithmetic"] = ARITHMETICS.get(recorded["arithmetic"], recorded["arithmetic"])
    if "_target_" in recorded["workload"]:
        target = recorded["workload"]["_target_"]
        missing = ARGUMENTS.get(target, {})
        found["workload"] = {**missing, **recorded["workload"], "_target_": WORKLOADS.get(target, target)}
    return found


def run(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run in the names of this version.

    >>> run({"traits": {"parameters": 10.0}})
    {'fingerprint': {'parameters': 10.0}}
    """
    return {"fingerprint" if key == "traits" else key: value for key, value in recorded.items()}


def is_older(recorded: Mapping[str, Any]) -> bool:
    """True if the record of a run on file is older than the name `fingerprint`.

    >>> is_older({"traits": {}}), is_older({"fingerprint": {}})
    (True, False)
    """
    return "fingerprint" not in recorded
