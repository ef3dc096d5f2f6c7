"""Checks a workload's data before anything trains: their form, numbers that are not finite, and rare labels.

Shapes: N examples in a split.
"""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from analysis.question.branches import SPLIT, VALIDATION
from study.checks.calling import calling
from study.data import digest, trees
from study.data.examples import Examples, splits_of
from study.data.single_pass import SinglePass, alike, ended, is_stream
from study.devices import generators, modes
from study.errors import UsageError
from study.records import Study
from study.user_code.faults import succeeds
from workloads.base import Splits, Workload, optional
from workloads.user_code.errors import summary
from workloads.user_code.importing import build

COLLATE = (
    "give the workload a member `collate`, a function of a list of examples that returns (inputs, targets), such as "
    "padded tensors"
)

MEMBERS = {
    "errors": "`errors = {NAME: FUNCTION}`",
    "hyperparameters": "`hyperparameters = ()`",
    "splits": "`def splits(self, device)`",
    "model": "`def model(self)`",
    "loss": "`def loss(self, outputs, targets)`",
}
"""What every workload has -> how its class begins it."""
FRAME = "torch.tensor(columns.to_numpy()) makes a tensor of some columns"


def check_members(study: Study, workload: Workload) -> None:
    """Raise UsageError if the workload lacks a member that every workload has, or its file has changed how torch
    computes."""
    if why := modes.left_changed(modes.AT_IMPORT):
        raise UsageError(f"{study.name}'s file {why}")
    for member, cure in MEMBERS.items():
        if not hasattr(workload, member):
            raise UsageError(f"{study.name} has no {member}; add {cure} to {type(workload).__name__}.")


def check_splits(study: Study, workload: Workload, splits: object) -> None:
    """Raise UsageError unless there are three splits of (inputs, targets) or map-style data sets, none of them empty.

    A few items of a data set are read and collated.
    """
    if not isinstance(splits, Splits):
        raise UsageError(
            f"{study.name}.splits() must return workloads.base.Splits(train, val, test), but got a "
            f"{type(splits).__name__}; write `return Splits(train, val, test)`."
        )
    examples = Examples(splits, optional(workload, "collate"))
    for name, split in splits._asdict().items():
        where = f"the {name} split of {study.name}"
        if isinstance(split, tuple):
            _check_tensors(where, split)
        else:
            _check_data_set(study, examples, name, split)


def check_count(study: Study, examples: Examples) -> None:
    """Raise UsageError unless the training split has as many examples as the study records."""
    wanted, got = study.workload["train_examples"], examples.count("train")
    if got != wanted:
        raise UsageError(
            f"workload.train_examples is {wanted}, but {study.name}.splits() returns {got}; set "
            f"workload.train_examples={got}."
        )


def check_fresh_data(study: Study, workload: Workload, splits: Splits) -> None:
    """Raise UsageError if `search.fresh_data` would vary nothing: not the data of the next split seed, or not the
    evaluated part of the validation set."""
    most, available = study.evaluation.examples, Examples(splits, optional(workload, "collate")).count("val")
    if study.search.fresh_data == VALIDATION and most is not None and most >= available:
        raise UsageError(
            f"search.fresh_data={VALIDATION} varies the evaluated part of the validation set, but "
            f"evaluation.examples={most:,} is all of it ({available:,} examples); give fewer."
        )
    if study.search.fresh_data == SPLIT:
        seed = study.workload["split_seed"] + 1
        other = build({**study.workload, "split_seed": seed})
        with calling(study, "splits()", f"with split_seed={seed}"):
            other_splits = splits_of(other)
        check_splits(study, other, other_splits)
        if not digest.changed(digest.digest(workload, splits), digest.digest(other, other_splits)):
            raise UsageError(
                f"search.fresh_data={SPLIT} varies workload.split_seed, but {study.name}.splits() returns the same "
                f"data with {seed} as with {seed - 1}; let them depend on it, or leave out search.fresh_data."
            )


def _check_tensors(where: str, split: tuple[Any, ...]) -> None:
    if len(split) != 2:
        raise UsageError(
            f"a split of tensors is a tuple (inputs, targets), but {where} has {len(split)} parts; several inputs go "
            "into one tuple or dictionary, as in ((images, masks), labels)."
        )
    counts = [
        _check_part(f"the {what} of {where}", part, split[1 - number], where)
        for number, (what, part) in enumerate(zip(("inputs", "targets"), split, strict=True))
    ]
    if counts[0] != counts[1]:
        raise UsageError(
            f"each input needs a target, but {where} has {counts[0]:,} inputs and {counts[1]:,} targets; cut one or "
            "complete the other."
        )
    if not counts[0]:
        raise UsageError(f"{where} must not be empty; give it examples.")


