"""Commands that cannot be trials are refused before anything is written, each with the rule, the value and the cure."""

import pytest

from study import whole_sweep
from study.errors import UsageError

ASKED = ["workload=command", "optimizer=sgd", "workload.train_examples=100", "goal=val/loss < 0.3", "batch_size=4"]
NEEDED = "python train.py {batch_size} {steps} {seed} {log}"
COMMANDS = {
    "no seed": ("python {batch_size} {steps} {log}", r"must pass \{seed\} \(the seed of initialisation"),
    "an open quote": (f'{NEEDED} "', "cannot be split into words: No closing quotation"),
    "a brace alone": (f"{NEEDED} {{", r"has '\{': .*write \{\{ and \}\} for braces"),
    "no name": (f"{NEEDED} {{}}", "has the placeholder {}, but a placeholder is a name"),
    "unknown": (f"{NEEDED} {{learning_rat}}", "did you mean 'learning_rate'"),
    "of another optimizer": (
        f"{NEEDED} {{learning_rate}} {{momentum}}",
        r"\{momentum\}, which search.space lacks: choose an optimizer with it, or give search.space.momentum=VALUE",
    ),
    "not passed": (NEEDED, r"search.space.learning_rate is tuned, but .* has no \{learning_rate\}"),
    "several words in one": (f"{NEEDED} {{hyperparameters}}x", "stands for several words"),
    "no such program": ("no-such {batch_size} {steps} {seed} {log} {learning_rate}", "no such program; give its path"),
}
SETTINGS = {
    "search.space.schedule=[linear_decay,cosine]": r"is tuned, but workload.command has no \{",
    "search.space.schedule=[constant,cosine]": r"only some schedules .* take .*; pass \{hyperparameters\}",
    "workload.failed=no": "unknown workload.failed 'no'",
    "engine=lanes": "engine=lanes is for models that this program trains, but command trains by a command",
    "engine.devices=2": "engine.devices=2 is for models .* torchrun",
    "engine.timeout=0": "engine.timeout must be a number of seconds above 0, or null for no limit, but got 0",
    "precision=bf16": "precision is for models .* let the script choose",
    "evaluation.examples=10": "evaluation.examples is for models",
    "optimizer.no_decay=[bias]": "let the script choose what decays",
}


ACCURACIES = {
    "goal=val/accuracy < 0.9": "got val/accuracy < 0.9, and accuracy grows; measure 1 - accuracy as val/classif",
    "goal=test/acc < 90": "got test/acc < 90, and acc grows; .* as test/classification_error, from 0 to 1, and give",
    "goal=val/top5_accuracy < 0.9": "measure 1 - top5_accuracy as val/top5_accuracy_error",
    "goal=val/f1 < 0.8": "measure 1 - f1 as val/f1_error, from 0 to 1, and give goal='val/f1_error < NUMBER'",
    "goal=val/average_precision < 0.3": "measure 1 - average_precision as val/average_precision_error",
}


def refused(folder, said, command, *overrides):
    asked = [*ASKED, f"workload.command='{command}'", f"results={folder / 'results'}", *overrides]
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here(asked, None)
    assert not (folder / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "said"), COMMANDS.values(), ids=COMMANDS)
def test_what_no_command_can_be_is_refused(tmp_path, command, said):
    refused(tmp_path, said, command)


@pytest.mark.slow
@pytest.mark.parametrize(("override", "said"), SETTINGS.items())
def test_settings_that_a_command_ignores_are_refused(tmp_path, override, said):
    refused(tmp_path, said, f"{NEEDED} {{learning_rate}}", override)


@pytest.mark.slow
@pytest.mark.parametrize(("goal", "said"), ACCURACIES.items())
def test_goals_below_an_accuracy_are_refused(tmp_path, goal, said):
    """An untrained model met them at its first evaluation, at every batch size."""
    refused(tmp_path, said, f"{NEEDED} {{learning_rate}}", goal, "stopping=budget")


@pytest.mark.slow
def test_the_engine_may_be_named_for_commands_alone(tmp_path):
    asked = [*ASKED, f"workload.command={NEEDED} {{learning_rate}}", "engine=command", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here(asked, None)
    assert job.study.arithmetic == "command"
    with pytest.raises(UsageError, match="engine=command trains by a command of yours, but mlp_digits is a model"):
        whole_sweep.jobs_here(["engine=command", f"results={tmp_path}"], None)
    with pytest.raises(UsageError, match=r"engine.timeout=60 ends commands that hang, but mlp_digits is a model"):
        whole_sweep.jobs_here(["engine.timeout=60", f"results={tmp_path}"], None)


def test_fixed_hyperparameters_need_not_be_passed(tmp_path):
    command = f"{NEEDED} {{learning_rate}} {{beta1}} {{weight_decay}}"
    half_life = "search.space.beta1_half_life_examples={low: 10, high: 1000, scale: log}"
    asked = [*ASKED, "optimizer=adamw", half_life, f"workload.command={command}", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here(asked, None)
    assert job.study.arithmetic == "command"
