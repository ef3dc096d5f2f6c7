"""Models that compute something else of channels-last images get contiguous ones, and those of volumes keep theirs."""

import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import assert_lanes_are_trials_alone
from helpers.fused import asked, each_once
from helpers.users.checked import Made
from torch import Tensor, nn

from study.checks.model import check_model
from study.data.streaming import layout_for


class Reading(nn.Module):
    """Reads images by their places in memory, which differ between layouts, as a kernel of one's own may."""

    def __init__(self, read):
        super().__init__()
        self.layer, self.read = nn.Linear(12, 2), read

    def forward(self, x):
        return self.layer(self.read(x))


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda x: x.as_strided((len(x), 12), (48, 1)), torch.contiguous_format),
        (lambda x: x.flatten()[: len(x) * 12].view(len(x), 12) * x.stride(1), torch.contiguous_format),
        (lambda x: torch.from_numpy(x.numpy().ravel("K")[: len(x) * 12].reshape(-1, 12)), torch.contiguous_format),
        (lambda x: x.flatten(1)[:, :12], torch.channels_last),
    ],
    ids=["as_strided", "stride", "NumPy", "logical places"],
)
def test_models_that_read_images_by_their_places_in_memory(read, expected):
    assert layout_for(Made(lambda: Reading(read)), torch.randn(8, 3, 4, 4)) == expected


class Lifted(nn.Module):
    """Adds a tensor of five axes to volumes [N, 1, D, H, W]."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.ones(1, 1, 2, 3, 4), requires_grad=trained)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.places


def of_volumes(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 2, 3, 4)), *layers, nn.Flatten(), nn.LazyLinear(5))


VOLUMES = {
    "Conv3d": lambda: of_volumes(nn.Conv3d(1, 2, 2, padding=1, padding_mode="replicate"), nn.MaxPool3d(2)),
    "groups": lambda: of_volumes(nn.Conv3d(1, 4, 2), nn.ReLU(), nn.Conv3d(4, 4, (1, 2, 2), groups=2), nn.AvgPool3d(1)),
    "ConvTranspose3d": lambda: of_volumes(nn.ConvTranspose3d(1, 2, 2, stride=2), nn.AdaptiveAvgPool3d((2, 3, 2))),
    "with Conv2d": lambda: of_volumes(nn.Conv3d(1, 2, 2), nn.Flatten(1, 2), nn.Conv2d(2, 3, 2, padding=1)),
    "1x1x1": lambda: of_volumes(nn.Conv3d(1, 4, 1)),
    "parameter": lambda: of_volumes(Lifted(True)),
    "constant": lambda: of_volumes(Lifted(False)),
}


@pytest.mark.parametrize(("name", "images"), each_once(VOLUMES, [False, True]))
def test_models_with_tensors_of_five_axes_train_alone_and_in_lanes(make_study, name, images):
    class Volumes(Blobs):
        def model(self) -> nn.Module:
            made = VOLUMES[name]()
            made(torch.zeros(1, 24))  # the lazy layer learns its width
            return made

    workload = Volumes(images)
    assert check_model(make_study(), workload, *(each[:8] for each in workload.splits(torch.device("cpu"))[0]))
    assert_lanes_are_trials_alone(asked(make_study, "vmap"), workload)