def _check_part(what: str, part: Any, other: Any, where: str) -> int:
    """The number of examples in the inputs or the targets of a split, which must be a tree of tensors."""
    for strange in (end for end in trees.ends(part) if not isinstance(end, Tensor)):
        kind = type(strange).__name__
        cure = f"leave it out, or return a data set and {COLLATE}"
        if isinstance(strange, np.ndarray | np.generic | int | float):
            cure = "torch.as_tensor makes one"
        elif hasattr(strange, "to_numpy"):
            cure = FRAME
        raise UsageError(f"a split is two tensors, or trees of them, or a data set, but {where} has a {kind}; {cure}.")
    leaves = trees.leaves(part)
    if not leaves:
        raise UsageError(f"{what} hold no tensor; give them one, torch.zeros(len(inputs)) if there is nothing to say.")
    for leaf in leaves:
        _check_leaf(what, leaf)
    counts = sorted({len(leaf) for leaf in leaves})
    others = {len(leaf) for leaf in trees.leaves(other) if leaf.dim()}
    if isinstance(part, list | tuple) and len(part) in others and counts != [len(part)] and len(part) == len(leaves):
        raise UsageError(
            f"{what} are a list of {len(part):,} tensors, one for each example; if they have one shape, torch.stack "
            f"makes one tensor of them. Otherwise return a data set of (input, target) pairs and {COLLATE}."
        )
    if len(counts) > 1:
        raise UsageError(
            f"all tensors in {what} must have the examples as their first axis, but {trees.described(part)} have "
            f"{' and '.join(map(str, counts))} of them; give each tensor a row for each example."
        )
    return counts[0]


def _check_leaf(what: str, leaf: Tensor) -> None:
    if leaf.is_nested:
        raise UsageError(f"{what} are a nested tensor; return a data set of (input, target) pairs and {COLLATE}.")
    if leaf.layout != torch.strided:
        raise UsageError(f"{what} must be dense, but are {leaf.layout}; to_dense() makes them so.")
    if not leaf.dim():
        raise UsageError(f"{what} need an axis of examples, but are a tensor of shape []; give them shape [N, ...].")
    if leaf.requires_grad:
        raise UsageError(f"{what} must not require gradients, or each step adds to one graph; detach() them.")


def _check_data_set(study: Study, examples: Examples, name: str, split: Any) -> None:
    where = f"the {name} split of {study.name}"
    _check_kind(where, split)
    with calling(study, f"{name} split", "by len()"):
        count = len(split)
    if not count:
        raise UsageError(f"{where} must not be empty; give it examples.")
    if isinstance(split, SinglePass):
        _check_stream(study, split)
    indices = digest.spaced(examples.reach(name), digest.ITEMS)
    items = []
    for index in indices:
        with calling(study, f"{name} split's example {index}"):
            items += examples.items(name, [index])
            first = _copied(items[-1:])  # a second reading may write into what the first one gave
            again = [] if isinstance(split, SinglePass) else examples.items(name, [index])
        if again and not alike(first or items[-1:], again):
            raise UsageError(
                f"{where} must give the same example at each reading, but its example {index} differs between two: it "
                "counts readings, writes into what it holds, as x.mul_(2) and x += 1 do, or draws from a generator of "
                "its own, such as np.random.default_rng() or those of Albumentations 2, so a trial would depend on the "
                "trials before it. Draw from the global generators of torch, NumPy or `random`, which are seeded for "
                "each example."
            )
    own = examples.collate is not default_collate
    batch = _collated(study, examples, name, items) if own else _by_default(where, indices, items)
    whose = "torch's default_collate" if not own else f"{study.name}.collate"
    for what, part in zip(("inputs", "targets"), batch, strict=True):
        counts = {len(leaf) if leaf.dim() else 0 for leaf in trees.leaves(part)}
        if counts != {len(items)} or not all(isinstance(end, Tensor) for end in trees.ends(part)):
            cure = COLLATE if not own else "stack or pad what it returns into tensors [B, ...]"
            raise UsageError(
                f"{whose} must make tensors with a row for each of {len(items)} examples, but the {what} of {where} "
                f"become {trees.described(part)}; {cure}."
            )


def _collated(study: Study, examples: Examples, name: str, items: list[Any]) -> Any:
    """The (inputs, targets) that the workload's `collate` makes of some examples of a split.

    Raises:
        UsageError: it fails, changes the examples, makes a different batch at a second call, or returns no pair.
    """
    before, batches = _copied(items), []
    for _ in range(2):
        with calling(study, "collate", f"of {len(items)} examples of its {name} split"), generators.seeded(0):
            batches.append(examples.collate(items))
        _check_untouched(study, name, before, items)
    if not alike(*batches):
        raise UsageError(
            f"{study.name}.collate must make the same batch of the same examples at each call, but two calls differ: "
            "it keeps state, or draws from a generator of its own, as a collator of transformers with `seed=` does. "
            "Leave the seed out and draw from the global generators of torch, NumPy or `random`, which are seeded for "
            "each batch."
        )
    batch = batches[0]
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UsageError(
            f"{study.name}.collate must return (inputs, targets) of a list of examples, but got "
            f"{trees.described(batch)}; name what the model takes first, and what the loss takes second."
        )
    return batch


