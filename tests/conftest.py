"""What all tests share: a tiny Study, curves made by hand, and a results folder written from them."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers import checkpointed, fused
from house.marks import drawn, only_gpu
from hypothesis import settings

from analysis import figures
from analysis.counting import Goal
from study import store
from study.__main__ import main
from study.records import Curve, Study
from study.search.points import point
from study.settings import Budget, Evaluation, Search
from study.space import parse_space, values
from study.user_code import faults

pytest_plugins = ["helpers.made_data", "helpers.made_workload"]

# No deadline: test machines are busy. 20 examples (default 100) help to keep the default tests under four minutes.
settings.register_profile("study", deadline=None, max_examples=20)
settings.load_profile("study")

SPACE = {
    "learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"},
    "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]},
}
CHARTS = figures.charts
METRICS = [f"{split}/{error}" for split in ("train", "val", "test") for error in ("classification_error", "loss")]


def pytest_addoption(parser):
    parser.addoption("--slow-share", type=int, default=1, metavar="N", help="run one in N slow tests, by the commit")


def pytest_collection_modifyitems(config, items):
    share = config.getoption("--slow-share")
    if share > 1:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
        left = [item for item in items if "slow" in item.keywords and not drawn(item.nodeid, commit, share)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


def pytest_configure(config):
    """GPUs are for runs of GPU tests alone (`-m "gpu and not slow"`): all others hold the CPU's bits to account."""
    if not only_gpu(config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """As in the workers: on a busy machine several threads spin, and they change the last bits."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks():
    """No test cuts the power, and thousands of small files would wait for the disk one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_figure():
    """Reports draw one kind of figure. All kinds take seconds, and the tests of figures draw them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "charts", lambda tables, names=("steps_to_result",): CHARTS(tables, names))
        yield


@pytest.fixture
def all_figures(monkeypatch):
    """Reports draw all kinds of figures in this test."""
    monkeypatch.setattr(figures, "charts", CHARTS)


@pytest.fixture(autouse=True)
def _denormals():
    """What a worker settles must not outlive a test that was one: hypothesis wants small numbers to be there."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def _debugging():
    """`--debug` in one test must not make the next one print tracebacks."""
    yield
    os.environ.pop(faults.DEBUG, None)


@pytest.fixture(scope="session")
def _installed():
    """The names of imported modules that no test wrote."""
    return set()


@pytest.fixture(autouse=True)
def _imports(tmp_path_factory, _installed):
    """Modules that a test wrote and imported must not stand in for the next test's file of the same name."""
    before = [*sys.path]
    yield
    sys.path[:] = before
    made = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - _installed:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(made):
            del sys.modules[name]
        else:
            _installed.add(name)


def _study(space=SPACE, trials=4, sampler="sobol", max_launches=None, name="tiny", examples=64, steps=None, **fields):
    """A tiny Study; keywords replace its fields or those of its search and workload; trials run all `steps` given."""
    more = {key: fields.pop(key) for key in list(fields) if key in Search.__dataclass_fields__}
    fields = {
        "workload": {"_target_": "somewhere.Tiny", "name": name, "train_examples": examples},
        "optimizer": "momentum",
        "schedule": "constant",
        "batch_size": 8,
        "goal": Goal("val/classification_error", 0.1),
        "stopping": "budget" if steps else "goal",
        "budget": Budget(epochs=0, steps=steps or 100),
        "search": Search(sampler, trials, parse_space(space), max_launches, **more),
        "evaluation": Evaluation(every=5),
    } | fields
    return Study(**fields)


def _curve(study, index, reaches=None, bad=None, until=None):
    """Trial `index` on the study's grid (`reaches` joins it), cut at `until` or before the update `bad`.

    The goal's metric is 0.9 until `reaches` and 0.05 from there on; every other metric was never measured.
    """
    last = study.train_steps if until is None else until
    if bad is not None:
        last = bad - 1
    if study.stopping != "budget" and reaches is not None:
        last = min(last, reaches)
    steps = np.array(sorted({*study.evaluation_steps, *([reaches] if reaches else [])}), dtype=np.int64)
    steps = steps[steps <= last]
    errors = {metric: np.full(len(steps), np.nan) for metric in {*METRICS, study.goal.metric}}
    errors[study.goal.metric] = np.where(steps >= reaches, 0.05, 0.9) if reaches else np.full(len(steps), 0.9)
    trial = study.trial(index, values(study.search.space, point(study, index)))
    return Curve(trial, bad, steps, errors, {"training": 2.0, "evaluation": 0.5})


def _write(results, study, curves, close=True):
    """Write a study and its curves as a sweep would; returns the study's folder."""
    run = store.open_study(results, study, {"device": "cpu"})
    folder = store.study_folder(results, study)
    if curves and close and not store.load(folder):
        store.write_curves(curves, folder / store.COMPACTED)  # as `gather` would: faster than a file for each trial
    else:
        for curve in curves:
            store.save(folder, curve, replaces=True)
    if close:
        store.end_run(run, {"ended": "now"})
        store.gather(folder)
    return folder


@pytest.fixture(scope="session")
def swept_once(tmp_path_factory):
    """The results folder of the sweep with these words, which is made at the first call."""

    @functools.cache
    def sweep(*words):
        folder = tmp_path_factory.mktemp("swept") / "results"
        assert main([*words, f"results={folder}"]) == 0
        return folder

    return sweep


@pytest.fixture
def says(capsys):
    """What `study` says to these words, in one line: on stderr if it should end with another status than 0."""

    def run(*words, status=0):
        capsys.readouterr()
        assert main([*map(str, words)]) == status
        return " ".join(capsys.readouterr()[status != 0].split())

    return run


def _shared(function):
    """A fixture that is this function."""
    return pytest.fixture(scope="session")(lambda: function)


make_study, make_curve, write_study = map(_shared, (_study, _curve, _write))
question = _shared(functools.partial(fused.asked, _study))
resumable = _shared(functools.partial(checkpointed.asked, _study))
