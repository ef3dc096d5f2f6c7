"""The loss and the errors of sequences of tokens, and what language models refuse."""

import pytest
import torch
import torch.nn.functional as F
from helpers.users.windows import COMMON, LANGUAGE_MODELS

from workloads.base import IGNORED, classification_error, cross_entropy_error, token_weights
from workloads.classification import smoothed_cross_entropy
from workloads.user_code.importing import build

LOGITS = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(1))
PADDED = TARGETS.clone()
PADDED[0, 3:] = PADDED[1, 1:] = PADDED[2] = IGNORED
SMOOTHING = torch.tensor([0.0, 0.1, 0.2, 0.3])
FUNCTIONS = {
    "cross entropy": cross_entropy_error,
    "classification": classification_error,
    "paper": lambda outputs, targets: smoothed_cross_entropy(outputs, targets, SMOOTHING[: len(outputs)], "paper"),
    "uniform": lambda outputs, targets: smoothed_cross_entropy(outputs, targets, SMOOTHING[: len(outputs)], "uniform"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("targets", [TARGETS, PADDED], ids=["whole", "padded"])
def test_a_sequence_has_the_mean_over_its_counted_tokens(name, targets):
    found = FUNCTIONS[name](LOGITS, targets)
    assert found.shape == (4,)
    for example, (logits, labels, smoothing) in enumerate(zip(LOGITS, targets, SMOOTHING, strict=True)):
        logits, labels = logits[labels != IGNORED], labels[labels != IGNORED]
        if name in ("paper", "uniform"):
            each = smoothed_cross_entropy(logits, labels, smoothing, name)
        else:
            each = FUNCTIONS[name](logits, labels)
        torch.testing.assert_close(found[example], each.mean() if len(each) else torch.tensor(0.0))


def test_ignored_tokens_may_have_another_number():
    torch.testing.assert_close(
        cross_entropy_error(LOGITS, PADDED.where(PADDED != IGNORED, 9), ignore_index=9),
        cross_entropy_error(LOGITS, PADDED),
    )
    assert token_weights(PADDED).tolist() == [3, 1, 0, 5]
    assert token_weights(TARGETS, ignore_index=int(TARGETS[0, 0]))[0] < 5


def test_the_weighted_mean_is_that_of_torch_over_all_tokens():
    each, weights = cross_entropy_error(LOGITS, PADDED), token_weights(PADDED)
    wanted = F.cross_entropy(LOGITS.flatten(0, 1), PADDED.flatten())
    torch.testing.assert_close((each * weights).sum() / weights.sum(), wanted)


def test_an_ignored_target_of_a_whole_example_counts_as_no_error():
    targets = torch.tensor([0, IGNORED])
    for error in (classification_error, cross_entropy_error):
        found = error(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), targets)
        assert found[0] > 0
        assert found[1] == 0


def test_ignored_tokens_have_no_gradient():
    logits = LOGITS.clone().requires_grad_()
    (cross_entropy_error(logits, PADDED).sum() + smoothed_cross_entropy(logits, PADDED, 0.1, "paper").sum()).backward()
    assert ((logits.grad == 0).all(-1) == (PADDED == IGNORED)).all()


def test_windows_without_padding_have_no_weights():
    for name, workload in LANGUAGE_MODELS.items():
        wanted = token_weights if "padded" in name else None
        assert workload.weights is workload.error_weights is wanted
        assert workload.tokens_per_example == workload.context


def test_the_loss_smooths_as_configured_unless_smoothing_is_tuned():
    smooth = build(TRANSFORMER | {"label_smoothing": 0.1, "label_smoothing_convention": "uniform"})
    torch.testing.assert_close(
        smooth.loss(LOGITS, TARGETS), smoothed_cross_entropy(LOGITS, TARGETS, 0.1, "uniform"), rtol=0, atol=0
    )
    torch.testing.assert_close(
        smooth.loss(LOGITS, TARGETS, label_smoothing=SMOOTHING), FUNCTIONS["uniform"](LOGITS, TARGETS), rtol=0, atol=0
    )
    assert torch.equal(build(TRANSFORMER).loss(LOGITS, TARGETS), cross_entropy_error(LOGITS, TARGETS))


TRANSFORMER = {"_target_": "workloads.language.transformer.TransformerLm", **COMMON}
LSTM = {"_target_": "workloads.language.lstm.LstmLm", "width": 4, **COMMON}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tokenizer": "bite"}, ["unknown workload.tokenizer 'bite'", "did you mean 'byte'"]),
        ({"tokenizer": "bpe"}, ["workload.vocabulary", "at least 257", "None"]),
        ({"vocabulary": 300}, ["workload.vocabulary", "workload.tokenizer=bpe", "300"]),
        ({"context": 0}, ["workload.context must be", "0"]),
        ({"label_smoothing": 1}, ["workload.label_smoothing must be", "in [0, 1)"]),
        ({"size": "huge"}, ["unknown workload.size 'huge'", "shallow"]),
        ({"norm_place": "before"}, ["unknown workload.norm_place 'before'", "pre"]),
        ({"norm": "lay"}, ["unknown workload.norm 'lay'", "did you mean 'layer'"]),
        ({"positions": "rotatory"}, ["unknown workload.positions", "did you mean 'rotary'"]),
        ({"activation": "rely"}, ["unknown workload.activation", "did you mean 'relu'"]),
        ({"depth": 0}, ["workload.depth must be", "at least 1", "0"]),
        ({"heads": 7}, ["workload.width", "workload.heads", "width=512 and heads=7"]),
        ({"positions": "rotary", "width": 8, "heads": 8}, ["an even number of times", "width=8 and heads=8"]),
        ({"positions": "sinusoidal", "width": 9, "heads": 3}, ["and even", "width=9 and heads=3"]),
        ({"dropout": 1}, ["workload.dropout must be", "in [0, 1)"]),
        (LSTM | {"width": 0}, ["workload.width must be", "at least 1", "0"]),
        (LSTM | {"depth": 1.5}, ["workload.depth must be", "1.5"]),
        (LSTM | {"embedding_width": 0}, ["workload.embedding_width must be", "0"]),
        (LSTM | {"embedding_width": 5, "tied": True}, ["workload.tied", "set it to 4", "5"]),
        (LSTM | {"dropout": -1}, ["workload.dropout must be", "-1"]),
    ],
)
def test_build_refuses(config, words):
    with pytest.raises(ValueError) as refusal:
        build(TRANSFORMER | config)
    for word in words:
        assert word in str(refusal.value)
