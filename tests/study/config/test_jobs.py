"""Overrides do what they say, and bad command lines are refused before anything is written."""

import dataclasses
import itertools
from pathlib import Path

import hydra
import pytest
from helpers.fused import partly, seldom

from analysis.counting import Goal
from study import records
from study.__main__ import main
from study.config.composed import compose, schema
from study.config.jobs import compositions, parse_jobs
from study.devices import placement
from study.errors import UsageError
from study.space import Dimension


@pytest.mark.parametrize(
    ("config", "record"),
    [
        (schema.EvaluationConfig, records.Evaluation),
        (schema.SeedsConfig, records.Seeds),
        (schema.SearchConfig, records.Search),
        (schema.EngineConfig, placement.Placement),
        (schema.SweepConfig, records.Study),
    ],
)
def test_the_schema_has_the_defaults_of_the_records(config, record):
    ours = {field.name: field.default for field in dataclasses.fields(record)}
    theirs = {field.name: field.default for field in dataclasses.fields(config)}
    compared = [name for name in ours.keys() & theirs.keys() if dataclasses.MISSING not in (ours[name], theirs[name])]
    assert compared
    assert {name: theirs[name] for name in compared} == {name: ours[name] for name in compared}


@pytest.mark.slow
def test_each_workload_of_a_sweep_brings_its_own_batch_sizes():
    workloads = ["mlp_digits", "resnet_cifar", "simple_cnn_fashion_mnist"]
    found = parse_jobs([f"workload={','.join(workloads)}"])
    for workload in workloads:
        [alone] = compositions([f"workload={workload}"])
        assert [job.study.batch_size for job in found if job.study.name == workload] == alone.batch_sizes
    assert len({job.study.batch_size for job in found}) > 13


