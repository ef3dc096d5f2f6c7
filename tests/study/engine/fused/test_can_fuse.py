"""What lanes would train as another model than one alone is found beforehand, or trains as one alone."""

from helpers.blobs import Blobs
from helpers.desks import assert_lanes_are_trials_alone
from torch import nn

from study.engine import lane_count


def test_a_height_that_torch_cannot_compute_is_not_admitted(question):
    """One row of a group norm after a convolution, in the channels-last layout."""

    class Workload(Blobs):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(48, 5))

    workload, study = Workload(images=True), question("vmap", batch_size=2)
    heights = list(lane_count.admitted(study, workload, workload.data(), most=4))
    assert 4 in heights
    assert 1 not in heights
    assert_lanes_are_trials_alone(study, workload)
