"""Losses, errors, weights and metrics: numbers of an example that depend on other examples are refused."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.fused import partly
from helpers.users.checked import Made, refused
from helpers.users.workloads import MeanLoss
from torch import nn

from study.checks.functions import check_functions
from study.checks.model import mixture
from study.errors import UsageError

CLASSES, LENGTH, N = 4, 3, 60
CONTIGUOUS = torch.contiguous_format
RARITY = torch.tensor([0.5, 1.0, 1.0, 4.0])


def made(model=lambda: nn.Linear(6, CLASSES), **members):
    """A workload of made examples; it measures nothing unless `members` say so."""
    return Made(model, **{"errors": {}} | members)


def examples(targets=None):
    """The inputs and targets that a check looks at. Labels are sorted unless `targets` replaces them."""
    inputs = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(N) * CLASSES // N if targets is None else targets
    chosen = mixture(N)
    return inputs[chosen], labels[chosen]


def check(study, workload, targets=None, **more):
    check_functions(study, workload, *examples(targets), CONTIGUOUS, **more)


def ce(outputs, targets, **more):
    return F.cross_entropy(outputs, targets, reduction="none", **more)


def normalised_weights(outputs, targets):
    w = RARITY[targets]
    return ce(outputs, targets) * w / w.sum() * len(w)


def balanced(outputs, targets):
    counts = torch.bincount(targets, minlength=CLASSES)
    return ce(outputs, targets) * len(targets) / counts[targets]


def hardest(outputs, targets):
    losses = ce(outputs, targets)
    return losses * (losses >= losses.topk(max(1, len(losses) // 2)).values[-1])


def contrastive(outputs, targets):
    similar = F.normalize(outputs) @ F.normalize(outputs).T
    return F.cross_entropy(similar / 0.1, torch.arange(len(outputs)), reduction="none")


def centred(outputs, targets):
    return ce((outputs - outputs.mean(0)) / (outputs.std(0, correction=0) + 1e-5), targets)


def ranking(outputs, targets):
    scores = outputs[:, 0]
    return F.relu(1 - (scores[:, None] - scores)).mean(1)


def ignoring(outputs, targets):
    kept = torch.where(targets == 0, -100, targets)
    losses = ce(outputs, kept, ignore_index=-100)
    return losses * len(kept) / (kept != -100).sum().clamp(min=1)


def only_large(outputs, targets):
    losses = ce(outputs, targets)
    return losses if len(losses) <= 200 else losses - losses.mean() + 1


def only_even(outputs, targets):
    losses = ce(outputs, targets)
    return losses + (0 if len(losses) % 2 else losses.mean())


def coupled_gradient(outputs, targets):
    mean = outputs.pow(2).mean()
    return ce(outputs, targets) + mean - mean.detach()


def by_type(outputs, targets):
    if outputs.dtype == torch.float64:
        return ce(outputs, targets)
    return ce(outputs, targets) + outputs.mean()


def greatest(outputs, targets):
    return ce(outputs / outputs.detach().abs().max(), targets)


def neighbour(outputs, targets):
    return ce(outputs, targets) + outputs[:, 0].roll(1)


def drawn(outputs, targets):
    return ce(outputs + torch.randn_like(outputs), targets)


def unseeded(outputs, targets):
    return ce(outputs, targets) * np.random.default_rng().uniform()


def counting(outputs, targets, calls=[]):  # noqa: B006
    calls.append(1)
    return ce(outputs, targets) * len(calls)


def writing(outputs, targets):
    outputs.mul_(2)
    losses = ce(outputs, targets.clone())
    targets.zero_()
    return losses


LOSSES = {
    "of the batch size": (lambda o, t: ce(o, t) / len(t), "alone and .* beside"),
    "weights normalised over the batch": (normalised_weights, "alone and .* others; .* give the workload `weights"),
    "class-balanced over the batch": (balanced, "`weights"),
    "hardest examples of the batch": (hardest, "other examples"),
    "contrastive": (contrastive, "other examples"),
    "mixup": (lambda o, t: 0.7 * ce(o, t) + 0.3 * ce(o, t[torch.randperm(len(t))]), "other examples"),
    "centred over the batch": (centred, "other examples"),
    "pairs": (ranking, "other examples"),
    "mean over examples that are not ignored": (ignoring, "other examples"),
    "large batches only": (only_large, "beside 255 others"),
    "even batches only": (only_even, "other examples"),
    "gradient only": (coupled_gradient, "its gradient is .* at the outputs of 7 others"),
    "float32 only": (by_type, "other examples"),
    "slightly": (lambda o, t: ce(o, t) + 1e-4 * o.mean(), "other examples"),
    "greatest output": (greatest, "other examples"),
    "neighbour": (neighbour, "other examples"),
    "place in the batch": (lambda o, t: ce(o, t) * torch.linspace(0.5, 1.5, len(t)), "other examples"),
    "generator without a seed": (unseeded, r"gives other numbers .*default_rng\(\)"),
    "state": (counting, "gives other numbers .* it keeps state"),
    "seeded noise": (drawn, None),
    "writes into its arguments": (writing, None),
    "half precision inside": (lambda o, t: ce(o.half().float(), t), None),
    "ignored without a mean": (lambda o, t: ce(o, torch.where(t == 0, -100, t), ignore_index=-100), None),
    "fixed class weights": (lambda o, t: ce(o, t, weight=RARITY), None),
    "fixed weights": (lambda o, t: ce(o, t) * RARITY[t], None),
    "rounding of large terms": (lambda o, t: (o.sum(1) + 1e4) - 1e4 + ce(o, t), None),
    "one example is squeezed": (lambda o, t: ce(o.squeeze(0), t), None),
    "in a loop": (lambda o, t: torch.stack([ce(o[i : i + 1], t[i : i + 1])[0] for i in range(len(t))]), None),
    "label smoothing": (lambda o, t: ce(o, t, label_smoothing=0.1), None),
    "zero": (lambda o, t: o.sum(1) * 0, None),
}


@pytest.mark.parametrize(("loss", "said"), LOSSES.values(), ids=LOSSES)
def test_losses(make_study, loss, said):
    with refused(said and f"tiny's loss .*{said}"):
        check(make_study(), made(loss=loss))


def zero_head():
    model = nn.Linear(6, CLASSES)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


@pytest.mark.parametrize("loss", [centred, greatest, neighbour, hardest])
def test_a_model_with_equal_outputs_hides_nothing(make_study, loss):
    with pytest.raises(UsageError, match="loss of an example must not depend"):
        check(make_study(), made(zero_head, loss=loss))


def of_probabilities(outputs, targets):
    return F.binary_cross_entropy(outputs[:, 0], (targets > 1).float(), reduction="none")


def ranks(outputs, targets):
    return outputs[:, 0].argsort().argsort() / len(outputs)


def wrong(outputs, targets):
    return (outputs.argmax(-1) != targets).float()


def accuracy(higher_is_better):
    """A metric that says, as those of torchmetrics do, whether more is better."""
    return {"m": type("Accuracy", (MeanLoss,), {"higher_is_better": higher_is_better})()}


FUNCTIONS = {
    "ranks": ({"errors": {"rank": ranks}}, r"tiny's errors\['rank'\] .* use `metrics = "),
    "share of errors": ({"errors": {"share": lambda o, t: wrong(o, t).mean().expand(len(t))}}, "`metrics = "),
    "accuracy of the rest": ({"errors": {"rest": lambda o, t: wrong(o, t) - wrong(o, t).mean()}}, "`error_weights"),
    "zero or one": ({"errors": {"wrong": wrong}}, None),
    "top two": ({"errors": {"top": lambda o, t: (o.topk(2).indices != t[:, None]).all(1).double()}}, None),
    "weights": ({"weights": lambda t: RARITY[t]}, None),
    "weights that are normalised": ({"weights": lambda t: RARITY[t] / RARITY[t].sum()}, "tiny's weights .* constants"),
    "weights by count": ({"error_weights": lambda t: 1 / torch.bincount(t)[t]}, "tiny's error_weights .* class freq"),
    "negative": ({"weights": lambda t: t - 1.0}, "weights must not be negative, but got -1 for example 0"),
    "not finite": ({"weights": lambda t: 1.0 / t}, "weights is not finite"),
    "one weight": ({"weights": lambda t: torch.tensor(1.0)}, r"weights must be a number per example, of shape \[24\]"),
    "metric": ({"metrics": {"m": lambda o, t: float(wrong(o, t).mean())}}, None),
    "tensor": ({"metrics": {"m": lambda o, t: wrong(o, t).mean()}}, None),
    "NumPy": ({"metrics": {"m": lambda o, t: np.float32(0.5)}}, None),
    "metric per example": ({"metrics": {"m": wrong}}, r"tiny's metrics\['m'\] must return one number"),
    "a collection": (
        {"metrics": {"m": lambda o, t: {"a": wrong(o, t).mean(), "b": 0.5}}},
        "but got {a: .* its own name, `metrics = {name: metric, ...}`; a MetricCollection .* itself be `metrics`",
    ),
    "two numbers": ({"metrics": {"m": lambda o, t: (0.5, 0.5)}}, "give each number its own name, `metrics = {name"),
    "text": ({"metrics": {"m": lambda o, t: "good"}}, "must return one number for all examples, but got a str"),
    "infinite metric": ({"metrics": {"m": lambda o, t: np.inf}}, "is inf before training"),
    "better when higher": ({"metrics": accuracy(True)}, "be lower when better, but a.* is .* measure `1 - metric`"),
    "better when lower": ({"metrics": accuracy(False)}, None),
    "better in a way that it does not say": ({"metrics": accuracy(None)}, None),
    "no function": ({"metrics": {"m": 0.5}}, "must be a function of .* or have update, compute and reset"),
    "failing metric": ({"metrics": {"m": lambda o, t: o.nope}}, r"metrics\['m'\] cannot be computed.*'nope' \(.*line"),
}


MEANS = {
    "repeated": lambda o, t: F.cross_entropy(o, t).expand(len(t)),
    "multiplied": lambda o, t: F.cross_entropy(o, t) * torch.ones(len(t)),
    "with a term of each": lambda o, t: F.cross_entropy(o, t) + 0.01 * o.square().sum(1),
}


@pytest.mark.parametrize("kind", ["loss", "errors"])
@pytest.mark.parametrize("function", MEANS.values(), ids=MEANS)
def test_a_mean_in_the_shape_of_one_number_per_example_has_a_cure(make_study, kind, function):
    with refused("leave out a mean over examples, which the losses of torch do with reduction='none'; "):
        check(make_study(), made(**{kind: function if kind == "loss" else {"e": function}}))


@pytest.mark.parametrize(("members", "said"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_errors_weights_and_metrics(make_study, members, said):
    with refused(said):
        check(make_study(), made(**members))


def unexplained(outputs, targets):
    return ((outputs - targets) ** 2).mean() / targets.var()


def distance(outputs, targets):
    return (outputs - targets).abs()


def as_column(metric):
    return lambda o, t: metric(o, t[:, None])


AVOID = r"pairs of examples: use "
ONE_OUTPUT = {
    "a metric of all pairs": (
        {"metrics": {"u": unexplained}},
        rf"metrics\['u'\] must compare .*{AVOID}outputs.squeeze",
    ),
    "a mean of means": ({"metrics": {"u": lambda o, t: distance(o, t).mean(1).mean()}}, f"{AVOID}targets.unsqueeze"),
    "an error of all pairs": ({"errors": {"d": distance}}, rf"got float32 \[8, 8\]; outputs .*{AVOID}outputs.squeeze"),
    "its mean": ({"errors": {"d": lambda o, t: distance(o, t).mean(1)}}, rf"\[8, 1\] .* {AVOID}targets.unsqueeze"),
    "a loss": ({"loss": lambda o, t: distance(o, t).mean(-1)}, f"loss of an example must .*{AVOID}targets.unsqueeze"),
    "a loss of the batch": ({"loss": lambda o, t: (o - o.mean(0)).squeeze(1) ** 2 + t}, "; leave out a mean over"),
    "pairs that are meant": ({"loss": lambda o, t: F.relu(o - o.T).mean(1)}, "examples, as contrastive ones do"),
    "a metric that squeezes": ({"metrics": {"u": lambda o, t: unexplained(o.squeeze(1), t)}}, None),
    "a metric that adds the axis": ({"metrics": {"u": as_column(unexplained)}}, None),
    "a metric that flattens": ({"metrics": {"u": lambda o, t: unexplained(o.flatten(), t)}}, None),
    "a metric that indexes": ({"metrics": {"u": lambda o, t: unexplained(o[:, 0], t)}}, None),
    "a metric of the means": ({"metrics": {"bias": lambda o, t: (o.mean() - t.mean()).abs()}}, None),
    "random": ({"metrics": {"noise": lambda o, t: torch.rand(())}}, None),
}


class Named(nn.Module):
    """Its output has a name; there is another one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return {"y": self.layer(x), "x": x}


