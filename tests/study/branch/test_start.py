"""A branch starts from the weights and the optimizer state of its trunk, in every engine."""

from dataclasses import replace

import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.checkpointed import SPACES, held, saved
from helpers.desks import Desk, assert_same_bits, trained
from helpers.fused import FUSING, HYPERPARAMETERS, fusing, partly

from analysis.question.branches import TRUNK, Branch, Start
from study import optimizers
from study.engine.lanes import Lanes
from study.engine.run import Run
from study.engine.trial import checkpoints
from study.errors import Failed
from study.records import Study
from study.search.points import point
from study.settings import Budget
from study.space import values

DONE, STEPS = 9, 7
LOOSE = {"soap": 2e-3}
"""Its eigenvectors amplify rounding, in convolutions (`vmap`) to the size of an update."""


def trunk_of(make_study, optimizer, how="plain", space=None, **fields):
    """(a study of batch size 8 in the plain engine, its only trial after DONE steps as a checkpoint)."""
    if space is None:
        space = {name: choices[1] for name, choices in HYPERPARAMETERS.items() if name in asked(optimizer)}
    study = make_study(optimizer=optimizer, space=space, steps=100, trials=1, **fields)
    workload = WORKLOADS[how]
    run = Run(study, workload, workload.data(), study.trial(0, values(study.search.space, point(study, 0))))
    run.advance(DONE)
    return run, run.packed()


def asked(optimizer):
    return optimizers.find(optimizer).hyperparameters


def branch_of(study, content, **fields):
    found = checkpoints.read(content)
    start = Start(DONE, checkpoints.checksum(found), study.batch_size, study.train_steps)
    budget = Budget(epochs=0, steps=STEPS)
    return replace(study, branch=Branch(rerun=0, start=start), budget=budget, **fields)


def trial_of(study, index=0):
    return study.trial(index, values(study.search.space, point(study, index)))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "folded_momentum", "kfac", "torch.optim.RAdam"])
def test_a_plain_branch_goes_on_as_its_trunk_would_with_its_examples(optimizer, make_study):
    space = {"kfac": SPACES["kfac"] | {"learning_rate": 0.01}, "torch.optim.RAdam": {"learning_rate": 0.01}}.get(
        optimizer
    )
    trunk, content = trunk_of(make_study, optimizer, space=space)
    study = branch_of(trunk.study, content)
    branch = Run(study, trunk.workload, trunk.data, trial_of(study))
    branch.restore({TRUNK: content}.get)
    assert branch.step == 0
    trunk.read, trunk.trial, trunk.step = branch.read, branch.trial, 0  # dropout follows trial and step, too
    trunk.advance(STEPS)
    branch.advance(STEPS)
    for name, tensor in trunk.weights.items():
        assert torch.equal(branch.weights[name], tensor), name


@pytest.mark.parametrize(
    ("optimizer", "how"),
    partly([(name, how) for name in FUSING for how in fusing(name) if (name, how) != ("soap", "vmap")], 3, first=1),
)
def test_lanes_start_from_the_state_of_the_plain_engine(optimizer, how, make_study):
    trunk, content = trunk_of(make_study, optimizer, how)
    plain = branch_of(trunk.study, content, batch_size=16)
    trial = trial_of(plain)
    run = Run(plain, trunk.workload, trunk.data, trial)
    run.restore({TRUNK: content}.get)
    run.advance(STEPS)
    lanes = Lanes(replace(plain, arithmetic=how), trunk.workload, trunk.data, [1, 2], 2)
    for _ in range(2):
        lanes.start(trial)
        lanes.restore({TRUNK: content}.get)
    lanes.advance(STEPS)
    for row in range(2):
        lanes.stack.settle(row)
        for name, parameter in run.model.named_parameters():
            torch.testing.assert_close(
                lanes.stack.views[name][row], parameter.detach(), rtol=2e-3, atol=LOOSE.get(optimizer, 1e-5)
            )


def test_averaged_weights_go_on_in_lanes(make_study):
    trunk, content = trunk_of(
        make_study, "momentum", "linear_chain", {"learning_rate": 0.05, "momentum": 0.5, "ema_decay": 0.9}
    )
    study = branch_of(trunk.study, content, arithmetic="linear_chain")
    lanes = Lanes(study, trunk.workload, trunk.data, [1], 1)
    lanes.start(trial_of(study))
    lanes.restore({TRUNK: content}.get)
    held = lanes.stack.layout.views(lanes.stack.state["ema"])
    for name, parameter in trunk.average.named_parameters():
        assert torch.equal(held[name][0], parameter.detach()), name


@pytest.mark.parametrize("how", ["plain", "linear_chain"])
def test_a_branch_starts_from_nothing_but_its_checkpoint(how, make_study):
    trunk, content = trunk_of(make_study, "momentum", how)
    study = branch_of(trunk.study, content, arithmetic=how)
    trial = trial_of(study)
    curve = trained(study, Desk([trial], kept={TRUNK: content}))[0]
    assert curve.steps[-1] == STEPS
    trunk.advance(1)
    for other in (None, b"torn", trunk.packed()):
        with pytest.raises(Failed, match=f"cannot start from step {DONE} of its trunk"):
            trained(study, Desk([trial], kept={} if other is None else {TRUNK: other}))


