"""Files of older versions, read as this version writes them: the one place that knows their names."""

from collections.abc import Mapping
from typing import Any

ARITHMETICS = {"bmm": "linear_chain", "deferred": "linear_blocks"}
REMOVED_ARITHMETICS = ("grouped",)
"""Studies recorded in these are read and reported; nothing computes them any more."""
WORKLOADS = {"workloads.nqm.NoisyQuadraticModel": "workloads.noisy_quadratic.NoisyQuadraticModel"}
"""Import paths of classes that moved."""


def question(held: Mapping[str, Any]) -> dict[str, Any]:
    """A question on file, in the names of this version.

    >>> question({"arithmetic": "bmm", "workload": {"_target_": "workloads.nqm.NoisyQuadraticModel"}})
    {'arithmetic': 'linear_chain', 'workload': {'_target_': 'workloads.noisy_quadratic.NoisyQuadraticModel'}}
    """
    found = dict(held)
    if "arithmetic" in held:
        found["arithmetic"] = ARITHMETICS.get(held["arithmetic"], held["arithmetic"])
    if "_target_" in held["workload"]:
        target = held["workload"]["_target_"]
        found["workload"] = {**held["workload"], "_target_": WORKLOADS.get(target, target)}
    return found


def run(held: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run, in the names of this version.

    >>> run({"traits": {"parameters": 10.0}})
    {'fingerprint': {'parameters': 10.0}}
    """
    return {"fingerprint" if key == "traits" else key: value for key, value in held.items()}


def is_older(held: Mapping[str, Any]) -> bool:
    """Whether a run, as its record stands on file, was made before fingerprints had their name.

    >>> is_older({"traits": {}}), is_older({"fingerprint": {}})
    (True, False)
    """
    return "fingerprint" not in held