@pytest.mark.parametrize(("members", "said"), partly(ONE_OUTPUT.values(), 4), ids=ONE_OUTPUT)
def test_one_output_and_targets_without_its_axis_are_not_broadcast(make_study, members, said):
    loss, targets = {"loss": lambda o, t: distance(o.squeeze(1), t)}, torch.arange(N).sin()
    with refused(said):
        check(make_study(), made(lambda: nn.Linear(6, 1), **loss | members), targets=targets)
    named = {
        member: {name: by_name(each) for name, each in value.items()} if isinstance(value, dict) else by_name(value)
        for member, value in (loss | members).items()
    }
    with refused(said and said.replace("outputs.squeeze", "squeeze")):
        check(make_study(), made(Named, **named), targets=targets)


def by_name(function):
    return lambda o, t: function(o["y"], t)


def test_targets_with_an_axis_that_the_outputs_lack_are_not_broadcast(make_study):
    members = {"loss": lambda o, t: distance(o, t.squeeze(1)), "metrics": {"u": unexplained}}
    workload = made(lambda: nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), **members)
    with refused(r"metrics\['u'\] must compare each .* use targets.squeeze\(-1\)"):
        check(make_study(), workload, targets=torch.arange(N).sin()[:, None])


def of_rare(outputs, targets):
    if not (targets == 7).any():
        warnings.warn("undefined", stacklevel=1)
        raise ValueError("only one class present")
    return float((targets == 7).double().mean())