LOG = Dimension(0.01, 0.1, "log")
WHOLE = "{low: 1, high: 4, integer: true, hard: [low]}"
LEARNING_RATE = "study.search.space.learning_rate"
WARMUP, DROPS = "study.search.space.warmup_examples", Dimension(1, 4, hard=("low",), integer=True)
OVERRIDES = [
    ([], "study.batch_size", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]),
    ([], "results", [Path("results/mlp_digits")]),
    (["batch_size=64,8"], "study.batch_size", [64, 8]),
    (["batch_sizes=[3,5]"], "study.batch_size", [3, 5]),
    (["optimizer=sgd,adam"], "study.optimizer", ["sgd", "adam"]),
    (["workload=resnet_cifar"], "study.optimizer", ["nesterov"]),
    (["workload=resnet_cifar", "optimizer=sgd"], "study.optimizer", ["sgd"]),
    (["workload=resnet_cifar"], "study.schedule", ["linear_decay"]),
    (["workload.name=a,b"], "results", [Path("results/a"), Path("results/b")]),
    (["results=here/${workload.name}"], "results", [Path("here/mlp_digits")]),
    (["workload.widths=[7,8]"], "study.workload.widths", [[7, 8]]),
    (["workload.widths=[7],[8,9]"], "study.name", ["mlp_digits_widths-7", "mlp_digits_widths-8-9"]),
    (["workload.widths=[7],[8]"], "results", [Path("results/mlp_digits")]),
    (["workload.widths=[7],[8]", "results=here/${workload.name}"], "results", [Path("here/mlp_digits")]),
    (["workload.split_seed=0,1", "results=here/${workload.split_seed}"], "study.name", ["mlp_digits"]),
    (["workload.split_seed=0,1", "workload.name=w${workload.split_seed}"], "study.name", ["w0", "w1"]),
    (["search=random"], "study.search.sampler", ["random"]),
    (["search.trials=7"], "study.search.trials", [7]),
    (["search=refine"], "study.search.scouts", [6]),
    (["search=refine", "optimizer=adamw", "schedule=linear_decay"], "study.search.scouts", [12]),
    (["search=refine", "optimizer=adamw", "schedule=linear_decay"], "study.search.trials", [35]),
    (["search=refine", "optimizer=adamw", "schedule=linear_decay", "search.scouts=5"], "study.search.scouts", [5]),
    (["+search.trials=7"], "study.search.trials", [7]),
    (["seeds.data_order=3"], "study.seeds.data_order", [3]),
    (["budget.max_steps=null"], "study.budget.max_steps", [None]),
    (["evaluation.ratio=1.5"], "study.evaluation.ratio", [1.5]),
    (["stopping=budget"], "study.stopping", ["budget"]),
    (["engine.workers=3"], "placement.workers", [3]),
    ([], "placement.checkpoint_minutes", [10.0]),
    (["checkpoint.minutes=0"], "placement.checkpoint_minutes", [0.0]),
    (["checkpoint.minutes=null"], "placement.checkpoint_minutes", [None]),
    ([], "options.track", [()]),
    (["track=mlflow"], "options.track", [("mlflow",)]),
    (["track=[wandb,tensorboard]", "track.trials=true"], "options.track", [("tensorboard", "wandb")]),
    (["track=trackio", "track.trials=true"], "options.track_trials", [True]),
    (["notify=ntfy://my-topic"], "options.notify", ["ntfy://my-topic"]),
    (["goal='val/cross_entropy_error < 0.3'"], "study.goal", [Goal("val/cross_entropy_error", 0.3)]),
    # What a person types: the shell takes one pair of quotes away.
    (["goal=val/cross_entropy_error < 0.3"], "study.goal", [Goal("val/cross_entropy_error", 0.3)]),
    (["search.space.learning_rate={low: 0.01, high: 0.1}"], LEARNING_RATE, [LOG]),
    (["search.space.learning_rate.low=0.01", "search.space.learning_rate.high=0.1"], LEARNING_RATE, [LOG]),
    (["search.space.learning_rate=0.1"], LEARNING_RATE, [Dimension(choices=(0.1,))]),
    (["search.space.learning_rate=[0.1,0.2]"], LEARNING_RATE, [Dimension(choices=(0.1, 0.2))]),
    (["search.space.learning_rate.hard=[low]"], f"{LEARNING_RATE}.hard", [("low",)]),
    # What the files of the schedules say
    (["schedule=step", f"search.space.learning_rate_drops={WHOLE}"], "study.search.space.learning_rate_drops", [DROPS]),
    (["search.space.warmup_steps=0", f"search.space.warmup_examples={WHOLE}"], WARMUP, [DROPS]),
    # What Classification says of a tuned label_smoothing.
    (["+search.space.label_smoothing=[0,0.1]"], "study.search.space.label_smoothing", [Dimension(choices=(0, 0.1))]),
]


def read(job, path):
    for name in path.split("."):
        job = job[name] if isinstance(job, dict) else getattr(job, name)
    return job


@pytest.mark.parametrize(
    ("overrides", "path", "expected"), partly(OVERRIDES, 6), ids=[" ".join(row[0]) for row in OVERRIDES]
)
def test_overrides(overrides, path, expected):
    """`expected` holds each value once that the jobs have at `path`, in their order."""
    found = [read(job, path) for job in parse_jobs(overrides)]
    assert [value for i, value in enumerate(found) if value not in found[:i]] == expected


def test_a_number_of_trials_keeps_the_search_of_a_preset(tmp_path):
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset/mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /search: random\n")
    [job] = parse_jobs(["preset=mine", "search.trials=7", "batch_size=8"], tmp_path)
    assert (job.study.search.sampler, job.study.search.trials) == ("random", 7)


def test_cfg_prints_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "optimizer=adam", "--cfg", "search.trials=3"]) == 0
    out = capsys.readouterr().out
    assert "optimizer:\n  name: adam\n" in out
    assert "trials: 3" in out
    assert "results: results/mlp_digits" in out
    assert not list(tmp_path.iterdir())