def _copied(items: list[Any]) -> list[Any] | None:
    """A copy of some examples; None if they hold what cannot be copied."""
    try:
        return copy.deepcopy(items)
    except Exception:  # objects of users may raise any
        return None


def _check_untouched(study: Study, name: str, before: list[Any] | None, items: list[Any]) -> None:
    """Raise UsageError if `collate` changed the examples that it got: a data set may hold these very objects."""
    if before is not None and not alike(before, items):
        raise UsageError(
            f"{study.name}.collate must not change the examples that it gets, because the data set may hold them, but "
            f"it changes those of the {name} split, as `pop` and assignments into a tensor do; let it begin with "
            "`examples = copy.deepcopy(examples)`."
        )


def _check_stream(study: Study, split: SinglePass) -> None:
    """Raise UsageError unless the training split may be a stream, and gives the same examples at each start."""
    where, kind = f"the train split of {study.name}", type(split.stream).__name__
    if not study.budget.single_pass:
        raise UsageError(
            f"{where}, a {kind}, has an order of its own, so that it can be read only once, from its start; set "
            "budget.single_pass=true, or return a map-style data set, with __len__ and __getitem__, or tensors."
        )
    cure = "let each iter() of it start with the same example, or return an object whose __iter__ makes the iterator"
    with calling(study, "train split", "by iter()"):
        if iter(split.stream) is split.stream:
            raise UsageError(f"every trial starts {where} once more, but it is an iterator, a {kind}; {cure}.")
        got, alike = len(split.first), split.starts_alike()
    if got < split.reach:
        raise UsageError(ended(got, len(split)))
    if not alike:
        raise UsageError(f"each trial starts {where} once more, but a second start gave other examples; {cure}.")


def _check_kind(where: str, split: Any) -> None:
    """Raise UsageError unless a split that is no tuple is a map-style data set, or the training split as a stream."""
    if is_stream(split):
        raise UsageError(
            f"{where}, a {type(split).__name__}, has an order of its own, which only the training split may have, with "
            "budget.single_pass=true; return a map-style data set, with __len__ and __getitem__, or tensors."
        )
    if isinstance(split, DataLoader):
        raise UsageError(
            f"{where} is a DataLoader, but the study makes its own batches; return its `dataset`. A collate_fn becomes "
            "the workload's `collate`; in place of a sampler with weights, `weights` may weight examples in the loss."
        )
    pair = isinstance(split, list) and len(split) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in split)
    frame = hasattr(split, "to_numpy")
    if pair or isinstance(split, Tensor | np.ndarray | Mapping) or split is None or frame:
        raise UsageError(
            f"a split is a tuple (inputs, targets) or a map-style data set, but {where} is a {type(split).__name__}; "
            f"write (inputs, targets){f': {FRAME}' if frame else ', each a tensor or a tree of tensors'}."
        )
    if missing := [name for name in ("__len__", "__getitem__") if not hasattr(type(split), name)]:
        raise UsageError(
            f"a split is a tuple (inputs, targets) or a map-style data set, but {where}, a {type(split).__name__}, has "
            f"no {' and no '.join(missing)}; add the method."
        )


def _by_default(where: str, indices: list[int], items: list[Any]) -> Any:
    """A batch of examples by torch's default_collate; examples that it refuses are named."""
    for index, item in zip(indices, items, strict=True):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UsageError(
                f"the items of {where} must be (input, target) pairs, but example {index} is {trees.described(item)}; "
                f"return pairs, or {COLLATE}."
            )
    try:
        return default_collate(items)
    except Exception as error:
        why = summary(error)
    for index, item in zip(indices, items, strict=True):
        if not succeeds(partial(default_collate, [item])):
            raise UsageError(
                f"torch's default_collate makes no tensors of example {index} of {where}, {trees.described(item)} "
                f"({why}); return tensors or numbers, or {COLLATE}."
            )
    pairs = ([items[0], item] for item in items)
    other = next((n for n, pair in enumerate(pairs) if not succeeds(partial(default_collate, pair))), len(items) - 1)
    raise UsageError(
        f"examples {indices[0]} and {indices[other]} of {where} cannot be put into one batch: "
        f"{trees.described(items[0])} and {trees.described(items[other])} ({why}); {COLLATE}."
    )