def test_a_metric_may_need_more_than_a_few_examples(make_study):
    workload = made(metrics={"rare": of_rare})
    check(make_study(), workload, val_targets=torch.arange(50) % 8)
    with pytest.warns(UserWarning, match="undefined"), pytest.raises(UsageError, match="only one class present"):
        check(make_study(), workload, val_targets=torch.zeros(50))


class Tokens(nn.Module):
    """Outputs [B, T, C] in a mapping, and a number of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, LENGTH * CLASSES)

    def forward(self, x):
        logits = self.layer(x).unflatten(1, (LENGTH, CLASSES))
        return {"logits": logits, "balance": logits.mean(), "states": (logits, logits * 2)}


def per_token(outputs, targets):
    return ce(outputs["logits"].movedim(-1, 1), targets["labels"]).mean(1)


def per_kept_token(outputs, targets):
    losses = ce(outputs["logits"].movedim(-1, 1), targets["labels"])
    return (losses * targets["kept"]).sum(1) / targets["kept"].sum(1)


def per_token_of_the_batch(outputs, targets):
    losses = ce(outputs["logits"].movedim(-1, 1), targets["labels"])
    return (losses * targets["kept"]).sum(1) * len(losses) / targets["kept"].sum()


@pytest.mark.parametrize(
    ("loss", "said"), [(per_token, None), (per_kept_token, None), (per_token_of_the_batch, "on the other examples")]
)
def test_trees_of_tokens(make_study, loss, said):
    inputs, labels = examples()
    kept = torch.ones(len(labels), LENGTH)
    kept[::3, 1:] = 0
    targets = {"labels": labels[:, None].expand(-1, LENGTH).contiguous(), "kept": kept}
    with refused(said):
        check_functions(make_study(), made(Tokens, loss=loss), inputs, targets, CONTIGUOUS)


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.layer(x))


ACCEPTED = {
    "outputs that noise would spoil": lambda: made(
        lambda: nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()), loss=of_probabilities
    ),
    "metrics with update and compute": lambda: made(metrics={"mean_loss": MeanLoss()}),
    "outputs without tensors": lambda: made(Opaque, loss=lambda outputs, targets: -outputs.log_prob(targets)),
}


@pytest.mark.parametrize("workload", ACCEPTED.values(), ids=ACCEPTED)
def test_unusual_workloads_are_accepted_without_a_warning(make_study, workload, recwarn):
    check(make_study(), workload())
    assert not recwarn.list


def test_the_generators_are_put_back(make_study):
    before = torch.get_rng_state()
    check(make_study(), made(loss=drawn, errors={"noisy": drawn}))
    assert torch.equal(before, torch.get_rng_state())
