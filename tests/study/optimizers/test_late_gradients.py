"""Parameters without a gradient in some steps, such as those of layers that a model leaves out at random."""

import pytest
import torch
from helpers.fused import FUSING
from torch import nn

from study.optimizers import OPTIMIZERS
from study.optimizers.base import Plain
from study.optimizers.per_parameter import ALL_USUAL

FIXED = {"momentum": 0.9, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1, "learning_rate": 0.01}
FIXED |= {"precondition_frequency": 2.0}
STEPS = {"always": range(6), "late": range(3, 6), "early": range(2), "at times": (1, 2, 5), "never": ()}


def trained(name, parts):
    """The weights of these parts of a model; each has a gradient in its own steps."""
    rule = OPTIMIZERS[name]
    model = nn.ParameterDict({part: torch.linspace(-1, 1, 6).view(2, 3) for part in parts})
    h = {each: FIXED.get(each, 0.5) for each in rule.hyperparameters}
    optimizer = rule.build(model, h, ALL_USUAL) if rule.build else Plain(model, rule, h)
    for step in range(6):

        def closure(step=step):
            optimizer.zero_grad(set_to_none=True)
            losses = [((step + 1) * model[part]).sin().sum() for part in parts if step in STEPS[part]]
            if losses:
                sum(losses).backward()
            return torch.tensor(0.0)

        optimizer.step(closure)
    return {part: model[part].detach() for part in parts}


@pytest.mark.parametrize("name", FUSING)
def test_a_parameter_is_updated_by_its_own_gradients_alone(name):
    together = trained(name, [*STEPS])
    for part in STEPS:
        torch.testing.assert_close(together[part], trained(name, [part])[part], rtol=1e-6, atol=1e-7)
    assert torch.equal(together["never"], torch.linspace(-1, 1, 6).view(2, 3))
    assert not any(torch.equal(together[part], together["never"]) for part in STEPS if part != "never")
