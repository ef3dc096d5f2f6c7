"""The pages of docs that are generated: they are up to date, and what they promise holds."""

import dataclasses
import re
import runpy
from itertools import permutations
from pathlib import Path

import pytest
from helpers.fused import partly

from study.commands import parser
from study.config.composed import schema
from study.config.composed.compose import CONF
from study.config.jobs import parse_jobs

DOCS = Path(__file__).parents[2] / "docs"
PAGES = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
CHOICES = sorted(str(path.relative_to(CONF)) for path in CONF.glob("*/*.yaml"))


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name):
    assert (DOCS / name).read_text() == PAGES[name], "the page is stale; run `python docs/generate.py`"


EXCLUSIVE = [
    (name, [action.option_strings[0] for action in group._group_actions])
    for name, verb in next(each for each in parser()._actions if each.dest == "verb").choices.items()
    for group in verb._mutually_exclusive_groups
]


@pytest.mark.parametrize(("verb", "options"), EXCLUSIVE)
def test_options_that_exclude_each_other_are_shown_as_such(verb, options):
    section = PAGES["commands.md"].split(f"\n## {verb}\n")[1].split("\n## ")[0]
    assert re.search(r" \[" + r" \| ".join(rf"{option}[^|\]]*" for option in options) + r"\]", section)
    for one, other in permutations(options, 2):
        row = next(line for line in section.splitlines() if line.startswith(f"| `{one}"))
        assert f"not with `{other}`" in row


def fields(config):
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(field.default_factory):
            yield from fields(field.default_factory)
        else:
            yield field


def test_every_key_has_a_meaning_and_a_default_or_a_file_that_sets_it():
    found = [*fields(schema.SweepConfig)]
    assert len(found) > 40
    for field in found:
        assert field.metadata["meaning"], field.name
        assert field.default != schema.MISSING or field.metadata["by"], field.name
        assert f"{field.name}` | " in PAGES["configuration.md"]


@pytest.mark.parametrize("file", CHOICES)
def test_the_first_line_of_a_file_is_a_sentence_of_the_page(file):
    first = next(line for line in (CONF / file).read_text().splitlines() if line != "# @package _global_")
    assert first.startswith("# ")
    assert first.endswith(".")
    assert f"| `{Path(file).stem}` | {first.removeprefix('# ')} |" in PAGES["configuration.md"]


@pytest.mark.slow
@pytest.mark.parametrize("entry", partly(schema.SPACE, 2))
def test_every_example_of_a_search_space_is_accepted(entry):
    needs = {"beta2": "optimizer=adam", "warmup_initial_factor": "search.space.warmup_steps=10"}
    asked = [each for name, each in needs.items() if entry.startswith(name)]
    [job] = parse_jobs([*asked, "batch_size=64", f"search.space.{entry}"])
    name = entry.partition("=")[0].partition(".")[0]
    assert name in job.study.search.space


def test_every_verb_has_its_arguments_on_the_page():
    page = PAGES["commands.md"]
    assert "## sweep\n" in page
    assert "| `--max-per-device-batch N` | " in page
    assert "| `--format {" in page