REFUSED = [
    (["search=refine", "search.scouts=1"], ["search.scouts must be a number of at least 2"]),
    (["search=refine", "search.refine=[]"], ["each round of search.refine must be a number of at least 1"]),
    (["search=refine", "search.refine=[4,0]"], ["each round of search.refine must be a number of at least 1"]),
    # An unknown word, with the nearest known one
    (["optimizer=sdg"], ["unknown optimizer 'sdg'", "did you mean 'sgd'"]),
    (["optimizer=adamW"], ["unknown optimizer 'adamW'", "did you mean 'adamw'"]),
    (["workload=moons"], ["unknown workload 'moons'; there are: ", " One of your own needs --config-dir."]),
    (["workload=resnet_cifr"], ["unknown workload 'resnet_cifr'", "did you mean 'resnet_cifar'"]),
    (["schedule=cosin"], ["unknown schedule 'cosin'", "did you mean 'cosine'"]),
    (["search=grid"], ["unknown search 'grid'", "sobol"]),
    (["search=bayes"], ["unknown search 'bayes'; there are: cmaes, gp, random, refine, sobol, tpe."]),
    (["search.sampler=bayes"], ["unknown search.sampler 'bayes'; there are: cmaes, gp, random, refine, sobol, tpe."]),
    (["optimizer=torch.optim.RAdam"], ["; a class is chosen by optimizer=torch optimizer.target=torch.optim.RAdam ("]),
    (["optimizer=sgd,mine.Adam"], ["; a class is chosen by optimizer=torch optimizer.target=mine.Adam (docs/guide/"]),
    (["preset=papr"], ["unknown preset 'papr'", "did you mean 'paper'"]),
    (["preset=workload"], ["unknown preset 'workload'; there are: none, paper, quick"]),
    (["preset/workload=quick/x"], ["preset/workload=quick/x cannot be chosen here"]),
    (["space=mlp_digits_momentum"], ["unknown space 'mlp_digits_momentum'", "did you mean 'mlp_digits/momentum'"]),
    (["search.trails=5"], ["unknown key 'search.trails'", "did you mean 'search.trials'"]),
    (["++foo.bar=1"], ["unknown key 'foo.bar'"]),
    (["engine=command", "workload.command=x"], ["'workload.command'; workload=command has it; the file of"]),
    (["workload.depth=3"], ["unknown key 'workload.depth'", "; workload=lstm_lm1b, lstm_shakespeare or "]),
    (["workload.sighs=3"], ["'workload.sighs'; the file of this one has name, ", "list other arguments"]),
    (["workload.widhts=[3]"], ["unknown key 'workload.widhts'", "did you mean 'workload.widths'"]),
    *(
        ([f"search.space.learning_rate.{end}=1"], [f"did you mean 'search.space.learning_rate.{right}'"])
        for end, right in (("min", "low"), ("lower", "low"), ("max", "high"), ("upper", "high"))
    ),
    (
        ["search.space.nothing.min=1"],
        ["unknown key 'search.space.nothing.min'", "nothing has no range here", "='{low: "],
    ),
    (["search.space.weight_decay.low=1e-5"], ["give all of it, search.space.weight_decay='{low: 0, high: 1}'"]),
    (["search.space.learning_rat.low=1e-5"], ["did you mean 'search.space.learning_rate.low'"]),
    (
        ["hydra.launcher.n_jobs=3"],
        ["unknown key 'hydra.launcher.n_jobs'; ", "choose cluster=local, slurm or ray, too."],
    ),
    (
        ["optimizer.name=adam"],
        ["needs search.space.beta1, but it is missing; give it, or choose them by optimizer=NAME"],
    ),
    (["numerics_version=3"], ["unknown key 'numerics_version'"]),
    (["search.sampler=halton"], ["unknown search.sampler 'halton'", "sobol"]),
    (["stopping=never"], ["unknown stopping rule 'never'", "budget"]),
    (["workload.dataset=digts"], ["unknown data set 'digts'", "did you mean 'digits'"]),
    (["+search.space.momentm=0.5"], ["search.space.momentm", "did you mean", "momentum"]),
    (["search.space.lr=0.5"], ["search.space.lr is a parameter of neither", "did you mean 'learning_rate'"]),
    (["search.space.wd=0.5"], ["search.space.wd is a parameter of neither", "did you mean 'weight_decay'"]),
    (["optimizer=sgd", "+search.space.momentum=0.5"], ["search.space.momentum"]),
    # A value that no record takes
    (["batch_size=0"], ["batch_size must be", "at least 1", "got 0"]),
    (["batch_size=5000"], ["batch_size must be at most the 1197 training examples", "got 5000"]),
    (["batch_size=big"], ["batch_size must be a whole number, but got big; for example batch_size=64,256"]),
    (["batch_size=1.5"], ["batch_size must be a whole number, but got 1.5;"]),
    (["batch_size=[4,16]"], ["batch_size must be a whole number, but got [4, 16]; for example batch_size=64,256"]),
    (["optimizer=[sgd,adam]"], ["optimizer must be one name, but got [sgd,adam]; give optimizer=sgd,adam to sweep"]),
    (["cluster=[slurm,ray]"], ["cluster must be one name, but got [slurm,ray]."]),
    (["batch_sizes=[]"], ["batch_sizes is not set", "such as batch_sizes=[8,64,512]"]),
    (["batch_sizes=64"], ["batch_sizes must be a list, but got 64; give batch_sizes=[64] or batch_size=64."]),
    (["goal=soon"], ["a goal must read", "'soon'"]),
    (["goal=val/accuracy > 0.9"], ["a goal must read", "val/accuracy > 0.9"]),
    (["goal='val/classification_error < little'"], ["a goal must read", "little"]),
    (["goal='val/accuracy < 0.9'"], ["does not measure 'val/accuracy'"]),
    (["goal='val/classification_error < 2'"], ["at most 1"]),
    (["goal='test/classification_error < 0.1'"], ["stopping=budget"]),
    (["budget.epochs=-1"], ["budget.epochs must be", "at least 0", "-1"]),
    (["budget.epochs=inf"], ["budget.epochs", "inf"]),
    (["budget.epochs=nan"], ["budget.epochs", "nan"]),
    (["budget.steps=0"], ["budget.steps must be", "at least 1", "0"]),
    (["budget.max_steps=10"], ["`budget.steps <= budget.max_steps` must hold", "10"]),
    (["evaluation.first=0"], ["evaluation.first must be in (0, 1]", "0"]),
    (["evaluation.first=1.5"], ["evaluation.first must be in (0, 1]", "1.5"]),
    (["evaluation.first=nan"], ["evaluation.first", "nan"]),
    (["evaluation.ratio=inf"], ["evaluation.ratio", "inf"]),
    (["evaluation.ratio=1"], ["evaluation.ratio must be above 1", "1"]),
    (["evaluation.every=0"], ["evaluation.every must be", "at least 1", "0"]),
    (["seeds.search=-1"], ["seeds.search must be", "at least 0", "-1"]),
    (["seeds.trial=x"], ["seeds.trial", "but got x;"]),
    (["search.trials=0"], ["search.trials must be", "at least 1", "0"]),
    (["search.trials=null"], ["search.trials"]),
    (["search=cmaes", "optimizer=sgd"], ["search=cmaes needs two ranges or more", "learning_rate", "search=tpe"]),
    (["search.max_launches=3"], ["`search.trials <= search.max_launches` must hold", "3"]),
    (["search.extend_factor=1"], ["search.extend_factor must be at least 1.1", "1"]),
    (["search.extend_limit=-1"], ["search.extend_limit must be", "at least 0", "-1"]),
    (["search.budgets=[0.5,2]"], ["search.budgets must be", "1 among them", "[0.5, 2.0]"]),
    (["search.budgets=[1,-1]"], ["search.budgets must be", "above 0", "-1"]),
    (["search.repeats=-1"], ["search.repeats must be", "at least 0", "-1"]),
    (["search.reruns=-3"], ["search.reruns must be", "at least 0", "-3"]),
    (["search=refine", "search.fresh_data=split", "search.confirm=0"], ["there are none; give search.confirm=4"]),
    (["workload=nqm", "search.fresh_data=split"], ["configuration of nqm has none", "split_seed: 0 in its file"]),
    (["search.storage=nowhere"], ["search.storage=nowhere cannot be used", "sqlite:///optuna.db"]),
    (["search.storage=sqlite:////no/such/folder/optuna.db"], ["search.storage=sqlite:", "cannot be used"]),
    (["search.space.learning_rate.low=0"], ["search.space.learning_rate", "`low > 0` must hold", "0"]),
    # A parameter outside what its algorithm is defined for, which a worker would otherwise find out much later
    *(
        ([f"search.space.{name}={value}"], [f"{value!r}; a range is search.space.{name}='{{low: 0.1, high: 0.9}}'"])
        for name, value in (("learning_rate", "0.1..0.2"), ("momentum", "0.1-0.2"), ("learning_rate", "log"))
    ),
    (["search.space.learning_rate=-1"], ["search.space.learning_rate", "-1"]),
    (["optimizer=adam", "search.space.beta2=1.5"], ["search.space.beta2", "1.5"]),
    (["optimizer=adam", "search.space.epsilon=-1"], ["search.space.epsilon", "-1"]),
    (["schedule=linear_decay", "search.space.learning_rate_decay_fraction=0"], ["learning_rate_decay_fraction", "0"]),
    # A workload that cannot be built
    (["workload.name=a/b"], ["workload.name", "'a/b'"]),
    (["workload.name=null"], ["workload.name", "None"]),
    (["workload.name=[a]"], ["workload.name", "a"]),
    (["workload.train_examples=5000"], ["train_examples must be at most 1197", "5000"]),
    (["workload.train_examples=many"], ["train_examples", "many"]),
    (["workload.train_examples=null"], ["train_examples", "None"]),
    (["workload.validation_examples=1497"], ["validation_examples must be at most 1496", "1497"]),
    (["workload.split_seed=-1"], ["split_seed", "-1"]),
    (["workload.split_seed=x"], ["split_seed", "x"]),
    (["workload.label_smoothing=1"], ["workload.label_smoothing must be", "in [0, 1)", "1"]),
    (["workload.widths=[0]"], ["workload.widths", "0"]),
    (["workload.widths=5"], ["widths", "5"]),
    (["workload._target_=null"], ["_target_", "None"]),
    (["workload._target_=workloads.none.None"], ["_target_", "workloads.none.None"]),
    # A place that cannot be used
    (["engine.device=tpu"], ["engine.device", "'tpu'"]),
    (["engine.device=cuda:x"], ["engine.device", "'cuda:x'", "cannot be used"]),
    (["engine.device=cpu:x"], ["engine.device", "'cpu:x'", "cannot be used"]),
    (["engine.compile=perhaps"], ["engine.compile must be auto, true or false", "'perhaps'"]),
    (["engine.compile=true", "engine.device=cpu"], ["engine.compile=true needs a GPU", "leave out engine.compile"]),
    (["engine.workers=0"], ["engine.workers must be", "at least 1", "0"]),
    (["checkpoint.minutes=-1"], ["checkpoint.minutes must be", "at least 0", "-1"]),
    (["checkpoint.minutes=nan"], ["checkpoint.minutes must be", "at least 0", "nan"]),
    (["checkpoint.minutes=often"], ["checkpoint.minutes", "but got often;"]),
    (["checkpoint.minutes=1,2", "results=${checkpoint.minutes}"], ["checkpoint, shards, track and notify settings"]),
    (["track=mlflw"], ["unknown track 'mlflw'", "did you mean 'mlflow'"]),
    (["track=[mlflow,wndb]"], ["unknown track 'wndb'", "did you mean 'wandb'"]),
    (["track=mlflow,wandb"], ["track=mlflow,wandb cannot be swept", "track=[tensorboard,mlflow]"]),
    (["--config-dir", "nowhere"], ["--config-dir", "nowhere"]),
    (["results="], ["results"]),
    # Two studies in one folder
    (["batch_sizes=[8,8]"], ["batch size 8 twice; give each value once"]),
    (["batch_size=8,8"], ["batch size 8 twice; give each value once"]),
    # Not an override at all
    (["optimizer"], ["optimizer"]),
    (["a=b=c"], ["unknown key 'a'"]),
    (["~search.trials"], ["search.trials cannot be removed"]),
    (["~workload"], ["workload cannot be removed"]),
]


