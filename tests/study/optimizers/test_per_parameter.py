"""Learning-rate factors of single parameters: which parameters they reach, and which factors are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from study import store, whole_sweep
from study.checks.optimizer import mean_factor
from study.config.jobs import parse_jobs
from study.errors import UsageError
from study.optimizers import per_parameter
from study.optimizers.kfac import KFAC
from study.optimizers.per_parameter import Treatment, param_groups
from study.store import StoreError
from workloads.fully_connected import FullyConnected


class Net(nn.Module):
    """Two layers of a body, one of them frozen, and a head that is tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.LayerNorm(3))
        self.body[0].requires_grad_(False)
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


class Tiny:
    name = "tiny"

    def __init__(self, groups: Any = None) -> None:
        self.groups: Callable[[nn.Module], Any] = lambda model: groups

    def model(self) -> nn.Module:
        return Net()


def rates(groups: Any) -> dict[str, float]:
    return {name: each.rate for name, each in per_parameter.treatments(Net(), Tiny(groups)).items()}


def test_factors_are_of_a_parameter_or_of_all_in_a_module():
    assert rates({"body": 0.1, "head.bias": 2}) == {
        **dict.fromkeys(["body.1.weight", "body.1.bias", "body.2.weight", "body.2.bias"], 0.1),
        "head.bias": 2.0,
    }
    assert rates({}) == rates({"body": 1}) == rates({"body.0": 0.5}) == {}
    assert rates({"head": 0.5}) == {"embedding.weight": 0.5, "head.bias": 0.5}  # by either name of a tied parameter


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([("body", 0.1)], r"tiny.groups\(model\) must return a mapping .* but got a list"),
        ({"bady": 0.1}, "names 'bady', but the model has no such parameter; did you mean 'body'"),
        ({"bod": 0.1}, "names 'bod', but"),
        ({"body": 0.1, "body.2.weight": 1.0}, "puts body.2.weight into the groups 'body' and 'body.2.weight'; leave"),
        ({"embedding": 0.1, "head": 1.0}, "puts embedding.weight into the groups 'embedding' and 'head'"),
        ({"body": 0}, "must be numbers above 0, but got 'body': 0; requires_grad=False freezes"),
        ({"body": -1.0}, "but got 'body': -1.0"),
        ({"body": float("nan")}, "but got 'body': nan"),
        ({"body": "fast"}, "but got 'body': 'fast'"),
    ],
)
def test_faults_are_refused(groups, said):
    with pytest.raises(ValueError, match=said):
        rates(groups)


def undecayed(*patterns: str) -> set[str]:
    found = per_parameter.treatments(Net(), Tiny({}), per_parameter.patterns(patterns))
    assert all(each == Treatment(1.0, decays=False) for each in found.values())
    return set(found)


def test_patterns_are_parts_of_names_or_of_the_number_of_dimensions():
    biases = {"body.1.bias", "body.2.bias", "head.bias"}
    assert undecayed("BIAS") == biases  # not of the frozen layer
    assert undecayed("ndim<2") == biases | {"body.2.weight"}
    assert undecayed("head.w", "body.2") == {"embedding.weight", "body.2.weight", "body.2.bias"}  # by either name
    both = per_parameter.treatments(Net(), Tiny({"body.2": 0.1}), ("bias",))
    assert both["body.2.weight"] == Treatment(0.1, decays=True)
    assert both["body.2.bias"] == Treatment(0.1, decays=False)
    assert both["head.bias"] == Treatment(1.0, decays=False)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ["optimizer.no_decay=[bias,norm]"],
            "optimizer.no_decay has 'norm', which matches no parameter of mlp_digits; ",
        ),
        (
            ["optimizer.no_decay=[bias,norm]"],
            r"these are 1.weight, 1.bias, .*'ndim<2' matches those with fewer than two",
        ),
        (["optimizer.no_decay=['']"], "lists parts of parameter names, such as bias, but got"),
        (
            ["optimizer=torch", "optimizer.target=torch.optim.Rprop", "optimizer.no_decay=[bias]"],
            "takes no weight_decay;",
        ),
    ],
)
def test_patterns_that_match_nothing_are_refused(tmp_path, asked, said):
    with pytest.raises(UsageError, match=said):
        whole_sweep.jobs_here(
            ["batch_size=64", "+search.space.l2=0.1", *asked, f"results={tmp_path / 'results'}"], None
        )


