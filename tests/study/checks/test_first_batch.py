"""What a user's code keeps of the first examples that it sees is refused if a result depends on it."""

from collections import deque
from functools import cache, lru_cache
from types import SimpleNamespace

import pytest
import torch
from helpers.users.checked import Model, refused

from study.checks.state import check_first_batch, stateful
from study.user_code.kept import Kept
from workloads.base import cross_entropy_error

FIRST = None
SEEN: list[torch.Tensor] = []
TABLE: dict[object, torch.Tensor] = {}
RING: deque[float] = deque(maxlen=1)
PLACE = torch.zeros(1)
NAMES = SimpleNamespace(scale=None)
COUNTED = None


class Normalizer:
    scale = None

    def __call__(self, y):
        self.scale = y.std() if self.scale is None else self.scale
        return self.scale


class Slotted:
    __slots__ = ("scale",)

    def __call__(self, y):
        if not hasattr(self, "scale"):
            self.scale = y.std()
        return self.scale


NORMALIZER, SLOTTED = Normalizer(), Slotted()


def an_attribute(workload, y):
    workload.spread = getattr(workload, "spread", None) or float(y.std())
    return workload.spread


def an_attribute_that_was_none(workload, y):
    if workload.least is None:
        workload.least = y.min()
    return 1 + workload.least.abs()


def an_entry_of_a_table(workload, y):
    return 1 + workload.table.setdefault("mean", y.mean(0)).abs().sum()


def an_object_of_the_workload(workload, y):
    return workload.inner(y)


def a_global(workload, y):
    global FIRST
    FIRST = y.std() if FIRST is None else FIRST
    return FIRST


def the_size_of_the_first_batch(workload, y):
    global COUNTED
    COUNTED = COUNTED or len(y)
    return 1 / COUNTED


def a_global_list(workload, y):
    if not SEEN:
        SEEN.append(y.std())
    return SEEN[0]


def a_global_table(workload, y):
    return TABLE.setdefault("first", y.std())


def a_global_ring(workload, y):
    if not RING:
        RING.append(float(y.std()))
    return RING[0]


def in_place(workload, y):
    if not PLACE.any():
        PLACE.copy_(y.std())
    return PLACE


def a_namespace(workload, y):
    NAMES.scale = y.std() if NAMES.scale is None else NAMES.scale
    return NAMES.scale


def a_global_object(workload, y):
    return NORMALIZER(y)


def an_object_with_slots(workload, y):
    return SLOTTED(y)


def an_attribute_of_the_function(workload, y):
    if not hasattr(an_attribute_of_the_function, "scale"):
        an_attribute_of_the_function.scale = y.std()
    return an_attribute_of_the_function.scale


def an_attribute_of_a_class(workload, y):
    Scaled.spread = getattr(Scaled, "spread", None) or float(y.std())
    return Scaled.spread


def a_default(workload, y, held=[]):  # noqa: B006
    if not held:
        held.append(y.std())
    return held[0]


def closure():
    scale = None

    def a_closure(workload, y):
        nonlocal scale
        scale = y.std() if scale is None else scale
        return scale

    return a_closure


def unset_closure():
    def a_closure_without_a_value(workload, y):
        nonlocal scale
        try:
            return scale
        except NameError:
            scale = y.std()
        return scale

    if False:
        scale = 0.0
    return a_closure_without_a_value


def a_constant(workload, y):
    workload.mask = torch.ones(1)
    return workload.mask


def a_table_of_constants(workload, y):
    return workload.table.setdefault("one", torch.ones(1))


def masks_by_length(workload, y):
    if len(y) not in TABLE:
        TABLE[len(y)] = torch.ones(len(y))
    return TABLE[len(y)]


def a_table_of_pure_results(workload, y):
    key = tuple(y[0].tolist())
    if key not in TABLE:
        TABLE[key] = torch.ones(1)
    return TABLE[key]


@cache
def constant(size):
    return torch.ones(size)


@lru_cache
def of_numbers(*numbers):
    return sum(numbers)


def a_memory_of_results(workload, y):
    return constant(1) + 0 * of_numbers(*y[0].tolist())


