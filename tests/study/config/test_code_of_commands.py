"""The code of a command: also modules that its Python finds elsewhere, and what a shell is asked to run."""

import pytest

from study.config.code_fingerprint import code_of_command


@pytest.mark.parametrize(
    "words",
    [
        ["python", "scripts/train.py"],
        ["python", "-m", "made_package.train"],
        ["bash", "-c", "python scripts/train.py --lr 0.1"],
        ["python", "-c", "import made_package.train"],
        ["bash", "wrapper.sh", "0.1"],
        ["./wrapper", "0.1"],
    ],
    ids=["script", "module", "shell", "words of Python", "shell script", "program of a shell"],
)
def test_modules_on_pythons_path_count(tmp_path, monkeypatch, words):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.py").write_text("import made_package.train\n")
    lines = "source 'a b/activate' # it's mine\n./wrapper.sh; \\\npython -u scripts/train.py --lr $1\n"
    for name in ("wrapper.sh", "wrapper"):
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{lines}")
    (tmp_path / "src/made_package").mkdir(parents=True)
    (tmp_path / "src/made_package/__init__.py").write_text("")
    (tmp_path / "src/made_package/train.py").write_text("X = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "src")
    before = code_of_command(words)
    (tmp_path / "src/made_package/train.py").write_text("X = 2\n")
    assert code_of_command(words)["code made_package/train.py"] != before["code made_package/train.py"]


@pytest.mark.parametrize("folder", ["src", "src/made", "src/made/deep"])
@pytest.mark.parametrize("words", [["python", "train.py"], ["python", "-m", "train"]], ids=["script", "module"])
def test_modules_in_folders_without_an_init_file_count(tmp_path, monkeypatch, words, folder):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "layers.py").write_text("X = 1\n")
    (tmp_path / "train.py").write_text(f"from {folder.replace('/', '.')}.layers import X\n")
    monkeypatch.chdir(tmp_path)
    assert code_of_command(words).keys() == {"code", "code train.py", f"code {folder}/layers.py"}