@pytest.mark.slow
def test_patterns_belong_to_the_question(tmp_path):
    def job(*patterns: str) -> Any:
        return parse_jobs(["batch_size=64", "+search.space.l2=0.1", f"results={tmp_path}", *patterns])[0]

    one, other = job("optimizer.no_decay=[Bias,ndim<2]"), job("optimizer.no_decay=['ndim < 2', bias, bias]")
    assert one.study == other.study
    assert one.study.no_decay == ("bias", "ndim<2")
    assert type(one.study).from_question(json.loads(json.dumps(one.study.question()))) == one.study
    assert "no_decay" not in job().study.question()  # as questions on file, which older versions wrote
    store.announce(tmp_path, job().study)
    with pytest.raises(StoreError, match=r"holds another question \(no_decay: None -> \['bias', 'ndim<2'\]\)"):
        store.check(tmp_path, [one.study])


@pytest.mark.slow
def test_a_sweep_refuses_faulty_groups_and_knows_changed_ones_again(tmp_path, monkeypatch):
    asked = ["batch_size=64", f"results={tmp_path / 'results'}"]
    monkeypatch.setattr(FullyConnected, "groups", lambda self, model: {"body": 0.1}, raising=False)
    with pytest.raises(
        UsageError, match=r"mlp_digits.groups\(model\) names 'body', but the model has no such parameter"
    ):
        whole_sweep.jobs_here(asked, None)
    monkeypatch.setattr(FullyConnected, "groups", lambda self, model: 1 / 0)
    with pytest.raises(UsageError, match=r"groups\(model\) cannot be computed: ZeroDivisionError: .*, line"):
        whole_sweep.jobs_here(asked, None)
    factors = []
    for rate in (1.0, 0.5):
        monkeypatch.setattr(FullyConnected, "groups", lambda self, model, rate=rate: {"1": rate})
        [job], _ = whole_sweep.jobs_here(asked, None)
        factors.append(job.fingerprint["mean learning-rate factor"])
    assert factors[0] == 1.0
    assert 0.5 < factors[1] < 1.0
    assert mean_factor(job.study, Tiny({"body": 3.0}))["mean learning-rate factor"] > 1


def test_optimizers_get_one_list_unless_something_is_special():
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert param_groups(model, 0.5) == trained
    assert next(name for name, _ in param_groups(model, 0.5, named=True)) == "body.1.weight"
    slow, usual = param_groups(model, 0.5, {"body.1.weight": Treatment(0.1)})
    assert (slow["lr"], usual["lr"]) == (0.05, 0.5)
    assert [id(p) for p in slow["params"] + usual["params"]] == [id(p) for p in trained]


def test_kfac_moves_a_weight_and_its_bias_at_their_own_rates():
    h = {"learning_rate": 0.1, "momentum": 0.8, "damping": 0.1, "factor_decay": 0.9, "inverse_frequency": 3}
    moved = []
    for special in ({}, {"weight": Treatment(0.5)}, {"weight": Treatment(3.0), "bias": Treatment(2.0)}):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, x = nn.Linear(4, 3), torch.randn(20, 4)
        before = [p.detach().clone() for p in model.parameters()]

        def closure(model: nn.Module = model, x: torch.Tensor = x) -> torch.Tensor:
            loss = model(x).square().mean()
            loss.backward()
            return loss

        KFAC(model, h, special).step(closure)
        moved.append([p.detach() - then for p, then in zip(model.parameters(), before, strict=True)])
    for found, factors in zip(moved[1:], ((0.5, 1.0), (3.0, 2.0)), strict=True):
        for by, factor, alone in zip(found, factors, moved[0], strict=True):
            torch.testing.assert_close(by, factor * alone, rtol=1e-4, atol=1e-6)
