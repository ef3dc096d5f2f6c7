"""A session on a GPU says of each judged figure whether it is what was wanted."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.engine import paper_updates, study_of
from benchmarks.gpu import convolutions, lanes
from benchmarks.gpu.session import LARGE, Session, judged

ROOT = Path(__file__).parents[2]


def cell(model: str, batch_size: int, ours: float, compiled: float | None = None) -> dict[str, object]:
    """A row in which a plain loop makes 10 updates a second, and a tuned process 20."""
    return {"model": model, "batch_size": batch_size, "a": 10.0, "b": 20.0, "c": ours, "d": compiled}


def verdicts(session: Session) -> dict[str, tuple[str, float | None]]:
    return {row.what: (row.verdict, row.found) for row in judged(session)}


def test_without_measurements_only_bytes_are_known():
    found = verdicts(Session("cpu", 0.0))
    assert {verdict for verdict, _ in found.values()} == {"met", "not measured"}
    assert [what for what, (verdict, _) in found.items() if verdict == "met"] == [
        "ResNet-8: MB of an update, per example",
        "Simple CNN at B = 2: MB of an update, per lane",
    ]


def test_the_worst_batch_size_is_judged():
    cells = [cell("resnet8", 2, 900.0), cell("resnet8", 32, 400.0, 520.0), cell("resnet8", 512, 19.0)]
    cells += [cell("cnn", 2, 299.0, 250.0)]
    found = verdicts(Session("cpu", 0.0, cells=cells))
    assert found["ResNet-8 at B <= 32 over a plain loop"] == ("met in part", 52.0)
    cells.append(cell("resnet8", 8, 600.0))
    assert verdicts(Session("cpu", 0.0, cells=cells))["ResNet-8 at B <= 32 over a plain loop"] == ("met", 52.0)
    assert found["Simple CNN at B <= 32 over a plain loop"] == ("short", pytest.approx(29.9))
    assert found["slowest over one tuned process"] == ("short", 0.95)
    [row] = [row for row in judged(Session("cpu", 0.0, cells=cells)) if row.what.startswith("slowest")]
    assert row.note == "resnet8 at B = 512"
    assert "short" in str(row)


@pytest.mark.parametrize(("hours", "verdict"), [(0.9, "met"), (1.1, "short")])
def test_hours_are_those_of_all_batch_sizes(hours, verdict):
    updates = paper_updates()
    rates = {size: count * len(updates) / (3600 * hours) for size, count in updates.items()}
    session = Session("cpu", 0.0)
    session.paper["tf32"] = [cell("resnet8", size, rate) for size, rate in rates.items()]
    found = verdicts(session)
    assert found["the paper's ResNet-8 study in tf32: GPU-hours"] == (verdict, pytest.approx(hours))
    assert found["the paper's ResNet-8 study in bf16: GPU-hours"] == ("not measured", None)
    session.paper["tf32"].pop()
    [row] = [row for row in judged(session) if "tf32" in row.what]
    assert row.verdict == ("met in part" if verdict == "met" else "short")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("86 passed, 2 skipped, 4000 deselected in 301.00s", "met"),
        ("1 failed, 85 passed in 301.00s", "short"),
        ("85 passed, 1 error in 301.00s", "short"),
        ("88 skipped in 3.00s", "short"),
        ("ran out of time", "short"),
        ("", "not measured"),
    ],
)
def test_tests_that_were_skipped_have_not_passed(line, verdict):
    assert verdicts(Session("cpu", 0.0, tests=line))["all GPU tests pass"][0] == verdict


def measuring(monkeypatch, fails: int | None = None) -> list[tuple[str, int, str]]:
    """Lets measurements return a row at once, but for a batch size that fails; returns what is measured."""
    asked = []

    def measured(model, batch_size, device, precision, *how):
        asked.append((model, batch_size, precision))
        if batch_size == fails:
            raise RuntimeError("no room")
        return cell(model, batch_size, 1.0) | {"precision": precision}

    monkeypatch.setattr(lanes, "measured", measured)
    monkeypatch.setattr(lanes, "printed", str)
    return asked


def test_a_session_measures_the_parts_that_are_asked(monkeypatch):
    asked = measuring(monkeypatch)
    session = Session("cpu", math.inf, asked=["paper-bf16", "large"])
    assert len(list(session.parts())) == 1 + len(LARGE)
    sizes = sorted(paper_updates(), reverse=True)
    large = [(model, size, "tf32") for model, several in LARGE.items() for size in several]
    assert asked == [*(("resnet8", size, "bf16") for size in sizes), *large]
    assert {("resnet8", size, "bf16") for size in sizes} | {("cnn", 512, "tf32")} <= {*session.compiled()}
    assert not {model for model, *_ in session.compiled()} - {"resnet8", "cnn"}


def test_what_an_earlier_call_measured_is_not_measured_again(monkeypatch):
    asked = measuring(monkeypatch)
    earlier = {"tf32": [], "bf16": [cell("resnet8", size, 1.0) for size in paper_updates() if size != 8]}
    list(Session("cpu", math.inf, asked=["paper-bf16"], paper=earlier).parts())
    assert asked == [("resnet8", 8, "bf16")]
    assert len(earlier["bf16"]) == len(paper_updates())


def test_a_cell_that_fails_does_not_end_the_session(monkeypatch, capsys):
    measuring(monkeypatch, fails=8192)
    session = Session("cpu", math.inf, asked=["paper-tf32"])
    list(session.parts())
    assert len(session.paper["tf32"]) == len(paper_updates()) - 1
    assert "resnet8 at B = 8192 in tf32 is not measured: RuntimeError no room" in capsys.readouterr().out


@pytest.mark.slow
def test_updates_are_compiled_ahead_without_any_being_made(monkeypatch):
    """A process that measures finds them on disk."""
    study, job = study_of("softmax", 8, "momentum", "cpu", made_up=True)
    monkeypatch.setattr(lanes, "TRIALS", 2)
    for arithmetic, compiled in (("vmap", True), ("plain", False)):
        monkeypatch.setattr(lanes, "study_of", lambda *_, each=arithmetic: (replace(study, arithmetic=each), job))
        assert lanes.compile_ahead("softmax", 8, "cpu", "fp32", made_up=True) == compiled


@pytest.mark.release
def test_a_tiny_session_runs_from_start_to_end(tmp_path):
    words = ["benchmarks.gpu.session", "--device", "cpu", "--tiny", "--json", str(tmp_path / "session.json")]
    ran = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    written = json.loads((tmp_path / "session.json").read_text())
    assert [row["what"] in ran.stdout for row in written["judged"]] == [True] * 10
    assert {len(rows) for rows in (written["cells"], *written["paper"].values())} == {1}
    assert "skipped" in written["tests"]


@pytest.mark.slow
@pytest.mark.parametrize("fits", [True, False])
def test_a_variant_that_does_not_fit_is_left_out(monkeypatch, fits):
    errors = pytest.importorskip("triton.runtime.errors")

    def microseconds(call):
        if not fits:
            raise errors.OutOfResources(300_000, 232_448, "shared memory")
        return 7.0

    monkeypatch.setattr(convolutions, "microseconds", microseconds)
    found = convolutions.with_variants(lambda: None)
    assert found == dict.fromkeys(convolutions.VARIANTS, 7.0 if fits else None)
