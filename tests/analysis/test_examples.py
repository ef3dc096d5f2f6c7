"""Every public function of `analysis` shows how it is called, and what it shows is so."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

import analysis

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results/published"
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "analysis").rglob("*.py"))
START = doctest.DocTestParser().get_examples(analysis.__doc__ or "")[:4]
"""The lines that the examples of all modules go on from."""
LONG = (
    "analysis.report.explorer.data",
    "analysis.figures.canvas",
    "analysis.load",
    "analysis.report.html_tables",
    "analysis.report.take.citation",
    "analysis.report.warnings",
    "analysis.figures.tuning",
    "analysis.report.answer",
    "analysis.gallery.standings",
    "analysis.report.answer.ranking",
    "analysis.estimates.limits",
    "analysis.report.warnings.of_curves",
    "analysis.report.estimate_tables",
    "analysis.figures.formats",
    "analysis.report.page",
    "analysis.tables.steps_to_result",
    "analysis.surrogate.curve",
    "analysis.figures",
    "analysis.report.build",
    "analysis.tables.transfer",
    "analysis.export",
    "analysis.result",
    "analysis.tables.answers",
    "analysis.tables.scaling",
    "analysis.estimates.at_budget",
    "analysis.estimates.by_goal",
    "analysis.report.findings",
    "analysis",
    "analysis.figures.scaling",
    "analysis.gallery.gather",
    "analysis.gallery.pages",
    "analysis.report.derived",
    "analysis.units",
    "analysis.claims.registry",
)
"""Modules whose examples take seconds."""
NAMES = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in FILES]


@pytest.fixture(autouse=True)
def _as_in_a_notebook(monkeypatch):
    """In the repository's root, and with figures that nobody sees."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [""])
    backend = matplotlib.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(backend)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in NAMES])
def test_examples_are_so(name):
    module = importlib.import_module(name)
    for test in (found for found in doctest.DocTestFinder().find(module) if found.examples):
        first: dict[str, object] = {}
        if module is not analysis:
            exec("".join(each.source for each in START), first)  # each time: examples may change the study
        test.globs = first | test.globs
        assert doctest.DocTestRunner().run(test).failed == 0


def shown(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    """The code of a docstring's examples."""
    return "".join(e.source for e in doctest.DocTestParser().get_examples(ast.get_docstring(node) or ""))


def public_functions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, code that may show it): its own examples, those of its class or those of its module.

    Properties, like fields, are shown by being described.
    """
    for node in tree.body:
        methods = [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", [])
        for part in methods:
            if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                decorators = {ast.unparse(decorator) for decorator in part.decorator_list}
                if "property" not in decorators and not getattr(node, "name", "_").startswith("_"):
                    yield part.name, shown(part) + shown(tree) + (shown(node) if node is not part else "")


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_public_function_has_an_example(file):
    tree = ast.parse((ROOT / file).read_text())
    without = [name for name, code in public_functions(tree) if not re.search(rf"\b{name}\(", code)]
    assert not without, f"{file}: no example calls {', '.join(without)}"


def test_a_function_without_an_example_is_found():
    code = '"""A module.\n\n>>> three()\n3\n"""\ndef three(): ...\ndef four():\n    """No."""\ndef _five(): ...\n'
    found = dict(public_functions(ast.parse(code)))
    assert [name for name, code in found.items() if f"{name}(" not in code] == ["four"]


WITHOUT_TORCH = """
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "optuna", "hydra", "study", "workloads"):
            raise ImportError(f"{name} is not installed here")


sys.meta_path.insert(0, Absent())
from analysis import load
from analysis.report import build
from analysis.tables import answers, scaling, steps_to_result

published = "results/published/mlp_digits"
studies = answers.answers(load.load(published))
assert steps_to_result.table(studies)["reached"].all()
assert len(scaling.table(studies)) == 10
build.build([published], sys.argv[1])
"""


@pytest.mark.slow
def test_results_are_read_and_reported_without_torch(tmp_path):
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000
    for file in (PUBLISHED / "mlp_digits/tables").glob("*.csv"):
        assert (tmp_path / "tables" / file.name).read_bytes() == file.read_bytes(), file.name
