"""A full disk and a read-only folder, for real: a clear message, nothing lost, and the same command continues."""

import os
import resource
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree

import pytest
from helpers.processes import files_of_at_most, tables

from analysis.errors import Unwritten
from analysis.report import build
from study import store
from study.__main__ import main
from study.errors import Failed

SWEEP = ["sweep", "batch_size=256", "search.trials=3", "search.reruns=0", "budget.epochs=2", "engine.workers=1"]
NOBODY = 65534
CHILD = """
import resource, sys
from study.__main__ import main
from study.errors import Failed
for limit in map(int, sys.argv[1].split()):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    status = main(sys.argv[2:])
    print(f"status {status}", file=sys.stderr, flush=True)
"""


def kept(folder):
    """Every file that is not under way."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("[!.]*") if p.is_file()}


def finished(results):
    [path] = results.glob("studies/*/*/*")
    return [curve.trial.index for curve in store.load(path)]


def asides(folder):
    return [path for path in folder.rglob(".*") if not path.name.startswith(".claim.")]


def child(*arguments):
    # A half-written .pyc would be kept.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120)


@contextmanager
def read_only(*folders):
    """Nothing can be written in these folders, not even by root, who becomes nobody."""
    modes = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o555)
    if root := os.geteuid() == 0:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)


@pytest.fixture
def reachable():
    """A folder that nobody can enter: pytest's own are private to who runs it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def assert_refused(said, path, reason):
    assert f"study: cannot write to {path}" in said or f"study: cannot write {path}" in said, said
    assert reason in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_disk_that_is_full_at_one_write_after_another(swept_once, tmp_path):
    """One sweep, tried again as room is made: enough for its question, its trials, all of them together, the rest."""
    undisturbed = swept_once(*SWEEP)
    [study] = undisturbed.glob("studies/*/*/*")
    one = tmp_path / "one.parquet"
    sizes = []
    for curve in store.load(study):
        store.write_curves([curve], one)
        sizes.append(one.stat().st_size)
    question, gathered = (study / "study.json").stat().st_size, (study / store.COMPACTED).stat().st_size
    page = (undisturbed / "report.html").stat().st_size
    limits = [(question + min(sizes)) // 2, (max(sizes) + gathered) // 2, (gathered + page) // 2]
    assert question < limits[0] < min(sizes) < max(sizes) < limits[1] < gathered < limits[2] < page, (sizes, limits)

    results = tmp_path / "results"
    unlimited = resource.RLIM_INFINITY
    done = child("-c", CHILD, " ".join(map(str, [*limits, unlimited])), *SWEEP, f"results={results}")
    at_trial, at_compaction, at_report, at_last, _ = done.stderr.split("status ")
    folder = results / study.relative_to(undisturbed)
    assert_refused(at_trial, f"{folder}/trials/00000", "File too large")
    assert at_compaction.startswith("1\n")
    assert_refused(at_compaction, str(folder / store.COMPACTED), "File too large")
    assert at_report.startswith("1\n")
    assert_refused(at_report, f"{results}/", "File too large")
    assert "the measurements are safe" in at_report
    assert at_last == "1\n", done.stderr
    assert done.stderr.endswith("status 0\n"), done.stderr
    assert tables(results) == tables(undisturbed)
    assert not asides(results)


@pytest.mark.slow
def test_a_report_that_its_folder_cannot_hold_can_be_written_elsewhere(tmp_path, capsys):
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    copytree("results/published/mlp_digits/studies/mlp_digits/sgd/64", results / "studies/mlp_digits/sgd/64")
    (results / "tables").write_text("in the way, as a folder that only others may write would be")
    assert main(["report", str(results)]) == 1
    assert "or add --output DIR to write it elsewhere." in " ".join(capsys.readouterr().err.split())
    assert main(["report", str(results), "--output", str(elsewhere)]) == 0
    assert (elsewhere / "report.html").exists()


@pytest.mark.parametrize("size", [0, 1000, 3000])
def test_what_does_not_fit_is_named_and_nothing_changes(tmp_path, make_study, make_curve, write_study, size):
    """Of another run's first steps: to claim the study, to reopen it, to keep a trial; and to gather them."""
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)])
    store.save(folder, make_curve(study, 1))
    before = kept(tmp_path)

    def claim():
        with store.claimed(folder):
            pass

    steps = {
        ".claim": (0, claim),
        "study.json": (1000, lambda: store.open_study(tmp_path, make_study(trials=5), {})),
        "trials/000002.parquet": (3000, lambda: store.save(folder, make_curve(study, 2))),
        "curves.parquet": (3000, lambda: store.compact(folder)),
    }
    for name, (most, step) in steps.items():
        if size <= most:
            with files_of_at_most(size), pytest.raises(store.StoreError) as refusal:
                step()
            assert isinstance(refusal.value, Failed)  # status 1: work had begun
            assert f"cannot write to {folder / name}: File too large; finished trials are safe" in str(refusal.value)
            assert kept(tmp_path) == before
            assert not asides(tmp_path)
    write_study(tmp_path, study, [make_curve(study, 2)])
    assert [curve.trial.index for curve in store.load(folder)] == [0, 1, 2]


