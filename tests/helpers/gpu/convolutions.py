"""Convolutions of lanes of every kind, and what float64 finds for them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from study.engine.fused.convolution import operations
from study.engine.fused.convolution.shapes import by_pixels


@dataclass(frozen=True)
class Case:
    """Lanes of `n` images with `c` channels, and `o` filters. `shared`: all lanes see the same images."""

    lanes: int = 2
    n: int = 3
    c: int = 3
    o: int = 16
    size: tuple[int, int] = (8, 8)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    biased: bool = True
    shared: bool = False

    def made(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
        """Images [l or 1, n, c, ...], filters [l, o, c, ...] and biases [l, o] or None."""
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        filters = drawn(self.lanes, self.o, self.c, *self.kernel)
        return (
            drawn(1 if self.shared else self.lanes, self.n, self.c, *self.size),
            filters,
            drawn(self.lanes, self.o) if self.biased else None,
        )


CASES = {
    "three channels": Case(),
    "sixteen channels, no bias": Case(c=16, o=8, size=(7, 9), biased=False),
    "stride": Case(c=16, o=20, size=(7, 9), stride=(2, 2)),
    "one channel, shared images": Case(c=1, o=5, size=(6, 6), kernel=(5, 5), padding=(2, 2), shared=True),
    "more filters than a block": Case(c=40, o=70, size=(4, 4)),
    "steps beyond the kernel": Case(lanes=3, c=2, o=3, size=(9, 5), kernel=(1, 1), stride=(3, 3), padding=(0, 0)),
    "no padding": Case(lanes=1, n=5, c=4, o=20, stride=(2, 2), padding=(0, 0)),
    "several parts": Case(n=11, c=32, o=16, size=(9, 8), kernel=(5, 5), padding=(2, 2)),
    "rows, no padding": Case(n=4, c=16, o=20, size=(5, 13), padding=(0, 0)),
    "rows, a part of 64 channels, shared images": Case(n=2, c=50, o=40, size=(3, 14), shared=True),
    "rows of a tall kernel": Case(c=16, o=16, size=(5, 4), kernel=(5, 3), padding=(1, 2)),
    "more columns than a block": Case(n=1, c=16, o=16, size=(2, 70)),
    "another kernel, stride and padding for each side": Case(
        c=16, o=16, size=(12, 11), kernel=(4, 2), stride=(3, 1), padding=(2, 1)
    ),
}


def expected(case: Case, images: Tensor, filters: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(outputs, slopes of the outputs, gradients of images, filters and biases), in float64."""
    given = [tensor.double().cpu().requires_grad_() for tensor in (images, filters, bias) if tensor is not None]
    x, w, *b = given
    lanes = [
        torch.nn.functional.conv2d(x[0 if case.shared else i], w[i], b[0][i] if b else None, case.stride, case.padding)
        for i in range(case.lanes)
    ]
    y = torch.stack(lanes)
    slopes = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(images.dtype)
    return y.detach(), slopes, list(torch.autograd.grad(y, given, slopes.double()))


def apart(found: Tensor, wanted: Tensor) -> float:
    """Distance, as a share of the size."""
    return float((found.detach().double().cpu() - wanted).norm() / wanted.norm())


def assert_exact(
    case: Case,
    images: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    rounding: float,
) -> None:
    """The operations find what float64 finds."""
    outputs, slopes, gradients = expected(case, images, filters, bias)
    stride, padding = list(case.stride), list(case.padding)
    x = by_pixels(images)
    assert apart(operations.filtered(x, filters, bias, stride, padding), outputs) < rounding
    slope = by_pixels(slopes.to(images.device))
    if not case.shared:
        assert apart(operations.spread(slope, filters, list(case.size), stride, padding), gradients[0]) < rounding
    rows = operations.differentiated(x, slope, list(case.kernel), stride, padding, case.biased)
    count = case.c * case.kernel[0] * case.kernel[1]
    of_filters = rows[:, :count].unflatten(1, (*case.kernel, case.c)).permute(0, 4, 3, 1, 2)
    assert apart(of_filters, gradients[1]) < rounding
    assert rows.shape[1] == count + case.biased
    if case.biased:
        assert apart(rows[:, -1], gradients[2]) < rounding


def assert_rectified(case: Case, images: Tensor, filters: Tensor, bias: Tensor | None, rounding: float) -> None:
    """The operations find it for the ReLU of the images, too, and add their results and gradients to others."""
    outputs, slopes, gradients = expected(case, images.relu(), filters, bias)
    stride, padding = list(case.stride), list(case.padding)
    x, slope = by_pixels(images), by_pixels(slopes.to(images.device))
    plus = by_pixels(torch.ones_like(outputs).to(images))
    assert apart(operations.filtered(x, filters, bias, stride, padding, True, plus), outputs + 1) < rounding
    rows = operations.differentiated(x, slope, list(case.kernel), stride, padding, False, True)
    of_filters = rows.unflatten(1, (*case.kernel, case.c)).permute(0, 4, 3, 1, 2)
    assert apart(of_filters, gradients[1]) < rounding
    if not case.shared:
        wanted = gradients[0].where(images.cpu() > 0, 0)
        for more in (None, by_pixels(torch.ones_like(images))):
            found = operations.spread(slope, filters, list(case.size), stride, padding, x, more)
            assert apart(found, wanted + (more is not None)) < rounding


def assert_nan_stays() -> None:
    """ReLUs that are parts of convolutions keep NaN, as torch's do: a trial that diverges must be seen to."""
    case = Case(lanes=1, n=1, c=16, o=16, size=(4, 4), biased=False)
    images, filters, _ = case.made(torch.float32, torch.device("cpu"))
    images[0, 0, 0, 0, 0] = torch.nan
    x, how = by_pixels(images), ([1, 1], [1, 1])
    assert operations.filtered(x, filters, None, *how, True).isnan().sum() == 4 * 16  # the pixels around a corner
    slope = by_pixels(torch.ones_like(images))
    assert operations.differentiated(x, slope, [3, 3], *how, False, True).isnan().any()
    plain = operations.spread(slope, filters, [4, 4], *how)
    torch.testing.assert_close(
        operations.spread(slope, filters, [4, 4], *how, x), torch.ops.aten.threshold_backward(plain, x, 0)
    )
