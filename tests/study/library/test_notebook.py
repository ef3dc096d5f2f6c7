"""A sweep in a real kernel of Jupyter: one output with its progress, a table as the result, and no warning."""

import importlib.util

import pytest
from helpers.made_workload import own_folder

from study.library import consoles

needs_jupyter = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))), reason="Jupyter is not installed"
)
CELLS = [
    "%%writefile further.py\nfrom made_images import Images\n\n\nclass Further(Images):\n    pass",
    "import study\nfrom further import Further",
    """study.sweep(Further("further", 100), batch_sizes=[2, 8], trials=2, goal="val/classification_error < 0.3",
    budget={"epochs": 0, "steps": 60}, results="out", engine={"workers": 2})""",
    'ax = study.results("out").plot()',
    """class Here(Further):
    pass

try:
    study.plan(Here("here", 100))
except study.Refused as refused:
    print(refused)""",
    "study.sweep(optimizer='sdg')",
    "%env HYDRA_FULL_ERROR=1\nstudy.plan(optimizer='sdg')",
]


@needs_jupyter
@pytest.mark.slow
def test_a_sweep_in_a_notebook(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    mine = own_folder(tmp_path / "mine")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # `main` sets it for the process of the tests
    asked = {"timeout": 300, "resources": {"metadata": {"path": str(mine)}}, "allow_errors": True}
    nbclient.NotebookClient(notebook, **asked).execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert outputs[1] == []
    progress, result = outputs[2]
    assert progress.output_type == "display_data"
    assert set(progress.data) == {"text/plain"}
    assert "batch size 8: 2 done" in progress.data["text/plain"]
    assert "Report: out/report.html" in progress.data["text/plain"]
    assert "<table" in result.data["text/html"]
    [figure] = outputs[3]
    assert "image/png" in figure.data
    [told] = outputs[4]
    assert told.name == "stdout"
    assert "Here is defined in this notebook" in told.text
    assert "put %%writefile here.py on the first line of its cell" in told.text
    [refused] = outputs[5]
    assert refused.output_type == "error"
    assert refused.traceback == ["UsageError: unknown optimizer 'sdg'; did you mean 'sgd'?"]
    assert 'File "' in "".join(outputs[6][-1].traceback)


def test_elsewhere_the_terminal_shows_it(capsys):
    assert not consoles.in_notebook()
    with consoles.console(verbose=True) as console:
        console.print("shown")
    with consoles.console(verbose=False) as console, console.status("not shown"):
        console.print("not shown")
    assert capsys.readouterr().out == "shown\n"


def test_the_output_of_a_cell_ends_with_the_live_display():
    from rich.progress import Progress, TextColumn

    console = consoles._Console(lambda: None)
    console.print("first", style="yellow")
    with Progress(TextColumn("{task.description} {task.completed}"), console=console, transient=True) as bars:
        bars.add_task("second", completed=3)
        console.print("between")
        assert console.text().split("\n") == ["\x1b[33mfirst\x1b[0m", "between", "second 3"]
    assert console.text().split("\n") == ["\x1b[33mfirst\x1b[0m", "between"]
