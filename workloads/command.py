"""Your own training script as a workload: a command that trains one model and appends its metrics to a file.

The command is a template. `{learning_rate}` and other hyperparameters of the search space, and the names in GIVEN,
stand for the values of the trial.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, ClassVar

from workloads.base import PerExample, require_one_of
from workloads.suggest import suggest
from workloads.user_code.importing import imported

GIVEN = {
    "batch_size": "examples per update",
    "steps": "the step budget: the number of updates to make",
    "seed": "the seed of initialisation and dropout, below 2^31",
    "log": "the file to append metrics to",
    "order_seed": "the seed of the order of the training data, below 2^31",
    "folder": "a folder of this trial, which a restarted trial finds again",
    "optimizer": "the name of the optimizer",
    "schedule": "the name of the learning rate schedule",
}
"""Placeholder -> what it stands for, beside the hyperparameters."""
NEEDED = ("batch_size", "steps", "seed", "log")
"""The placeholders that every command must have."""
ALL = "hyperparameters"
"""A word `{hyperparameters}` stands for `--NAME=VALUE` of each hyperparameter of the search space."""
STOP, INFEASIBLE = "stop", "infeasible"
COMMAND_PATH = f"{__name__}.Command"
"""The import path of the class, as `_target_` of a configuration."""


@dataclass
class Command:
    """A training script, whatever its framework.

    Attributes:
        command: the template; it is split into words as a shell does, but no shell runs, so values need no quotes.
        train_examples: the number of training examples, which budgets in epochs count.
        failed: what an exit status other than 0 does. `stop`: it ends the sweep. `infeasible`: the trial counts as one
            that diverged.
        tokens_per_example: tokens in each example, which makes tokens a unit of batch sizes and budgets.

    Raises:
        ValueError: the command is not a template of words, or lacks a placeholder that it needs.
    """

    name: str
    train_examples: int
    command: str
    failed: str = STOP
    tokens_per_example: int | None = None

    errors: ClassVar[Mapping[str, PerExample]] = {}

    def __post_init__(self) -> None:
        require_one_of("workload.failed", self.failed, (STOP, INFEASIBLE))
        try:
            self.words = shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"workload.command cannot be split into words: {error}; got {self.command!r}.") from error
        self.placeholders = {name for word in self.words for name in _placeholders(word)}
        if missing := [name for name in NEEDED if name not in self.placeholders]:
            needed = ", ".join(f"{{{name}}} ({GIVEN[name]})" for name in missing)
            raise ValueError(f"workload.command must pass {needed} to the script, but got {self.command!r}.")

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        """The placeholders of hyperparameters."""
        return tuple(sorted(self.placeholders - {*GIVEN, ALL}))

    @property
    def keeps_folder(self) -> bool:
        """Whether the script is told of a folder in which it may keep checkpoints."""
        return "folder" in self.placeholders

    def filled(self, given: Mapping[str, Any], hyperparameters: Mapping[str, Any]) -> list[str]:
        """The words of the command of one trial.

        >>> command = Command("mine", 100, "train {log} {seed} {steps} --batch={batch_size} --lr {learning_rate}")
        >>> given = {"log": "my log", "seed": 1, "steps": 20, "batch_size": 8}
        >>> command.filled(given, {"learning_rate": 0.1})
        ['train', 'my log', '1', '20', '--batch=8', '--lr', '0.1']
        """
        filled: list[str] = []
        for word in self.words:
            if word == f"{{{ALL}}}":
                filled += [f"--{name}={value}" for name, value in sorted(hyperparameters.items())]
            else:
                filled.append(word.format_map({**hyperparameters, **given}))
        return filled


def is_command(target: str) -> bool:
    """Whether the class at an import path is `Command`, or inherits from it. False if it cannot be imported."""
    try:
        found = imported(target, "workload._target_ must be an importable class")
    except ValueError:
        return False
    return isinstance(found, type) and issubclass(found, Command)


def _placeholders(word: str) -> list[str]:
    """The names in a word of a template; `{{` and `}}` are braces."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(word) if name is not None]
    except ValueError as error:
        raise ValueError(f"workload.command has {word!r}: {error}; write {{{{ and }}}} for braces.") from error
    for name in names:
        if not name.isidentifier():
            raise ValueError(
                f"workload.command has the placeholder {{{name}}}, but a placeholder is a name{suggest(name, GIVEN)}"
            )
        if name == ALL and word != f"{{{ALL}}}":
            raise ValueError(f"{{{ALL}}} stands for several words, but got {word!r}; write it as a word of its own.")
    return names
