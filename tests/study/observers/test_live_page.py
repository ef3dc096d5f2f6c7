"""The report while a sweep runs: when it is written, and what becomes of it at the end."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.observers import live_page
from study.observers.background import process
from study.observers.base import Sweep
from study.observers.live_page import LivePage


class Writing:
    """Stands for the process that writes pages."""

    pid = 12345

    def __init__(self, *arguments: str) -> None:
        self.folders, self.status = arguments[1:], None

    def poll(self):
        return self.status


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(live_page, "time", clock)
    return clock


@pytest.fixture
def ended(monkeypatch):
    ended: list[Writing] = []
    monkeypatch.setattr(live_page, "end", ended.append)
    return ended


@pytest.fixture
def writings(monkeypatch):
    made: list[Writing] = []

    def start(*arguments):
        made.append(Writing(*arguments))
        return made[-1]

    monkeypatch.setattr(live_page, "process", start)
    return made


def add_trial(results: Path, number: int) -> None:
    folder = results / "studies/tiny/sgd/8/trials"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "study.json").touch()
    (folder / f"{number:06}.parquet").touch()


def test_it_is_written_when_there_is_something_new_and_time_has_passed(tmp_path, clock, writings):
    add_trial(tmp_path / "a", 0)
    page = LivePage([tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    page.begin(Sweep("command", []))
    clock.now += 29
    page.look()
    assert writings == []  # a short sweep writes none
    clock.now += 2
    page.look()
    assert [each.folders for each in writings] == [(str(tmp_path / "a"),)]
    clock.now += 100  # it takes long, and there is never a second one beside it
    page.look()
    writings[0].status = 0
    page.look()
    clock.now += 199
    time.sleep(0.01)
    add_trial(tmp_path / "a", 1)
    page.look()
    assert len(writings) == 1
    clock.now += 2
    page.look()
    assert len(writings) == 2
    writings[1].status = 0
    clock.now += 1000
    page.look()
    clock.now += 1000
    page.look()
    assert len(writings) == 2  # nothing new


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_the_end_of_training_ends_the_writing(tmp_path, clock, writings, ended, error):
    add_trial(tmp_path, 0)
    page = LivePage([tmp_path])
    (tmp_path / "tables").mkdir()
    left = [tmp_path / ".report.html.12345.0a1b2c3d", tmp_path / "tables/.trials.csv.12345.0a1b2c3d"]
    for path in left:
        path.touch()
    text = '<!-- unfinished --><meta http-equiv="refresh" content="30"><!-- end of unfinished --><p>'
    (tmp_path / "report.html").write_text(text)
    page.__enter__()
    clock.now += 31
    page.look()
    page.__exit__(error)
    assert ended == writings
    assert not any(path.exists() for path in left)
    assert ("refresh" in (tmp_path / "report.html").read_text()) == (error is None)  # else the report is written now


def runs(process: int) -> bool:
    """False for a process that ended, and for one that its parent has not been told about."""
    try:
        stat = Path("/proc", str(process), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_the_end_of_training_does_not_wait_for_processes_of_the_writing(tmp_path, monkeypatch):
    """Its helpers held its pipes open, and a sweep that had trained everything never ended."""
    (tmp_path / "with_a_helper.py").write_text(
        "import pathlib, subprocess, sys\n"
        "helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "pathlib.Path(sys.argv[1] + '.new').write_text(str(helper.pid))\n"
        "pathlib.Path(sys.argv[1] + '.new').rename(sys.argv[1])\n"
        "helper.wait()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = tmp_path / "helper"
    with LivePage([tmp_path]) as page:
        page._process = process("with_a_helper", str(started))
        while not started.exists():
            assert page._process.poll() is None
            time.sleep(0.02)
        before = time.monotonic()
    assert time.monotonic() - before < 30
    while runs(int(started.read_text())):
        assert time.monotonic() - before < 30
        time.sleep(0.02)


@pytest.mark.slow
def test_a_real_page(write_study, make_study, make_curve, tmp_path, monkeypatch):
    """From the process that writes it to the final report."""
    study = make_study(trials=4)
    write_study(tmp_path, study, [make_curve(study, 0, reaches=30)], close=False)
    monkeypatch.setattr(live_page, "SECONDS", 0)
    with LivePage([tmp_path]) as page:
        page.look()
        deadline = time.monotonic() + 600  # its process has the lowest priority
        while page._process is not None:
            page.look()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        text = (tmp_path / "report.html").read_text()
    assert text.count('<meta http-equiv="refresh" content="30">') == 1
    assert "Unfinished: the sweep was running at " in text
    from analysis.report.build import build

    build([tmp_path], tmp_path)
    final = (tmp_path / "report.html").read_text()
    assert "refresh" not in final
    assert "Unfinished" not in final
