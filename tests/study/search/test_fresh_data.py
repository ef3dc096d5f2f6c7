"""`search.fresh_data`: fresh seeds that also have another split, or another evaluated part of the validation set."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import Desk

from analysis.counting import Branch
from analysis.estimates import tuned
from analysis.load import load
from analysis.report import findings
from analysis.tables import answers, steps_to_result
from study import store
from study.checks.data import check_fresh_data
from study.data import streaming
from study.data.examples import splits_of
from study.engine import train
from study.engine.trial.evaluation import Log, evaluated_examples
from study.errors import UsageError
from study.records import Study
from study.search import stages
from study.settings import Evaluation
from study.workers.one_by_one import by_data
from workloads.base import Splits
from workloads.user_code.importing import build as built

WORKLOAD = {"_target_": "somewhere.Tiny", "name": "tiny", "train_examples": 64, "split_seed": 7}
POINT = {"learning_rate": 0.1, "momentum": 0.9}
SAMPLED = {"fresh_data": "validation", "evaluation": Evaluation(examples=20)}


def own_of(study, index):
    """The study with the data of this trial."""
    return study.of_trial(study.trial(index, POINT))


@pytest.fixture
def again(make_study):
    """The reruns of a tuned configuration, and the search that asks for them."""

    def make(fresh_data="split", **fields):
        study = make_study(**{"workload": WORKLOAD, "reruns": 4, "fresh_data": fresh_data} | fields)
        branch = study.branch._replace(rerun=2)
        return study, stages.trained_again(study, POINT, 4, branch, study.search.fresh_data)

    return make


def test_a_seed_of_one_number_has_one_split_at_every_batch_size_and_for_every_optimizer(again):
    search, rerun = again()
    _, other = again(batch_size=32, optimizer="sgd", space={"learning_rate": 0.1})
    assert [own_of(rerun, k).workload["split_seed"] for k in range(3)] == [8, 9, 10]
    assert [own_of(other, k).workload for k in range(3)] == [own_of(rerun, k).workload for k in range(3)]
    assert own_of(search, 3) is search  # the search itself has one split


def test_the_data_alone_differ(again):
    _, rerun = again()
    _, usual = again(fresh_data=None)
    assert rerun.trial(1, POINT) == usual.trial(1, POINT)
    assert replace(own_of(rerun, 1), workload=WORKLOAD) == rerun
    assert own_of(usual, 1) is usual


def test_a_seed_of_one_number_is_evaluated_on_one_part(again):
    _, rerun = again(**SAMPLED)
    parts = [evaluated_examples(60, 20, own_of(rerun, k).evaluation.part) for k in range(3)]
    assert len({tuple(part) for part in [evaluated_examples(60, 20), *parts]}) == 4
    assert all(part == sorted({*part}) and len(part) == 20 for part in parts)
    assert own_of(rerun, 1).workload == WORKLOAD
    data = SimpleNamespace(counts={"val": 60})
    logs = [Log(own_of(rerun, k), Blobs(), data, rerun.trial(k, POINT)) for k in range(3)]
    assert [log.examples("val") for log in logs] == parts


def test_it_is_recorded_and_studies_without_it_keep_their_question(again):
    for study in again():
        assert study.question()["search"]["fresh_data"] == "split"
        assert Study.from_question(study.question()) == study
    for study in again(fresh_data=None):
        assert "fresh_data" not in study.question()["search"]
        assert "part" not in study.question()["evaluation"]
    own = own_of(again(**SAMPLED)[1], 2)
    assert Study.from_question(own.question()) == own


def test_a_folder_begun_without_it_says_so(again, tmp_path, make_curve, write_study):
    search, _ = again(fresh_data=None)
    write_study(tmp_path, search, [make_curve(search, 0, reaches=50)])
    with pytest.raises(store.StoreError, match=r"search\.fresh_data: None -> split\); choose another results=DIR"):
        store.check(tmp_path, [again()[0]])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"fresh_data": "splits"}, "unknown search.fresh_data 'splits'; did you mean 'split'?"),
        ({"reruns": 0}, "but there are none; give search.reruns=4."),
        ({"workload": {**WORKLOAD, "split_seed": None}}, "list split_seed: 0 in its file if its class takes"),
        ({"fresh_data": "validation"}, "but all of it is evaluated; give evaluation.examples=N"),
    ],
)
def test_it_is_refused_where_nothing_would_vary(again, fields, said):
    with pytest.raises(ValueError) as refusal:
        again(**fields)
    assert said in str(refusal.value)


class Split:
    """Data that depend on the split seed, if asked."""

    def __init__(self, name, train_examples, split_seed, heeds):
        self.seed = split_seed * heeds

    def splits(self, device):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(self.seed))
        x, y = torch.arange(60.0)[:, None], torch.arange(60) % 3
        return Splits(*((x[part], y[part]) for part in order.split(20)))


@pytest.mark.parametrize(
    ("heeds", "fields", "said"),
    [
        (True, {}, None),
        (False, {}, r"mine\.splits\(\) returns the same data with 1 as with 0; let them depend on it"),
        (False, SAMPLED, r"evaluation\.examples=20 is all of it \(20 examples\); give fewer"),
        (False, {**SAMPLED, "evaluation": Evaluation(examples=19)}, None),
    ],
)
def test_data_that_would_not_vary_are_refused_before_training(again, heeds, fields, said):
    recorded = {"_target_": f"{__name__}.Split", "name": "mine", "train_examples": 20, "split_seed": 0, "heeds": heeds}
    study, _ = again(workload=recorded, batch_size=4, **fields)
    workload = built(recorded)
    if said is None:
        check_fresh_data(study, workload, splits_of(workload))
        return
    with pytest.raises(UsageError, match=said):
        check_fresh_data(study, workload, splits_of(workload))


def test_trials_with_data_of_their_own_are_proposed_alone(again):
    _, rerun = again()
    desk = Desk(iter([rerun.trial(k, POINT) for k in range(3)]))
    desk.kept[1] = b"half"
    found = []
    for study, proposals in by_data(rerun, desk):
        trial = proposals.ask(wait=True)
        assert (proposals.ask(wait=False), proposals.ask(wait=True)) == (None, None)
        found.append((study.workload["split_seed"], trial.index, proposals.checkpoint(trial.index)))
        proposals.keep(trial.index, b"more")
    assert found == [(8, 0, None), (9, 1, b"half"), (10, 2, None)]
    assert desk.kept == dict.fromkeys(range(3), b"more")
    _, usual = again(fresh_data=None)
    assert list(by_data(usual, desk)) == [(usual, desk)]


@pytest.mark.parametrize("fresh_data", ["split", None])
def test_reruns_are_read_by_number_and_the_report_says_what_they_hold(
    again, tmp_path, make_curve, write_study, fresh_data
):
    for size in (8, 16):
        search, _ = again(fresh_data, batch_size=size, space=POINT, trials=1)
        rerun = stages.trained_again(search, POINT, 4, Branch(rerun=0), search.search.fresh_data)
        write_study(tmp_path, search, [make_curve(search, 0, reaches=20)])
        write_study(tmp_path, rerun, [make_curve(rerun, k, reaches=steps) for k, steps in enumerate((30, 40, 50, 60))])
    made = list(load(tmp_path))
    runs = answers.rerun_steps(made)
    assert runs["rerun"].tolist() == [0, 1, 2, 3] * 2
    assert runs["steps"].tolist() == [30, 40, 50, 60] * 2
    studies = answers.answers(made)
    steps = tuned.table(steps_to_result.table(studies), runs)
    said = "tiny with momentum: each fresh seed has another split into training and validation data, so that the spread"
    assert [each[: len(said)] for each in findings.about_fresh_data(studies, steps)] == [said] * (
        fresh_data is not None
    )
    assert findings.about_fresh_data(studies, steps.assign(seeds=0)) == []


def test_every_choice_has_a_sentence():
    assert findings.FRESH_DATA.keys() == {"split", "validation"}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["lanes", pytest.param("serial", marks=pytest.mark.release)])
def test_digits_with_another_split_for_each_seed(tmp_path, says, engine):
    """Each rerun is the training that its number says; more of them, from other workers, change none."""
    asked = ["sweep", "optimizer=sgd", "batch_size=32,256", "search=sobol", "search.trials=3", f"engine={engine}"]
    asked += ["search.fresh_data=split", f"results={tmp_path}", "budget.epochs=5", "budget.steps=60"]
    asked += ["goal='val/cross_entropy_error < 0.5'"]
    says(*asked, "search.reruns=2", "engine.workers=1")
    assert "has another split into training and validation data" in says("report", tmp_path, "--json")
    files = sorted(tmp_path.glob("studies/*/*/*/rerun-*/study.json"))
    before = [store.load(path.parent) for path in files]
    says(*asked, "search.reruns=4", "engine.workers=2")
    for path, old in zip(files, before, strict=True):
        curves = store.load(path.parent)
        assert [curve.trial.index for curve in curves] == [0, 1, 2, 3]
        study = Study.from_question(store.read(path)["question"])
        for curve in (*old, *curves):
            own = study.of_trial(curve.trial)
            assert own.workload["split_seed"] == 1 + curve.trial.index
            workload = built(own.workload)
            data = streaming.source(splits_of(workload), "cpu", None, 0, workload)
            [alone] = train.train(own, workload, data, Desk(iter([curve.trial])), (1, 2, 4), 1)
            for name, errors in alone.errors.items():
                np.testing.assert_array_equal(errors, curve.errors[name])
    assert "Done." in says("status", tmp_path)
