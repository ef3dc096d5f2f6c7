"""Objects as workloads: recorded as a file would give them, or refused with the cure."""

import dataclasses
import importlib
import sys
from types import ModuleType

import pytest

from study.config.composed.compose import compositions, offered
from study.errors import UsageError
from study.library.own_workload import MEMBERS, REQUIRED, OwnWorkload
from workloads.base import Workload
from workloads.command import COMMAND_PATH, Command

MODULE = """
from dataclasses import dataclass


class Members:
    errors, hyperparameters, splits, model, loss = {}, (), None, None, None


@dataclass(frozen=True)
class Good(Members):
    name: str
    train_examples: int = 10
    widths: tuple = (1, (2, 3))
    more: dict = None


class Plain(Members):
    def __init__(self, name, train_examples, size=3):
        self.name, self.train_examples, self.size = name, train_examples, size


class Forgetful(Plain):
    def __init__(self, name, train_examples, size=3, depth=1):
        super().__init__(name, train_examples, size)


class Percent(Plain):
    def __init__(self, name, train_examples, size=3):
        super().__init__(name, train_examples, size / 100)


class Picky(Plain):
    def __init__(self, name, train_examples, size=3):
        assert size > 1
        super().__init__(name, train_examples, 1 / size)


class Tunable(Plain):
    rate, seen = 0.1, None


class Open(Plain):
    def __init__(self, name, **more):
        super().__init__(name, 10)


@dataclass
class Nameless(Members):
    train_examples: int


class Half:
    errors, model = {}, None

    def __init__(self):
        self.loss = abs


class Nothing:
    pass


class Outer:
    class Inner(Plain):
        pass


def made():
    class Local(Plain):
        pass

    return Local("x", 1)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The module `own_kinds`, in a package."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").touch()
    (tmp_path / "pack/own_kinds.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("pack.own_kinds")


def test_the_fields_of_a_dataclass_are_recorded(own, tmp_path):
    found = OwnWorkload.of(own.Good("my net", more={"a": None}))
    assert found.arguments == {
        "_target_": "pack.own_kinds.Good",
        "name": "my net",
        "train_examples": 10,
        "widths": [1, [2, 3]],
        "more": {"a": None},
    }
    assert (found.name, found.folder) == ("my_net", tmp_path)
    assert found.call.startswith("pack.own_kinds.Good(name='my net', train_examples=10, widths=[1, [2, 3]]")


def test_so_are_the_attributes_of_a_plain_class(own):
    found = OwnWorkload.of(own.Plain("net", 5, size=4))
    assert found.arguments == {"_target_": "pack.own_kinds.Plain", "name": "net", "train_examples": 5, "size": 4}


def changed(workload, **attributes):
    for name, value in attributes.items():
        setattr(workload, name, value)
    return workload


def test_what_a_workload_learns_later_is_no_setting(own):
    """Such as the size of a vocabulary, which `splits` counts."""
    OwnWorkload.of(changed(own.Tunable("x", 2), seen=7, more=3, rate=0.1, cache=object()))


REFUSED = {
    "the class itself": (lambda own: own.Good, r"must be an object, such as Good\(.*, but got the class Good"),
    "an argument that is not kept": (lambda own: own.Forgetful("x", 1), "has no attribute 'depth'.* self.depth"),
    "an argument that is changed": (
        lambda own: own.Percent("x", 1, size=50),
        r"Percent.size must be the argument as it was given.*Percent\(size=0.5\) has size = 0.005",
    ),
    "one that its constructor refuses": (lambda own: own.Picky("x", 1), "from its attributes, .* raises AssertionErr"),
    "a setting that was changed later": (
        lambda own: changed(own.Tunable("x", 2), rate=0.5),
        r"Tunable.rate is 0.5, but .* sets rate = 0.1",
    ),
    "arguments without names": (lambda own: own.Open("x"), r"takes \*\*more, but a study records each argument"),
    "no name": (lambda own: own.Nameless(3), "constructor of Nameless must take name"),
    "an argument that no file holds": (lambda own: own.Plain("x", 1, size={1}), r"Plain.size must be .* but got \{1\}"),
    "a class in a class": (lambda own: own.Outer.Inner("x", 1), "Inner is defined inside another class"),
    "a class in a function": (lambda own: own.made(), "Local is defined inside a function"),
    "some members only": (lambda own: own.Half(), "but Half has no hyperparameters or splits[.]"),
    "no members": (
        lambda own: own.Nothing(),
        "be a name, such as 'mlp_digits', an object .*, but got an object of Not",
    ),
    "a number": (lambda own: 3, "a list of these, but got 3[.]"),
    "None": (lambda own: None, "a list of these, but got None[.]"),
    "a list in a list": (lambda own: ["mlp_digits"], r"a list of these, but got \['mlp_digits'\][.]"),
    "a function": (lambda own: abs, "a list of these, but got <built-in function abs>[.]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_workers_cannot_build_is_refused(case, own):
    make, told = REFUSED[case]
    with pytest.raises(UsageError, match=told):
        OwnWorkload.of(make(own))


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (None, "defined in this notebook.* put %%writefile moons.py .* `from moons import Moons`"),
        ("train.py", "defined in the program itself.* such as moons.py, and write `from moons import Moons`"),
    ],
)
def test_a_class_of_the_main_module_is_refused_with_the_cure(file, told, monkeypatch):
    main = ModuleType("__main__")
    if file:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    kind = dataclasses.make_dataclass("Moons", ["name"], namespace=dict.fromkeys(MEMBERS))
    kind.__module__ = "__main__"
    with pytest.raises(UsageError, match=told):
        OwnWorkload.of(kind("moons"))


def test_its_name_can_be_chosen_while_it_is_offered(own):
    found = OwnWorkload.of(own.Good("${x}", more={"${workload.name}": "${workload.name}"}))
    words = [f"workload={found.name}", "goal=val/x < 1", "budget.epochs=1", "budget.steps=1", "batch_sizes=[1]"]
    with offered({found.name: found.arguments}):
        [config] = compositions(words)
        assert config.workload.name == "${x}"
        assert config.workload.widths == [1, [2, 3]]
    with pytest.raises(UsageError, match="unknown workload"):
        [*compositions(words)]


def test_a_name_of_ours_is_refused(own):
    with pytest.raises(UsageError, match="mlp_digits is a workload of this package"), offered({"mlp_digits": {}}):
        pass


def test_the_members_are_those_of_the_interface():
    named = {name for name in (*vars(Workload), *Workload.__annotations__) if not name.startswith("_")}
    assert {*MEMBERS, *REQUIRED} == named


def test_a_training_script_is_one():
    line = "train --lr {learning_rate} -b {batch_size} -n {steps} -s {seed} -l {log}"
    own = OwnWorkload.of(Command("mine", 1200, line))
    expected = {"name": "mine", "train_examples": 1200, "command": line, "failed": "stop", "tokens_per_example": None}
    assert own.arguments == {"_target_": COMMAND_PATH, **expected}
