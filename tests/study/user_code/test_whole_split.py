"""Functions among the metrics see a whole split, whose outputs come in parts."""

import pytest
import torch

from study.errors import Failed
from study.user_code.whole_split import WholeSplit

SIZES = (4, 4, 2)


def error(outputs, targets):
    return (outputs["logits"] - targets).abs().mean()


def norm(outputs, targets):
    return outputs["loss"] * 2


def states(outputs, targets):
    return outputs["hidden_states"][0].mean()


NORM = torch.tensor(3.0)
BESIDE = {
    "the same number": (error, lambda x: {"loss": NORM}, None),
    "the same number, used": (norm, lambda x: {"loss": NORM}, None),
    "a number of the part": (error, lambda x: {"loss": x.sum()}, None),
    "a number of the part, used": (
        norm,
        lambda x: {"loss": x.sum()},
        r"such as float32 \[\] beside float32 \[\]: Type",
    ),
    "layers first": (error, lambda x: {"hidden_states": (torch.stack([x] * 3),)}, None),
    "layers first, used": (states, lambda x: {"hidden_states": (torch.stack([x] * 3),)}, r"\[3, 4\] beside .*\[3, 2\]"),
    "padded": (error, lambda x: {"hidden_states": (x[:, None].expand(-1, len(x)),)}, None),
    "padded, used": (states, lambda x: {"hidden_states": (x[:, None].expand(-1, len(x)),)}, "pad them to one shape"),
    "examples": (states, lambda x: {"hidden_states": (x[:, None],)}, None),
}


@pytest.mark.parametrize(("metric", "beside", "said"), BESIDE.values(), ids=BESIDE)
def test_tensors_that_the_parts_make_no_single_one_of(metric, beside, said):
    """They ended the first evaluation with torch's own message, whether the metric needed them or not."""
    whole, inputs, targets = WholeSplit("tiny", {"m": metric}, torch.device("cpu")), torch.arange(10.0), torch.zeros(10)
    for x, t in zip(inputs.split(SIZES), targets.split(SIZES), strict=True):
        whole.add({"logits": x, **beside(x)}, t, 0, 1)
    if said is None:
        expected = {error: 4.5, norm: 6, states: 4.5}[metric]
        assert whole.values() == {"m": expected}
    else:
        with pytest.raises(Failed, match=rf"tiny's metrics\['m'\] gets .*{said}.* with update, compute and reset"):
            whole.values()
