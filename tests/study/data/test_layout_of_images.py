"""Models that compute something else of channels-last images get contiguous ones."""

import pytest
import torch
from helpers.users.checked import Made
from torch import nn

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
