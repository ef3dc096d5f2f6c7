"""The settings of a branched measurement: what they mean, and what is refused."""

import pytest

from study.branch.request import BranchRequest, parsed
from study.errors import UsageError


def test_settings_are_told_from_those_of_a_sweep():
    words = [
        "results/x",
        "checkpoints=[0,200]",
        "optimizer=sgd",
        "tolerance=1e-2",
        "window=1e4",
        "factors=2",
        "seeds=3",
    ]
    request, others = parsed(words)
    assert request == BranchRequest(checkpoints=(0, 200), tolerance=0.01, window=10000, factors=(2.0,), seeds=3)
    assert others == ["results/x", "optimizer=sgd"]


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("checkpoints=0", "checkpoints must be at least 1 and whole, but got 0."),
        ("checkpoints=[200,100]", r"checkpoints must increase, but got \[200, 100\]."),
        ("checkpoints=[1.5]", "checkpoints must be at least 0 and whole, but got 1.5."),
        ("checkpoints=[1", r"checkpoints=\[1 cannot be read; lists have brackets, such as checkpoints=\[1,2\]."),
        ("multiples=[2,4]", "multiples must be 1, the trunk's own batch size, and larger ones"),
        ("multiples=[1]", "multiples must be 1, the trunk's own batch size, and larger ones"),
        ("seeds=1", "seeds must be at least 2 and whole, but got 1."),
        ("rule=lineal", "unknown rule 'lineal'; did you mean 'linear'?"),
        ("tolerance=0", "tolerance must be above 0, but got 0.0."),
        ("factors=[0.5,x]", "factors must be above 0, but got 0.5 and x."),
        ("window=soon", "window must be a number of examples, or text such as '1M tokens', but got soon."),
    ],
)
def test_refusals_name_the_rule_and_the_value(word, why):
    with pytest.raises(UsageError, match=why.replace("?", r"\?")):
        parsed([word])


def test_a_setting_is_given_once():
    with pytest.raises(UsageError, match="seeds is given twice"):
        parsed(["seeds=2", "seeds=3"])


@pytest.mark.parametrize(
    ("words", "sizes", "window"),
    [
        ([], [8, 16, 32, 64, 128, 256], 4096),
        (["multiples=[1,3,4]"], [8, 24, 32], 576),
        (["multiples=[1,4]", "window=320"], [8, 32], 320),
        (["multiples=[1,4]", "window='4k tokens'"], [8, 32], 64),
    ],
)
def test_windows_are_whole_numbers_of_steps(words, sizes, window):
    request, _ = parsed(words)
    assert request.batch_sizes(8, 1000) == sizes
    assert request.examples(sizes, 64, "text") == window


def test_windows_and_batch_sizes_that_do_not_fit():
    request, _ = parsed(["multiples=[1,2,3]", "window=100"])
    with pytest.raises(UsageError, match=r"no whole number of steps at batch size 8, 16 or 24; .* window=144\."):
        request.examples([8, 16, 24], None, "digits")
    with pytest.raises(UsageError, match=r"3 times batch size 8 is more than the 20 training examples; .*\[1,2\]"):
        request.batch_sizes(8, 20)
    tokens, _ = parsed(["window='1k tokens'"])
    with pytest.raises(UsageError, match="counts tokens, but digits has no"):
        tokens.examples([8], None, "digits")


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [("sgd", "linear"), ("momentum", "linear"), ("adam", "square_root"), ("my.Own", "square_root")],
)
def test_the_usual_rule_follows_the_optimizer(optimizer, rule):
    assert BranchRequest().rule_of(optimizer) == rule
    assert BranchRequest(rule="constant").rule_of(optimizer) == "constant"
