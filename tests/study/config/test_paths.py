"""Folders with any name: as results, as --config-dir, and as arguments of a workload."""

import io
from pathlib import Path

import pytest
from helpers.fused import partly
from helpers.made_workload import edited, own_folder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from study.__main__ import main
from study.config.composed.compose import compositions
from study.config.composed.paths import path
from study.config.jobs import parse_jobs
from study.errors import UsageError

NAMES = [
    *("a=b", "a (1)", "a,b", "a#b", "it's", 'a"b', "a{b", "a}b", "a[bold]b", "{a}", "[a]", "é ü", "a$b", "a$"),
    *("a;b", "a&b", "a:b", "a\\b", "a\\", "100%", "a@b", "a!b", "*?", "f(x)", "x, y=2 (b)"),
    *("true", "null", "12", "1e3"),
]
HOME = Path.home()


@pytest.mark.parametrize("name", partly(NAMES, 12, rest=pytest.mark.release))
def test_results_are_one_folder_of_any_name(name):
    [config] = compositions([f"results=here/{name}"])
    assert config.results == f"here/{name}"
    [config] = compositions([f"results={name}"])
    assert config.results == name


@pytest.mark.parametrize("name", ["${b", "a${b}c", "${HOME}", "$${a.b}"])
def test_what_looks_like_a_reference_is_text_unless_it_names_a_key(name, tmp_path):
    [config] = compositions([f"results={name}"])
    assert config.results == name
    with pytest.raises(UsageError, match=r"^--config-dir cannot be a folder with \$\{ in its path, .* rename it\.$"):
        parse_jobs(["workload=images"], own_folder(tmp_path / name))


@pytest.mark.slow
@settings(max_examples=8)
@given(st.text("ab'\"\\$ {},()[]=#~:é/", max_size=8))
@example("\\${")
@example("\\\\${a")
def test_no_character_is_read_as_grammar(text):
    [config] = compositions([f"results=x{text}x"])
    assert config.results == f"x{text}x"


@pytest.mark.parametrize(
    ("override", "results"),
    partly(
        [
            ("results=~/out", [f"{HOME}/out"]),
            ("results=~", [str(HOME)]),
            ("results=a~b", ["a~b"]),
            ("results='a b'", ["a b"]),
            ("results='a','b'", ["a", "b"]),
            ("results=here/${workload.name}", ["here/mlp_digits"]),
            ("+results=a,b", ["a,b"]),
        ],
        2,
    ),
)
def test_home_quotes_and_references(override, results):
    assert [config.results for config in compositions([override])] == results


@pytest.mark.parametrize(
    ("value", "read"),
    partly(
        [
            ("/data/a=b (1)", ["/data/a=b (1)"]),
            ("é's", ["é's"]),
            ("~/data", [f"{HOME}/data"]),
            ("here,there", ["here", "there"]),
            ("x,y", ["x,y"]),
            ("x,z", ["x", "z"]),
        ],
        2,
    ),
)
def test_arguments_of_a_workload_may_be_paths(value, read, tmp_path, monkeypatch):
    for name in ("x,y", "x", "z", "x,z"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    folder = own_folder(tmp_path / "mine")
    edited(folder / "workload/images.yaml", "name: images", "name: images, folder: none")
    configs = compositions(["workload=images", f"workload.folder={value}"], folder)
    assert [config.workload.folder for config in configs] == read


@pytest.mark.parametrize("name", partly(NAMES, 16, rest=pytest.mark.release))
def test_a_config_dir_of_any_name(name, tmp_path):
    folder = own_folder(tmp_path / name)
    (folder / "results").mkdir()  # named like a key
    found = parse_jobs(["workload=images", f"results={folder}/results"], folder)
    assert {job.results for job in found} == {folder / "results"}


@pytest.mark.parametrize("storage", ["sqlite:///it's (1).db", "sqlite:////a,b/c#d.db"])
def test_a_database_of_any_name(storage):
    [config] = compositions([f"search.storage={storage}"])
    assert config.search.storage == storage


def test_a_database_at_home():
    [config] = compositions(["search.storage=sqlite:///~/optuna.db"])
    assert config.search.storage == f"sqlite:///{HOME}/optuna.db"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("optimizer", "'optimizer' must read key=value, such as batch_size=64."),
        ("=5", "'=5' must read key=value"),
        ("a b=5", "'a b=5' must read key=value"),
        ("batch_size=8(", "batch_size must be a whole number, but got 8(;"),
        ("batch_size=8,,", "batch_size must be a whole number, but got 8,,;"),
        ("batch_size=rnge(1,3)", "batch_size must be a whole number, but got rnge(1,3);"),
        ("workload=é", "unknown workload 'é'"),
        ("search.space.learning_rate={low: 1", "search.space.learning_rate={low: 1 cannot be read: a list is [1,2]"),
        ("batch_sizes=[8", "batch_sizes=[8 cannot be read: a list is [1,2]"),
    ],
)
def test_no_refusal_speaks_of_parsers(override, told):
    with pytest.raises(UsageError) as refused:
        parse_jobs([override])
    [line] = str(refused.value).splitlines()
    assert line.startswith(told)
    for jargon in ("Lexer", "mismatched", "viable", "expecting", "Error parsing"):
        assert jargon not in line


def test_paths_of_arguments_begin_at_home(capsys):
    assert path("~/a, b=[c]") == HOME / "a, b=[c]"
    assert main(["status", "~no-such-user/results"]) == 2
    assert "names the home folder of an unknown user" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a=b, [bold] (it's) #1 {x} é", 'a{b}"%$x'])
def test_a_sweep_and_its_report_in_folders_of_odd_names(name, tmp_path, monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr("sys.stdout", said)
    folder, results = own_folder(tmp_path / name), tmp_path / f"out {name}"
    words = ["workload=images", "batch_size=8", "search.trials=1", "engine.workers=1", f"results={results}"]
    assert main(["sweep", "--config-dir", str(folder), *words, "search.storage=journal"]) == 0
    for verb in ("report", "status"):
        assert main([verb, str(results)]) == 0
    assert main(["export", str(results), str(tmp_path / f"csv {name}"), "--format", "csv"]) == 0
    assert said.getvalue().count(f"Report: {(results / 'report.html').as_uri()}") == 2
    assert f"Exported: {tmp_path}/csv {name}" in said.getvalue()