@pytest.mark.parametrize("how", ["plain", "linear_chain"])
def test_an_interrupted_branch_goes_on_from_its_own_checkpoint(how, make_study):
    trunk, content = trunk_of(make_study, "adam", how)
    study = branch_of(trunk.study, content, arithmetic=how)
    trial = trial_of(study)
    whole = trained(study, Desk([trial], kept={TRUNK: content}))[0]
    desk = Desk([trial], minutes=0, kept={TRUNK: content})
    assert_same_bits(trained(study, desk)[0], whole)
    for _, own in desk.taken:
        assert_same_bits(trained(study, Desk([trial], kept={0: own, TRUNK: content}))[0], whole)


UNUSABLE = {
    "torn": lambda own: own[:-1],
    "another version of torch": lambda own: saved(held(own) | {"torch": "1.0"}),
    "another micro-batch": lambda own: saved(held(own) | {"micro_batch": 5}),
    "an optimizer that comes back otherwise": lambda own: saved(
        held(own) | {"state": held(own)["state"] | {"seal": "another"}}
    ),
}


@pytest.mark.parametrize(
    ("how", "what"), [*(("plain", what) for what in UNUSABLE), *(("linear_chain", what) for what in [*UNUSABLE][:3])]
)
@pytest.mark.filterwarnings("ignore:an interrupted trial .* starts again")
def test_a_branch_whose_own_checkpoint_cannot_be_used_starts_again_from_its_trunk(how, what, make_study):
    trunk, content = trunk_of(make_study, "adam", how)
    study = branch_of(trunk.study, content, arithmetic=how)
    trial = trial_of(study)
    desk = Desk([trial], minutes=0, kept={TRUNK: content})
    whole = trained(study, desk)[0]
    kept = {0: UNUSABLE[what](desk.taken[2][1]), TRUNK: content}
    again = Desk([trial], kept=kept)
    assert_same_bits(trained(study, again)[0], whole)
    assert again.pace.made == STEPS


class OneByOne(torch.optim.SGD):
    """Takes its decay rates one by one."""

    def __init__(self, params, lr, beta1=0.9, beta2=0.9):
        super().__init__(params, lr)
        for group in self.param_groups:
            group |= {"beta1": beta1, "beta2": beta2}


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [("momentum", "momentum"), (f"{__name__}.OneByOne", "beta1"), (f"{__name__}.OneByOne", "beta2")],
)
def test_half_lives_follow_the_batch_size_of_the_branch(optimizer, name, make_study):
    space = {"learning_rate": 0.05, f"{name}_half_life_examples": 40.0}
    trunk, content = trunk_of(make_study, optimizer, space=space)
    study = branch_of(trunk.study, content, batch_size=32)
    branch = Run(study, trunk.workload, trunk.data, trial_of(study))
    branch.restore({TRUNK: content}.get)
    assert [group[name] for group in branch.optimizer.param_groups] == [0.5 ** (32 / 40)]


def test_the_schedule_of_the_trunk_goes_on_by_the_examples_seen(make_study):
    space = {
        "learning_rate": 0.1,
        "momentum": 0.5,
        "learning_rate_decay_fraction": 1.0,
        "end_learning_rate_factor": 0.0,
    }
    trunk, content = trunk_of(make_study, "momentum", space=space, schedule="linear_decay")
    study = branch_of(trunk.study, content, batch_size=16)
    rates = list(map(study.learning_rate(trial_of(study).hyperparameters), range(3)))
    assert rates == [trunk.learning_rate(step) for step in (DONE, DONE + 2, DONE + 4)]


def test_seeds_are_those_of_all_batch_sizes_and_learning_rates(make_study):
    trunk, content = trunk_of(make_study, "sgd", space={"learning_rate": 0.1})
    wide = replace(
        trunk.study.search,
        space={"learning_rate": replace(trunk.study.search.space["learning_rate"], choices=(0.1, 0.2, 0.4))},
        trials=6,
    )
    trials = {
        size: [trial_of(branch_of(trunk.study, content, batch_size=size, search=wide), i) for i in range(6)]
        for size in (8, 32)
    }
    for mine in trials.values():
        assert [trial.hyperparameters["learning_rate"] for trial in mine] == [0.1, 0.2, 0.4] * 2
        assert len({trial.order_seed for trial in mine}) == 2
    assert [trial.order_seed for trial in trials[8]] == [trial.order_seed for trial in trials[32]]
    assert trials[8][0].order_seed != trunk.trial.order_seed


def test_a_question_with_a_start_is_read_back(make_study):
    trunk, content = trunk_of(make_study, "sgd", space={"learning_rate": 0.1})
    study = branch_of(trunk.study, content)
    assert Study.from_question(study.question()) == study
    assert study.branch.path == f"rerun-0/from-step-{DONE}"
    assert "start" not in trunk.study.question()["branch"]
