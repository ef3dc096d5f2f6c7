"""Tokens as a unit: batch sizes, budgets, warmups and half-lives, and what workloads without tokens are told."""

import pytest
from helpers.fused import partly
from helpers.users.markov import YAML

from analysis.units import in_examples
from study.config.jobs import parse_jobs
from study.errors import UsageError
from study.records import Study
from study.settings import Budget

T = 64


@pytest.fixture
def markov(tmp_path):
    """The studies that these overrides ask for of a workload with 512 sequences of 64 tokens."""
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload" / "markov.yaml").write_text(YAML)

    def studies(*overrides):
        words = ["workload=markov", "search=sobol", *overrides]
        return [job.study for job in parse_jobs(words, tmp_path)]

    return studies


@pytest.mark.parametrize(
    ("overrides", "batch_sizes", "steps"),
    partly(
        [
            ([], [4, 32], [32, 8]),
            (["batch_size=1k tokens"], [16], [8]),
            (["batch_size=1k tokens,0.5k tokens,64 tokens"], [16, 8, 1], [8, 16, 128]),
            (["batch_sizes=[2,512 tokens]"], [2, 8], [64, 16]),
            (["batch_size=8", "budget.tokens=1e5"], [8], [196]),
            (["batch_size=8", "budget.epochs=2"], [8], [128]),  # the largest counts
            (["batch_size=8", "budget.tokens=null"], [8], [8]),
            (["batch_size=8", "budget.tokens=1e5", "budget.max_steps=50"], [8], [50]),
            (["batch_size=24", "budget.epochs=1", "budget.tokens=null"], [24], [22]),
            # Rounded down: no example twice.
            (["batch_size=24", "budget.epochs=1", "budget.single_pass=true"], [24], [21]),
        ],
        2,
    ),
)
def test_batch_sizes_and_budgets_in_tokens(markov, overrides, batch_sizes, steps):
    found = markov(*overrides)
    assert [study.batch_size for study in found] == batch_sizes
    assert [study.train_steps for study in found] == steps
    assert {study.tokens_per_example for study in found} == {T}


@pytest.mark.parametrize(
    ("overrides", "told"),
    partly(
        [
            (["batch_size=1000 tokens"], ["batch_size=1000 tokens is 1,000", "15 (960 tokens) and 16 (1,024 tokens)"]),
            (["batch_size=32 tokens"], ["one sequence of markov has 64; give 1 or more"]),
            (["batch_size=big"], ["batch_size must be a whole number, but got big;"]),
            (["batch_size=2 token sequences"], ["batch_size must be a whole number"]),
            (["batch_sizes=[8,512 tokens]"], ["batch size 8 twice"]),
            (["budget.tokens=0"], ["budget.tokens must be a number of at least 1"]),
            (["workload.tokens_per_example=0"], ["tokens_per_example of markov must be a whole number of at least 1"]),
            (
                ["search.space.momentum_half_life_tokens=9", "search.space.momentum_half_life_examples=9"],
                ["search.space has both", "give one of them"],
            ),
            (["search.space.warmup_tokens=9", "search.space.warmup_steps=9"], ["in steps, in examples or in tokens"]),
            (
                ["budget.single_pass=true", "batch_sizes=[4,8,16]", "budget.epochs=1.5", "budget.steps=40"],
                [
                    "has 512, and the budget needs 768 at batch size 4, 768 at batch size 8",
                    "budget.steps of at most 32.",
                ],
            ),
            (["budget.single_pass=true", "search.budgets=[0.5,1,5]"], ["needs 640 at batch size 4"]),
        ],
        2,
    ),
)
def test_refusals_name_the_rule_and_the_cure(markov, overrides, told):
    with pytest.raises(UsageError) as refused:
        markov(*overrides)
    for words in told:
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("batch_size=32k tokens", "mlp_digits has no tokens_per_example; give a number of examples"),
        ("budget.tokens=1e6", "mlp_digits has no tokens_per_example; give budget.epochs or budget.steps"),
        ("search.space.warmup_tokens=100", "mlp_digits has no tokens_per_example; give warmup_examples"),
        ("search.space.momentum_half_life_tokens=9", "give momentum_half_life_examples"),
    ],
)
def test_a_workload_without_tokens_says_so(override, told):
    with pytest.raises(UsageError, match=told):
        parse_jobs([override])


@pytest.mark.parametrize(
    ("tokens", "examples"),
    [
        ({"warmup_tokens": 6400.0}, {"warmup_examples": 100.0}),
        ({"momentum_half_life_tokens": 640.0}, {"momentum_half_life_examples": 10.0}),
        ({"beta2_half_life_tokens": 64e4, "beta1": 0.9}, {"beta2_half_life_examples": 1e4, "beta1": 0.9}),
    ],
)
def test_tokens_mean_the_examples_that_hold_them(make_study, tokens, examples):
    assert in_examples(tokens, T) == examples
    optimizer = "adam" if "beta1" in tokens else "momentum"
    fixed = {"learning_rate": 0.1, "epsilon": 1e-8} if optimizer == "adam" else {"learning_rate": 0.1}
    fixed |= {} if {"momentum_half_life_tokens"} & tokens.keys() or optimizer == "adam" else {"momentum": 0.9}
    studies = [
        make_study(space={**fixed, **each}, optimizer=optimizer, tokens_per_example=T) for each in (tokens, examples)
    ]
    rates = [study.learning_rate({**fixed, **each}) for study, each in zip(studies, (tokens, examples), strict=True)]
    assert [rates[0](step) for step in range(40)] == [rates[1](step) for step in range(40)]
    assert studies[0].resolved({**fixed, **tokens}) == studies[1].resolved({**fixed, **examples})


def test_questions_say_tokens_only_where_there_are_some(make_study):
    plain, with_tokens = make_study().question(), make_study(tokens_per_example=T)
    assert not {"tokens_per_example", "tokens", "single_pass"} & {*plain, *plain["budget"]}
    study = make_study(tokens_per_example=T, budget=Budget(0, 1, tokens=512.0, single_pass=True))
    for each in (with_tokens, study):
        assert Study.from_question(each.question()) == each


@pytest.mark.parametrize(("steps", "fits"), [(8, True), (9, False)])
def test_a_single_pass_has_an_example_for_each_place(make_study, steps, fits):
    budget = Budget(0, steps, single_pass=True)  # of 64 examples, in batches of 8
    if fits:
        assert make_study(budget=budget).train_steps == 8
        return
    with pytest.raises(ValueError, match="tiny has 64, and the budget needs 72 at batch size 8; "):
        make_study(budget=budget)
