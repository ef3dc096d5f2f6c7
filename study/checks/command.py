"""Checks a study whose trials are commands: what the template takes, and what only this program's own training does."""

import os
import shutil

from analysis.labels import listed
from study.checks.goal import check_falls
from study.devices.placement import Placement
from study.engine.command.environment import search_path
from study.errors import UsageError
from study.records import Study
from study.schedules import conditional
from workloads.command import ALL, GIVEN, Command
from workloads.suggest import suggest


def check_command(study: Study, command: Command, placement: Placement) -> None:
    """Raise UsageError unless each placeholder has a value, each tuned hyperparameter has a placeholder, no
    setting is given that a command ignores, and the goal is on an error."""
    check_falls(study.goal)
    _check_placeholders(study, command)
    where = f"{study.name} trains by a command"
    for key, given, cure in (
        ("precision", study.precision != "fp32", "let the script choose its precision"),
        ("evaluation.exact", not study.evaluation.exact, "leave it out"),
        ("evaluation.examples", study.evaluation.examples is not None, "let the script choose what it evaluates"),
        ("batch_schedule", bool(study.batch_schedule), "let the script choose the size of each batch"),
        ("optimizer.arguments", study.optimizer_arguments, "write them into workload.command"),
        ("optimizer.no_decay", study.no_decay, "let the script choose what decays"),
        ("engine.lanes", placement.lanes is not None, "leave it out"),
        ("engine=lanes", placement.name == "lanes", "leave it out"),
        (
            f"engine.devices={placement.devices}",
            (placement.devices or 1) > 1,
            "let the command start a process for each device, as torchrun does, with engine.workers=1",
        ),
    ):
        if given:
            raise UsageError(f"{key} is for models that this program trains, but {where}: {cure}.")


def _check_placeholders(study: Study, command: Command) -> None:
    space = study.search.space
    # A half-life reaches the command as the decay rate that it means.
    passed = {name: next(iter(study.resolved({name: 1.0})), name) for name in space}
    for name in command.hyperparameters:
        if name not in passed.values():
            raise UsageError(
                f"workload.command has the placeholder {{{name}}}, which search.space lacks: choose an optimizer with "
                f"it, or give search.space.{name}=VALUE{suggest(name, [*passed.values(), *GIVEN, ALL])}"
            )
    if ALL in command.placeholders:
        return
    if some := sorted(conditional(space)):
        raise UsageError(
            f"only some schedules of search.space.schedule take {listed(some)}; pass {{{ALL}}} to the script."
        )
    for name, placeholder in passed.items():
        if space[name].tuned and placeholder not in command.placeholders:
            raise UsageError(
                f"search.space.{name} is tuned, but workload.command has no {{{placeholder}}}; pass {{{placeholder}}} "
                f"to the script, or {{{ALL}}} for all of them, or fix it with search.space.{name}=VALUE."
            )


def check_engine(study: Study, placement: Placement) -> None:
    """Raise UsageError if a study whose model this program trains is asked to train by a command."""
    if placement.name == "command":
        raise UsageError(
            f"engine=command trains by a command of yours, but {study.name} is a model that this program trains; give "
            "workload=command workload.command='python train.py ...' (docs/guide/own-script.md)."
        )
    if placement.timeout is not None:
        raise UsageError(
            f"engine.timeout={placement.timeout:g} ends commands that hang, but {study.name} is a model that this "
            "program trains; leave it out."
        )


def check_program(command: Command) -> None:
    """Raise UsageError if this machine has no program of that name."""
    program = command.words[0]
    if "{" not in program and shutil.which(program, path=search_path(os.environ)) is None:
        raise UsageError(f"workload.command begins with {program!r}, but there is no such program; give its path.")
