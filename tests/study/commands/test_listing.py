"""`study list`: the choices of every group."""

import pytest

from study.__main__ import main
from study.commands.listing import KINDS
from study.config.choices import CONF, GROUPS


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