@cache
def kept_scale():
    return 1 + SEEN[0].std()


def a_memory_of_the_first_result(workload, y):
    SEEN[:] = [y]
    return kept_scale()


def an_example_to_look_at(workload, y):
    workload.example = y
    SEEN[:] = [y]
    return 1


def nothing(workload, y):
    return 1


KEEPS = {
    an_attribute: r"Scaled\(\).spread",
    an_attribute_that_was_none: r"Scaled\(\).least",
    an_entry_of_a_table: r"Scaled\(\).table",
    an_object_of_the_workload: r"Scaled\(\).inner",
    a_global: "test_first_batch.FIRST",
    the_size_of_the_first_batch: "test_first_batch.COUNTED",
    a_global_list: "test_first_batch.SEEN",
    a_global_table: "test_first_batch.TABLE",
    a_global_ring: "test_first_batch.RING",
    in_place: "test_first_batch.PLACE",
    a_namespace: "test_first_batch.NAMES",
    a_global_object: "test_first_batch.NORMALIZER",
    an_object_with_slots: "test_first_batch.SLOTTED",
    an_attribute_of_the_function: r"Scaled\(\).scale",
    an_attribute_of_a_class: "Scaled.spread",
    a_default: r"Scaled\(\).scale",
    closure(): r"Scaled\(\).scale",
    unset_closure(): r"Scaled\(\).scale",
    a_memory_of_the_first_result: r"test_first_batch.kept_scale\(\)",
    a_constant: None,
    a_table_of_constants: None,
    masks_by_length: None,
    a_table_of_pure_results: None,
    a_memory_of_results: None,
    an_example_to_look_at: None,
    nothing: None,
}


class Scaled:
    """A workload with a function of the workload and of numbers that scales one of its own."""

    hyperparameters = ()

    def __init__(self, scale, where="loss"):
        self.scale, self.where = scale, where
        self.table, self.least, self.inner = {}, None, Normalizer()

    def scaled(self, where, y):
        return y * torch.as_tensor(self.scale(self, y.detach())).view(-1, 1) if where == self.where else y

    def model(self):
        return Model(lambda model, y: self.scaled("model", y))

    def loss(self, outputs, targets):
        return cross_entropy_error(self.scaled("loss", outputs), targets)

    def augment(self, inputs, generator):
        return self.scaled("augment", inputs)

    @property
    def errors(self):
        return {"wrong": lambda outputs, targets: self.scaled("errors", outputs)[:, 0].abs()}

    @property
    def metrics(self):
        return {"mean": lambda outputs, targets: self.scaled("metrics", outputs).abs().mean()}


def checked(study, workload):
    """Calls of the workload in the order of a sweep's checks, then the check of what it keeps."""
    before = Kept(workload)
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(40) % 2
    stateful(study, workload, inputs[:8], targets[:8], torch.contiguous_format)
    for function in (*workload.errors.values(), *workload.metrics.values()):
        function(inputs[:8, :2], targets[:8])
    held = Kept(workload)
    check_first_batch(study, workload, before, inputs, targets, torch.contiguous_format)
    assert not held.differs()


@pytest.fixture(autouse=True)
def put_back():
    """Other tests find the variables of this file as they were."""
    before = Kept(Scaled(nothing))
    yield
    before.put_back()


@pytest.mark.parametrize(("scale", "kept"), KEEPS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_kept_of_the_first_examples_is_refused(make_study, scale, kept):
    """If a result depends on it: constants and memories of results may be kept. All stays as it is."""
    with refused(kept and f"keeps .*{kept}.* of the first examples that it sees"):
        checked(make_study(), Scaled(scale))


@pytest.mark.parametrize("where", ["model", "errors", "metrics", "augment"])
@pytest.mark.parametrize("scale", [a_global, a_default, an_attribute])
def test_each_function_of_a_workload_is_looked_at(make_study, scale, where):
    with refused(f"keeps .*{KEEPS[scale]}.* of the first examples that it sees"):
        checked(make_study(), Scaled(scale, where))
