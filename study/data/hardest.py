"""The evaluated examples that earlier models missed most: where an evaluation looks first for a missed goal.

Shapes: l models, N evaluated examples.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from study.devices.memory import fetched

MOST = 0.25
"""The largest share of the evaluated examples that count as the hardest. An MLP on MNIST decides 94 to 97 % of its
evaluations by half of them; if all of them leave a goal open, most of the others are needed, too."""
PIECES, LEAST = 8, 16
"""The hardest examples are measured in up to this many pieces of at least this many examples, until they decide."""


class Hardest:
    """How much each evaluated example contributed to the errors of earlier whole evaluations.

    Arguments:
        whole: the sum of the weights of all examples.
    """

    def __init__(self, whole: float) -> None:
        self.whole = whole
        self._shares: Tensor | float = 0.0
        self._sent: list[Callable[[], Tensor]] = []
        """Functions that wait for shares to be added."""
        self._pieces: dict[tuple[int, int], list[list[int]]] = {}

    def add(self, errors: Tensor) -> None:
        """Add whole evaluations: the weighted error of each example, not negative [l, N]. All evaluations count alike;
        one with errors that are not finite does not count. It does not wait for a GPU."""
        shares = errors.double() / errors.sum(1, keepdim=True, dtype=torch.float64)
        self._sent.append(fetched(shares.where(shares.isfinite().all(1, keepdim=True), 0.0).sum(0)))
        self._pieces.clear()

    def pieces(self, count: int, most: int = PIECES) -> list[list[int]]:
        """Positions of the hardest among `count` examples in at most `most` pieces: the hardest piece first, increasing
        in each.

        >>> found = Hardest(whole=128)
        >>> found.add(torch.arange(128.0).expand(1, 128))
        >>> [(piece[0], piece[-1]) for piece in found.pieces(128)]
        [(112, 127), (96, 111)]
        """
        if (count, most) not in self._pieces:  # to sort takes longer than some evaluations
            for arrived in self._sent:
                self._shares = self._shares + arrived()
            self._sent = []
            order = torch.argsort(torch.as_tensor(self._shares).expand(count), descending=True, stable=True)
            hardest = order[: max(LEAST, math.ceil(MOST * count))]
            pieces = hardest.tensor_split(max(1, min(most, len(hardest) // LEAST)))
            self._pieces[count, most] = [piece.sort().values.tolist() for piece in pieces]
        return self._pieces[count, most]
