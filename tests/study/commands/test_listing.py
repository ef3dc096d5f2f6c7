"""`study list`: the choices of every group."""

import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from study.__main__ import main
from study.commands import listing
from study.commands.listing import EXAMPLES, KINDS
from study.config.composed.choices import CONF, GROUPS, Choice
from workloads.data.datasets import Row


def test_every_group_is_listed():
    folders = {folder.name for folder in CONF.iterdir() if folder.is_dir()} - {"space"}
    assert folders == set(GROUPS) == set(KINDS.values())


@pytest.mark.parametrize(("kind", "group"), KINDS.items())
def test_a_group_is_told_with_all_its_choices(capsys, kind, group):
    assert main(["list", kind]) == 0
    said = capsys.readouterr().out
    assert f"{kind}: {group}=NAME. {GROUPS[group]}" in said
    names = {line.split()[0] for line in said.splitlines() if line and not line.startswith(" ")}
    assert {path.stem for path in (CONF / group).glob("*.yaml")} <= names
    assert said.endswith(f"\n\nChoose them by name, such as python -m study sweep {group}={EXAMPLES[group]}\n")


def test_each_example_is_taken():
    assert set(EXAMPLES) == set(GROUPS)
    for group, value in EXAMPLES.items():
        given = value.strip("[]").split(",")
        assert all((CONF / group / f"{name}.yaml").exists() for name in given)
        assert len(given) == 1 or value.startswith("[") == (group == "track")


@pytest.mark.parametrize("kind", ["workloads", "data"])
def test_other_programs_get_a_line_for_each_choice(kind, capsys):
    assert main(["list", kind]) == 0
    said = capsys.readouterr().out
    assert not [line for line in said.splitlines() if line != line.rstrip() or line.startswith(" ")]
    assert said.count("\n\n") == 1


@pytest.mark.parametrize("width", [60, 5])
def test_a_terminal_wraps_beside_the_names(width):
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, color_system=None, width=width)
    listing._show(console, "searches", [Choice("gp", "word " * 20, "9 s"), Choice("sobol", "Points.", "")])
    _, _, first, second, *_, last = shown.getvalue().splitlines()
    assert (first[:7], second[:7], last) == ("gp     ", "       ", "sobol  Points.")
    assert max(map(len, (first, second))) <= max(width, 27)


@pytest.mark.slow
def test_data_end_with_how_to_fetch_them(capsys):
    assert main(["list", "data"]) == 0
    [*_, last] = capsys.readouterr().out.splitlines()
    assert re.search(r"python -m study data fetch \w+$", last)
    assert last.split()[-1] in listing.datasets_by_name()


def test_a_data_set_that_is_not_here_is_told_with_its_size(monkeypatch, capsys):
    absent = Row("absent", present=False, where="", megabytes=55.4, what="", sources=())
    here, theirs = (absent._replace(name="here", present=True), absent._replace(name="theirs", fetched=False))
    room = SimpleNamespace(fetch=lambda name: Path("cache") / name)
    monkeypatch.setattr(listing, "datasets_by_name", lambda: {row.name: (room, row) for row in (absent, here, theirs)})
    assert main(["data", "fetch"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["absent: fetching, 55 MB unpacked ...", "absent: cache/absent", "here: cache/here"]
