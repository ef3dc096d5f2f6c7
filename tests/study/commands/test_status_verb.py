"""`study status` of one results folder, of a folder of them, and again and again."""

import json

import pytest

from study import store
from study.__main__ import main
from study.commands import status


@pytest.fixture
def folders(tmp_path, make_study, make_curve):
    """A folder with a complete results folder, and with one that waits for three of four trials, one level lower."""
    for results, trials in ((tmp_path / "done", 1), (tmp_path / "more/left", 4)):
        study = make_study(trials=trials)
        store.open_study(results, study, {"workers": 2})
        store.save(store.study_folder(results, study), make_curve(study, 0, reaches=30))
    return tmp_path


def test_a_folder_of_results_folders_has_a_row_for_each(folders, says):
    said = says("status", folders)
    assert "done tiny momentum done 1 of 1 1 of 1 0" in said
    assert "more/left tiny momentum stopped 0 of 1 1 of 4 0" in said
    rows = json.loads(says("status", folders, "--json"))["rows"]
    assert [(row["results"], row["state"]) for row in rows] == [
        (str(folders / "done"), "done"),
        (str(folders / "more/left"), "stopped"),
    ]


def test_one_results_folder_is_as_before(folders, says):
    assert "results" not in json.loads(says("status", folders / "done", "--json"))["rows"][0]
    assert says("status", folders / "empty", status=2).startswith("study: no studies in ")


def test_it_looks_again_until_all_is_done(folders, monkeypatch, capsys):
    looks = []
    progress = status.progress

    def look(folder):
        looks.append(folder)
        if len(looks) == 3:
            return progress(folders / "done")
        return progress(folders / "more/left")

    monkeypatch.setattr(status, "progress", look)
    monkeypatch.setattr(status, "SECONDS", 0.0)
    assert main(["status", str(folders), "--watch"]) == 0
    assert len(looks) == 3
    assert "Done." in capsys.readouterr().out


def test_ctrl_c_ends_it_quietly(folders, monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupted)
    assert main(["status", str(folders / "more/left"), "--watch"]) == 0
    assert capsys.readouterr().err == ""
