"""Trial steps with a study's own model and optimizer, before anything is written to disk."""

import warnings
from dataclasses import replace

import torch

from study.data.resident import Data, part
from study.devices.memory import out_of_memory
from study.engine.serial import Run
from study.engine.timing import started
from study.records import Study
from study.space import values
from workloads.base import Workload


def lanes_can(study: Study, workload: Workload, data: Data) -> bool:
    """Whether two lanes of this model can take a step and predict. `torch.vmap` refuses, for example, random operations
    and unused parameters. Raises the error of torch if memory runs out."""
    try:
        with warnings.catch_warnings():
            # An operation without a rule for `vmap` runs lane by lane, slower than training one model after another.
            warnings.filterwarnings("error", message="There is a performance drop")
            lanes = started(replace(study, batch_size=2), workload, data, range(2))
            lanes.advance(1)
            with torch.no_grad():
                lanes.predictor(range(2))(data.as_model_wants(part(data.inputs, slice(0, 2))))
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, UserWarning) as error:
        if out_of_memory(error):  # a full device must not determine the arithmetic
            raise
        return False
    return True


def refusal(study: Study, workload: Workload, data: Data) -> str | None:
    """Why an optimizer of whole models fails in two steps at either end of the search space; None if it works.

    Third-party optimizers may raise any error, so every exception counts.
    """
    small = replace(study, batch_size=2, micro_batch=None)
    for unit in (0.0, 1 - 1e-9):
        hyperparameters = values(study.search.space, [unit] * len(study.search.space))
        try:
            run = Run(small, workload, data, small.trial(0, hyperparameters))
            for _ in range(2):
                run.update(run.hyperparameters["learning_rate"])
                run.step += 1
        except Exception as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"with {', '.join(f'{name}={value:g}' for name, value in hyperparameters.items())}: {told}"
    return None