@pytest.mark.parametrize(
    ("arguments", "words"), seldom(partly(REFUSED, 12)), ids=[" ".join(arguments) for arguments, _ in REFUSED]
)
def test_a_bad_command_line_is_refused_in_words(tmp_path, monkeypatch, capsys, arguments, words):
    class Started:
        """Stands where training would begin: what reaches it was accepted."""

        def __init__(self, *_):
            pytest.fail("accepted")

    monkeypatch.setattr("study.whole_sweep.costs.Workers", Started)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert 1 <= len(lines) <= 2
    assert lines[0].startswith("study: ")
    assert [word for word in words if word not in captured.err] == []
    for jargon in ("Traceback", "Exception", "Hydra", "OmegaConf", "DictConfig", "struct"):
        assert jargon not in captured.err
    assert not captured.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "nowhere"], ["there is no folder nowhere"]),
        (["data", "fetch", "mnits"], ["unknown data set 'mnits'", "did you mean 'mnist'"]),
        (["sweep", "results=file/below", "batch_size=8"], ["cannot write to file/below"]),
        (["sweep", "--config-dir", "file"], ["--config-dir must be a folder", "file"]),
    ],
)
def test_a_bad_place_is_refused_in_words(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) <= 2
    assert [word for word in words if word not in err] == []
    assert [path.read_text() for path in tmp_path.iterdir()] == ["no folder"]


