"""Runs at which gradients are measured: of the noisy quadratic model, and of small models of many kinds."""

from dataclasses import dataclass, replace

from torch import nn

from helpers.blobs import CPU, Blobs
from study.data.resident import Data
from study.engine.run import Run
from workloads.noisy_quadratic import NoisyQuadraticModel

ADAM = {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8}
CONFIGURATIONS = {
    "sgd": {"learning_rate": 0.1},
    "adam": ADAM,
    "adamw": ADAM | {"weight_decay": 0.0},
    "nadam": ADAM,
    "lamb": ADAM | {"weight_decay": 0.0},
    "rmsprop": {"learning_rate": 0.01, "momentum": 0.0, "beta2": 0.9, "epsilon": 1e-6},
    "muon": ADAM | {"momentum": 0.9, "weight_decay": 0.0},
    "soap": ADAM | {"precondition_frequency": 3},
    "torch.optim.RAdam": {"learning_rate": 0.01},
    "torch.optim.RMSprop": {"learning_rate": 0.01},
}


def begun(make_study, workload, optimizer="sgd", batch_size=8, steps=0, seed=0, **fields):
    """A run of this workload at this step."""
    space = {name: {"choices": [value]} for name, value in CONFIGURATIONS[optimizer].items()}
    examples = workload.train_examples
    study = make_study(optimizer=optimizer, batch_size=batch_size, space=space, steps=1000, examples=examples, **fields)
    run = Run(
        study, workload, Data.of(workload.splits(CPU)), replace(study.trial(0, CONFIGURATIONS[optimizer]), seed=seed)
    )
    run.advance(steps)
    return run


def quadratic(make_study, *, power=0.0, **asked):
    workload = NoisyQuadraticModel(
        name="nqm", train_examples=4096, dimensions=30, replicas=4, preconditioner_power=power
    )
    return begun(make_study, workload, **asked)


@dataclass
class Models(Blobs):
    """Blobs with a model of this kind."""

    kind: str = "dropout"

    def model(self):
        first, last = nn.Linear(24, 8), nn.Linear(8, 5)
        return {
            "dropout": super().model,
            "attention": lambda: nn.Sequential(nn.Unflatten(1, (4, 6)), Attends(), nn.Flatten(), nn.Linear(24, 5)),
            "branches": lambda: nn.Sequential(first, Branches(), last),
            "recurrent": lambda: nn.Sequential(nn.Unflatten(1, (4, 6)), Recurrent(), nn.Linear(7, 5)),
            "batch norm": lambda: nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), last),
            "unused": lambda: Unused(first, last),
        }[self.kind]()


class Attends(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Branches(nn.Module):
    """Its path depends on the data, which `torch.vmap` cannot follow."""

    def forward(self, x):
        return x.relu() if x.sum() > 0 else x.tanh()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 7, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0][:, -1]


class Unused(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.used, self.unused = nn.Sequential(*layers), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)
