"""Commands that cannot be trials are refused before anything is written, each with the rule, the value and the cure."""

import pytest

from study import whole_sweep
from study.errors import UsageError

NEEDED = "python train.py {batch_size} {steps} {seed} {log}"
REFUSED = {
    "no seed": (["workload.command=python {batch_size} {steps} {log}"], r"must pass \{seed\} \(the seed of init"),
    "an open quote": ([f"workload.command=\"{NEEDED} '\""], "cannot be split into words: No closing quotation"),
    "a brace alone": ([f"workload.command={NEEDED} {{"], r"has '\{': .*write \{\{ and \}\} for braces"),
    "a place without a name": ([f"workload.command={NEEDED} {{}}"], "has the placeholder {}, but a placeholder is a name"),
    "an unknown placeholder": ([f"workload.command={NEEDED} {{learning_rat}}"], "did you mean 'learning_rate'"),
    "one that sgd lacks": (
        [f"workload.command={NEEDED} {{learning_rate}} {{momentum}}"],
        r"\{momentum\}, which search.space does not have: choose an optimizer with it, or give search.space.momentum=",
    ),
    "one that is not passed": ([f"workload.command={NEEDED}"], "search.space.learning_rate is tuned, but .* has no"),
    "several words in one": (
        [f"workload.command={NEEDED} {{hyperparameters}}x"],
        "stands for several words",
    ),
    "a schedule that is not passed": (
        [f"workload.command={NEEDED} {{learning_rate}} {{learning_rate_decay_fraction}} {{end_learning_rate_factor}}"]
        + ["search.space.schedule=[linear_decay,cosine]"],
        r"search.space.schedule is tuned, but .* has no \{schedule\}",
    ),
    "parameters of some schedules": (
        [f"workload.command={NEEDED} {{learning_rate}} {{schedule}}", "search.space.schedule=[constant,cosine]"],
        r"only some schedules .* take end_learning_rate_factor and learning_rate_decay_fraction; pass \{hyperparameters\}",
    ),
    "no such program": (["workload.command=no-such {batch_size} {steps} {seed} {log} {learning_rate}"], "no such program"),
    "no such answer": ([f"workload.command={NEEDED} {{learning_rate}}", "workload.failed=no"], "unknown workload.failed"),
    "lanes": ([f"workload.command={NEEDED} {{learning_rate}}", "engine=lanes"], "engine=lanes is for models that this"),
    "precision": ([f"workload.command={NEEDED} {{learning_rate}}", "precision=bf16"], "let the script choose its prec"),
    "devices": ([f"workload.command={NEEDED} {{learning_rate}}", "engine.devices=2"], "engine.devices=2 .* torchrun"),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "said"), REFUSED.values(), ids=REFUSED)
def test_what_no_command_can_be_is_refused(tmp_path, overrides, said):
    asked = ["workload=command", "optimizer=sgd", "workload.train_examples=100", "goal=val/loss < 0.3", "batch_size=4"]
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here([*asked, f"results={tmp_path / 'results'}", *overrides], None)
    assert not (tmp_path / "results").exists()


def test_fixed_hyperparameters_need_not_be_passed(tmp_path):
    asked = ["workload=command", "optimizer=adamw", "workload.train_examples=100", "goal=val/loss < 0.3"]
    asked += [f"workload.command={NEEDED} {{learning_rate}} {{beta1}} {{weight_decay}}", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_here([*asked, "batch_size=4", "search.space.beta1_half_life_examples=100"], None)
    assert job.study.arithmetic == "command"