def test_a_range_takes_the_place_of_choices_in_a_file():
    asked = ["workload=resnet50_imagenet", "batch_size=64"]
    [job] = parse_jobs([*asked, "search.space.label_smoothing={low: 0, high: 0.3}"])
    assert job.study.search.space["label_smoothing"] == Dimension(0, 0.3, hard=("low",))
    [job] = parse_jobs([*asked, "search.space.label_smoothing={choices: [0, 0.3]}"])
    assert job.study.search.space["label_smoothing"].choices == (0, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "schedule", "name", "side", "end"),
    [
        ("momentum", "constant", "momentum", "low", 0.5),
        ("adam", "constant", "beta1", "low", 0.5),
        ("sgd", "cosine", "learning_rate_decay_fraction", "high", 0.8),
        ("sgd", "exponential", "end_learning_rate_factor", "high", 0.5),
        ("sgd", "warmup_stable_decay", "warmup_steps", "low", 10),
    ],
)
def test_a_side_is_hard_only_where_the_parameter_ends(optimizer, schedule, name, side, end):
    """A narrower range may be too narrow: its sides are audited and widened."""
    asked = [f"optimizer={optimizer}", f"schedule={schedule}", "batch_size=64"]
    [whole] = parse_jobs(asked)
    assert whole.study.search.space[name].hard == (side,)
    [narrow] = parse_jobs([*asked, f"search.space.{name}.{side}={end}"])
    assert narrow.study.search.space[name].hard == ()


