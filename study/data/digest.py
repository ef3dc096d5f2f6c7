"""A digest of the data: numbers that differ if an example, a target or the order of the examples differs.

They are recorded with the results, and each worker compares its own data with those of the parent. Whole numbers are
hashed. Floats are projected on fixed pseudo-random directions, because their last bits differ between machines:

    p = sum(x_i * r_i) / sqrt(sum(x_i ** 2))

Shapes: N examples in a split.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from study.data import trees
from study.data.examples import Examples
from study.errors import Refused
from workloads.base import Splits, Workload, optional

ROWS = 4096
"""Evenly spaced examples of a tensor of inputs that enter the digest."""
ITEMS = 16
"""Evenly spaced items of a data set that enter the digest."""
ELEMENTS = 2**22
"""Most numbers of one tensor that enter the digest."""
WIDTH = 1024
PROJECTIONS = 2
TOLERANCE = 1e-5
"""Two digests of the same floats, from two kinds of processors, differ by less."""
EXACT = (" examples", " hash")
"""Ends of the keys whose values are whole numbers."""


def spaced(examples: int, most: int) -> list[int]:
    """At most `most` evenly spaced indices of the examples, the first and the last among them.

    >>> spaced(100, 4), spaced(2, 16)
    ([0, 33, 66, 99], [0, 1])
    """
    taken = min(examples, most)
    return [index * (examples - 1) // max(1, taken - 1) for index in range(taken)]


def digest(workload: Workload, splits: Splits) -> dict[str, float]:
    """`data <split> <what>` -> a number; whole numbers of at most 52 bits and projections of floats."""
    examples = Examples(splits, optional(workload, "collate"))
    return {
        f"data {name} {what}": value for name in splits._fields for what, value in _of_split(examples, name).items()
    }


def changed(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    """The splits whose numbers differ between two digests. A digest without numbers differs from none."""
    pairs = ({key: value for key, value in each.items() if key.startswith("data ")} for each in (one, other))
    old, new = pairs
    if not old or not new:
        return []
    keys = [key for key in {**old, **new} if not _alike(key, old.get(key), new.get(key))]
    return list(dict.fromkeys(key.split()[1] for key in keys))


def checked(workload: Workload, splits: Splits, expected: Mapping[str, float]) -> Splits:
    """The splits. Raises Refused if their digest is not the expected one of another process; empty: any."""
    if differing := changed(expected, digest(workload, splits)) if expected else []:
        verb = "differ" if len(differing) > 1 else "differs"
        raise Refused(
            f"splits() of {workload.name} gives other data in each process ({named(differing)} {verb}): it draws from "
            "a generator that no seed of ours settles, such as np.random.default_rng(), or depends on the order of a "
            "set or of a folder's files; make such a generator within splits() with a fixed seed, "
            "np.random.default_rng(0), have no example draw from it when it is read, and sort sets and files."
        )
    return splits


def named(splits: Sequence[str]) -> str:
    """The splits as text.

    >>> named(["train", "val", "test"]), named(["val"])
    ('the train, val and test splits', 'the val split')
    """
    names = " and ".join(filter(None, [", ".join(splits[:-1]), splits[-1]]))
    return f"the {names} split{'s' if len(splits) > 1 else ''}"


def _alike(key: str, one: float | None, other: float | None) -> bool:
    if one is None or other is None or key.endswith(EXACT):
        return one == other
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE if "projection" in key else 0)


def _of_split(examples: Examples, name: str) -> dict[str, float]:
    split, count = examples.splits[name], examples.count(name)
    if isinstance(split, tuple):
        most = [ROWS] * len(trees.leaves(split[0])) + [count] * len(trees.leaves(split[1]))
        pieces = [[_some(leaf, rows)] for leaf, rows in zip(trees.leaves(split), most, strict=True)]
    else:
        chosen = spaced(examples.reach(name), ITEMS)
        of_items = [trees.leaves(examples.read(name, [index])) for index in chosen]
        pieces = [[leaves[i] for leaves in of_items if i < len(leaves)] for i in range(max(map(len, of_items)))]
    return {"examples": float(count), **numbers(pieces)}


def _some(leaf: Tensor, rows: int) -> Tensor:
    """Evenly spaced examples of a tensor [N, ...], at most `rows` of them, on the CPU."""
    rows = min(rows, max(ITEMS, ELEMENTS // max(1, leaf[0].numel())))
    return leaf[:: max(1, -(-len(leaf) // rows))].cpu()


def numbers(pieces: Sequence[Sequence[Tensor]]) -> dict[str, float]:
    """The digest of some tensors, each in pieces."""
    exact = hashlib.sha256()
    found: dict[str, float] = {}
    for number, tensors in enumerate(pieces):
        floats = []
        for tensor in tensors:
            exact.update(f"{tensor.dtype} {list(tensor.shape)} ".encode())
            flat = tensor.detach().reshape(-1)
            flat = flat[:: max(1, -(-len(flat) // ELEMENTS))]
            if flat.is_floating_point():
                floats.append(flat if flat.dtype == torch.float64 else flat.float())
            elif flat.is_complex():
                floats.append(torch.view_as_real(flat).flatten().float())
            else:
                exact.update(flat.numpy().tobytes())
        if floats:
            joined = torch.cat(floats) if len(floats) > 1 else floats[0]
            found |= {f"{number} {what}": value for what, value in _projected(joined).items()}
    return {"hash": whole(exact.digest()), **found}


def whole(content: bytes) -> float:
    """The first 52 bits of a hash: as a float they are exact, in JSON, too."""
    return float(int.from_bytes(content[:8], "big") >> 12)


def _projected(values: Tensor) -> dict[str, float]:
    """The root mean square of the values [n], and their projections."""
    missing = -len(values) % WIDTH
    rows = (nn.functional.pad(values, (0, missing)) if missing else values.contiguous()).view(-1, WIDTH)
    norm = float(rows.norm(dim=1).double().norm())
    if not math.isfinite(norm):
        rows = rows.nan_to_num(nan=1.0, posinf=2.0, neginf=-2.0)
        norm = float(rows.double().norm())
    # The direction is an outer product: its numbers need not be drawn one by one, and a swap of two rows changes it.
    generator = torch.Generator().manual_seed(0)
    right = 2 * torch.rand(WIDTH, PROJECTIONS, generator=generator, dtype=rows.dtype) - 1
    left = 2 * torch.rand(len(rows), PROJECTIONS, generator=generator, dtype=torch.float64) - 1
    sums = ((rows @ right).double() * left).sum(0) / (norm or 1.0)
    size = norm / math.sqrt(max(1, len(values)))
    return {"size": size, **{f"projection {k}": float(value) for k, value in enumerate(sums)}}
