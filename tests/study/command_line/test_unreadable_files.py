"""Files and folders of the user that cannot be read: each is refused with its place and the cure."""

import pytest
from helpers.fused import partly

HEAD = b"# @package _global_\n"
FILES = {
    "tab": (b"workload:\n\tname: a\n", "line 3, column 1: found character '\\t' ", "Indent with spaces only"),
    "indent": (b"workload:\n  name: a\n   b: 1\n", "line 4, column 5: ", "keys of one level alike"),
    "twice": (b"goal: a\ngoal: b\n", "line 3, column 1: found duplicate key goal.", ""),
    "open": (b"batch_sizes: [4, 8\n", "line 3, column 1: ", ""),
    "list": (b"- a\n", "workload/list.yaml must hold keys with values", ""),
    "control": (b"goal: \x01\n", "control.yaml", "special characters are not allowed"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_yaml_is_refused_with_its_place(tmp_path, says, name):
    (tmp_path / "workload").mkdir()
    text, place, cure = FILES[name]
    (tmp_path / f"workload/{name}.yaml").write_bytes(HEAD + text)
    said = says("sweep", "--config-dir", tmp_path, f"workload={name}", status=2)
    assert place in said
    assert cure in said
    assert said.startswith("study: ")
    assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("workload", ("sweep", "workload=latin")),
        ("preset", ("plan", "preset=latin")),
        ("optimizer", ("sweep", "--cfg", "optimizer=latin")),
        ("schedule", ("plan", "search.space.schedule=[constant,latin]")),
        ("workload", ("list", "workloads")),
    ],
    ids=str,
)
def test_a_file_that_is_not_utf8_is_named(tmp_path, says, group, words):
    (tmp_path / group).mkdir()
    file = tmp_path / group / "latin.yaml"
    file.write_bytes(HEAD + "# für\n# über\n".encode("latin-1"))
    said = says(*words, "--config-dir", tmp_path, status=2)
    place = f"{file}, line 2: the byte after '# f' is not UTF-8"
    assert said.strip() == f"study: cannot read {place}; save the file as UTF-8."


@pytest.mark.parametrize("content", partly([b"# \xfc\n", b"a: [\n", b"- a\n", b"goal: a\n", b"workload: 3\n"], 4))
def test_a_file_that_is_not_chosen_is_no_hindrance(tmp_path, says, content):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/other.yaml").write_bytes(content)
    said = says("sweep", "--config-dir", tmp_path, "workload.conditon=3", status=2)
    assert said.startswith("study: unknown key 'workload.conditon'")


VERBS = ("sweep", "plan", "list", "rules", "advise", "noise", "branch", "certify", "verify")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("name", "why"), [("nowhere", "does not exist"), ("file", "is no folder")])
def test_a_config_dir_must_be_a_folder_whatever_the_command(tmp_path, says, verb, name, why):
    (tmp_path / "file").touch()
    words = () if verb in ("sweep", "plan", "list") else (tmp_path,)
    said = says(verb, *words, "--config-dir", tmp_path / name, status=2)
    assert said.startswith(f"study: --config-dir must be a folder, but {tmp_path / name} {why}.")


READERS = ("status", "watch", "report", "claims", "rules", "advise", "noise", "branch", "certify", "schedule", "verify")


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize(("name", "why"), [("nowhere", "there is no folder {}"), ("file", "{} is no folder")])
def test_results_must_be_a_folder_whatever_the_command(tmp_path, says, verb, name, why):
    (tmp_path / "file").touch()
    words = ("--format", "csv") if verb == "schedule" else ()
    said = says(verb, tmp_path / name, *words, status=2)
    assert said.strip() == f"study: {why.format(tmp_path / name)}; give the folder that `study sweep` wrote to."


CONTENTS = {
    "nothing": (b"", "No columns to parse from file"),
    "a note": (b"hello\nworld\n", "its columns are hello"),
    "bytes": (b"\xff\xfe\x00", "it is not text in UTF-8"),
    "other columns": (b"a,b,c,d,e,f,g,h,i,j\n", "its columns are a, b, c, d, e, f, g, h and 2 more"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_sizes_take_folders_and_csv_files_only(tmp_path, says, name):
    content, why = CONTENTS[name]
    (tmp_path / "file").write_bytes(content)
    said = says("sizes", tmp_path / "file", status=2)
    start = f"study: {tmp_path / 'file'} is no folder, and no CSV with critical batch sizes: {why}; give the folder"
    assert said.startswith(start)


def test_an_import_of_nothing_is_named_alike(tmp_path, says):
    said = says("import", tmp_path / "nowhere", tmp_path / "results", status=2)
    assert said.startswith(f"study: there is no file or folder {tmp_path / 'nowhere'}; give a CSV")