@pytest.mark.parametrize(
    "words",
    [
        ["search.space.learning_rate=[0.1,0.2]", "search.space.learning_rate.high=0.3"],
        ["search.space.learning_rate={choices: [0.1, 0.2]}", "search.space.learning_rate.scale=linear"],
    ],
)
def test_a_side_of_a_range_beside_choices_is_refused(words):
    with pytest.raises(UsageError, match=r"has the choices \[.*\], so its (high|scale) is not used"):
        parse_jobs(["batch_size=64", *words])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["batch_size=8,32,64"], 1),
        (["batch_size=8,32,64", "optimizer=sgd,adam"], 2),
        (["optimizer=sgd,adam", "+batch_size=8,32,64", "results=here/${batch_size}"], 2),
        (["workload=transformer_shakespeare", "batch_size='4k tokens',8", "race_factor=2,3"], 2),
    ],
)
def test_batch_sizes_are_composed_once_and_mean_the_same_as_one_by_one(words, times, monkeypatch):
    calls = []
    monkeypatch.setattr(compose, "compose", lambda *rest, **more: calls.append(rest) or hydra.compose(*rest, **more))
    swept = [word for word in words if "," in word]
    points = itertools.product(
        *([f"{key}={one}" for one in value.split(",")] for key, value in (word.split("=", 1) for word in swept))
    )
    together = list(compositions(words))
    assert len(calls) == times
    alone = [next(compositions([*(word for word in words if word not in swept), *point])) for point in points]
    assert together == alone
    assert len({str(config) for config in together}) == len(together)
