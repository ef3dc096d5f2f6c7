"""Batch sizes in tokens, and the number of tokens in an example of a workload."""

from typing import Any

from omegaconf import DictConfig, OmegaConf

from analysis.units import TOKENS, sequences, tokens_in
from study.errors import UsageError, usage_errors
from workloads.base import optional
from workloads.user_code.importing import build


def batch_size(asked: Any, tokens_per_example: int | None, whose: str) -> int:
    """A configured batch size in examples: a whole number, or a text such as `32k tokens`.

    Arguments:
        whose: the name of the workload.

    Raises:
        UsageError: it is neither, or the tokens are no whole number of examples.
    """
    if isinstance(asked, int) and not isinstance(asked, bool):
        return asked
    text = str(asked).strip()
    if text.isdecimal():
        return int(text)
    if (tokens := tokens_in(text)) is None:
        raise UsageError(
            f"batch_size must be a whole number, but got {asked}; for example batch_size=64,256 or "
            "batch_sizes=[64,256]."
        )
    with usage_errors():
        return sequences(f"batch_size={text}", tokens, tokens_per_example, whose)


def per_example(config: DictConfig) -> int | None:
    """The number of tokens in each example of the configured workload; None if it has no tokens.

    It follows from the arguments of the constructor, before the data are loaded. None also if the code of the workload
    fails: the check of the workload says where.

    Raises:
        UsageError: it is not a whole number of at least 1, or the class refuses its arguments.
    """
    workload: Any = OmegaConf.to_container(config.workload, resolve=True)
    try:
        with usage_errors():
            built = build(workload)
        count = optional(built, TOKENS)
    except UsageError:
        raise
    except Exception:  # user code may raise anything
        return None
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise UsageError(f"{TOKENS} of {config.workload.name} must be a whole number of at least 1, but got {count!r}.")
    return count