@pytest.mark.slow
def test_a_report_that_does_not_fit_keeps_the_one_before(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    write_study(tmp_path, study, [make_curve(study, index, reaches=20) for index in range(4)])
    build.build([tmp_path], tmp_path)
    before = kept(tmp_path)
    for size, name in ((10, "tables/steps_to_result.csv"), (5000, "figures/"), (40_000, "")):
        with files_of_at_most(size), pytest.raises(Unwritten) as refusal:
            build.build([tmp_path], tmp_path)
        assert f"cannot write {tmp_path / name}" in str(refusal.value)
        assert "File too large" in str(refusal.value)
        assert f"python -m study report {tmp_path}" in str(refusal.value)
        assert kept(tmp_path) == before
        assert not asides(tmp_path)


@pytest.mark.slow
def test_read_only_folders_are_named(reachable, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(reachable, study, [make_curve(study, 0, reaches=20)])
    store.save(folder, make_curve(study, 1))
    build.build([reachable], reachable)
    before = kept(reachable)
    for part in (reachable, *(path for path in reachable.rglob("*") if path.is_dir())):
        part.chmod(0o777)  # all but the one to be tested
    for step, part in (
        (lambda: store.check(reachable, [study]), reachable),
        (lambda: store.announce(reachable, make_study(batch_size=16)), reachable),
        (lambda: store.open_study(reachable, study, {}), reachable),
        (lambda: store.open_study(reachable, study, {}), folder),
        (lambda: store.save(folder, make_curve(study, 2)), folder / "trials"),
        (lambda: store.compact(folder), folder),
        (lambda: store.gather(folder), folder),
    ):
        with read_only(part), pytest.raises(store.StoreError, match=f"cannot write to {part}"):
            step()
        assert kept(reachable) == before
    with read_only(folder / "trials"), pytest.raises(store.StoreError, match=r"cannot write to .*000001\.parquet"):
        store.compact(folder)  # gathered, but what was gathered cannot be removed
    assert [curve.trial.index for curve in store.load(folder)] == [0, 1]
    for part in ("tables", "figures", "."):
        with read_only(reachable / part), pytest.raises(Unwritten, match=f"cannot write {reachable / part}.*denied"):
            build.build([reachable], reachable)
    store.compact(folder)
    assert not list((folder / "trials").iterdir())


def test_a_folder_that_cannot_be_entered_is_refused(reachable, make_study):
    (reachable / "locked").mkdir()
    (reachable / "locked").chmod(0o700 if os.geteuid() == 0 else 0)
    results, study = reachable / "locked" / "results", make_study()
    with read_only():
        assert store.recorded(results, study) is None
        with pytest.raises(store.StoreError, match="cannot write to"):
            store.check(results, [study])


@pytest.mark.release
def test_a_small_disk_that_fills(swept_once, tmp_path):
    results = tmp_path / "disk"
    results.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(results), "-o"]
    try:
        subprocess.run([*mount, "size=16k"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file system cannot be mounted here: {getattr(error, 'stderr', None) or error}")
    try:
        done = child("-m", "study", *SWEEP, f"results={results}")
        assert done.returncode == 1
        assert_refused(done.stderr, str(results), "No space left on device")
        assert not asides(results)
        there = finished(results)
        subprocess.run([*mount, "remount,size=4m"], check=True)
        assert finished(results) == there
        assert main([*SWEEP, f"results={results}"]) == 0
        assert tables(results) == tables(swept_once(*SWEEP))
    finally:
        subprocess.run(["umount", str(results)], check=True)
