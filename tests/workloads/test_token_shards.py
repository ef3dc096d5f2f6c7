"""Shards are written once, whole and verified; byte pair encoding sees the training documents alone."""

import os
from itertools import chain

import numpy as np
import pytest
from helpers.made_data import nothing_kept, put

from workloads.data import prepared, text
from workloads.data.fetching import DataError
from workloads.data.text import corpora, tokenizing
from workloads.data.text.shards import shard, survey
from workloads.data.text.tokenizing import bytes_tokenizer

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def poems(tmp_path):
    """A corpus of two documents, last changed an hour ago."""
    folder = put(tmp_path / "poems", {"a.txt": b"rose", "b.txt": "ü".encode()})
    settled(folder)
    return corpora.corpus("text", str(folder))


def settled(folder):
    for path in folder.iterdir():
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def refuse(*_):
    raise AssertionError("it is in the cache")


def test_a_shard_holds_each_document_and_its_end(poems, cache):
    held = shard(poems, survey(poems), bytes_tokenizer())
    assert held.tokens.dtype == np.uint16
    assert held.tokens.tolist() == [*b"rose", 256, *"ü".encode(), 256]
    assert held.offsets.tolist() == [0, 5, 8]
    [place] = (cache / "tokens").iterdir()  # and nothing left aside
    assert sorted(path.name for path in place.iterdir()) == ["manifest.json", "offsets.npy", "tokens.bin"]


def test_text_is_read_and_written_once(poems, monkeypatch):
    shard(poems, survey(poems), bytes_tokenizer())
    monkeypatch.setattr(type(poems), "documents", refuse)
    assert shard(poems, survey(poems), bytes_tokenizer()).offsets.tolist() == [0, 5, 8]


def test_changed_text_is_another_shard(poems):
    before = survey(poems)
    put(poems.files[0].parent, {"a.txt": b"lily"})
    after = survey(poems)
    assert before.sha256 != after.sha256
    assert bytes(shard(poems, after, bytes_tokenizer()).tokens[:4].tolist()) == b"lily"


def test_text_that_changed_a_moment_ago_is_surveyed_next_time_too(poems, cache):
    put(poems.files[0].parent, {"a.txt": b"lily"})
    survey(poems)
    assert nothing_kept(cache)


@pytest.mark.parametrize("most", [0, 2**28], ids=["large", "small"])
@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy"])
def test_an_altered_shard_is_written_once_more(name, most, poems, cache, monkeypatch):
    monkeypatch.setattr(prepared, "REHASHED_BYTES", most)
    first = shard(poems, survey(poems), bytes_tokenizer()).tokens.tolist()
    [place] = (cache / "tokens").iterdir()
    content = (place / name).read_bytes()
    (place / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not prepared.is_intact(place)
    assert shard(poems, survey(poems), bytes_tokenizer()).tokens.tolist() == first
    assert prepared.is_intact(place)
    assert [path.name for path in (cache / "tokens").iterdir()] == [place.name]


def test_a_shard_enters_the_cache_whole_or_not_at_all(poems, cache):
    found = survey(poems)
    put(poems.files[0].parent, {"a.txt": b"lily"})
    with pytest.raises(DataError, match="text changed while it was read"):
        shard(poems, found, bytes_tokenizer())
    assert nothing_kept(cache / "tokens")


def test_vocabularies_above_65536_tokens_take_four_bytes():
    sizes = [tokenizing.Tokenizer("made", size, iter).dtype.itemsize for size in (2**16, 2**16 + 1)]
    assert sizes == [2, 4]


def test_a_missing_library_is_named_with_its_cure(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"pip install 'batch-size-study\[text\]'; or take workload.tokenizer=byte"):
        tokenizing.bpe_tokenizer(300, "", list)


@pytest.fixture
def verses(tmp_path, monkeypatch):
    """A folder of 40 documents; each has a word of its own, ten times."""
    monkeypatch.setattr(tokenizing, "PIECE", 16)  # so that documents have several pieces
    draw = np.random.default_rng(0)
    own = ["".join(draw.choice([*"abcdefghij"], 8)) for _ in range(40)]
    return put(tmp_path / "verses", {f"{n:02}.txt": f"the {word}\n".encode() * 10 for n, word in enumerate(own)})


def split(path, **arguments):
    usual = {"tokenizer": "bpe", "vocabulary": 700, "context": 4, "train_examples": 40, "validation_examples": 8}
    return text.splits("text", path=str(path), **usual | arguments)


def test_bpe_is_trained_on_the_training_documents_alone(verses, cache):
    pytest.importorskip("tokenizers")
    import tokenizers

    found = split(verses)
    [vocabulary] = (cache / "vocabularies").iterdir()
    held = tokenizers.Tokenizer.from_file(str(vocabulary))
    known = {token.removeprefix("Ġ") for token in held.get_vocab()}
    words = {path.read_text().split()[1] for path in verses.iterdir()}
    assert 0 < len(words & known) < len(words)
    decoded = [held.decode([t for t in part[0].flatten().tolist() if t < 699]) for part in found]
    in_training, *held_out = ({word for word in words if word in each} for each in decoded)
    assert in_training <= known
    assert not set(chain(*held_out)) & known
    assert found.train[1].max() == 699  # the last token ends a document


def test_bpe_is_deterministic_and_trained_once(verses, cache, monkeypatch):
    pytest.importorskip("tokenizers")
    first = split(verses)
    [vocabulary] = (cache / "vocabularies").iterdir()
    content = vocabulary.read_bytes()
    vocabulary.unlink()
    assert all((a == b).all() for a, b in zip(first.train, split(verses).train, strict=True))
    assert vocabulary.read_bytes() == content
    monkeypatch.setattr(tokenizing, "_trained", refuse)
    split(verses, train_examples=3)


def test_pieces_have_the_tokens_of_the_whole_document(verses, monkeypatch):
    pytest.importorskip("tokenizers")
    document = "the  rose \n\n is\tred, isn't\nit? \n" * 9
    encoded = []
    for least in (1, 16, 10**6):
        monkeypatch.setattr(tokenizing, "PIECE", least)
        assert "".join(tokenizing.pieces(document)) == document
        encoded.append(
            [t.tolist() for t in tokenizing.bpe_tokenizer(270, "made", lambda: [document]).encode(["a", document])]
        )
    assert encoded[0] == encoded[1] == encoded[2]
    assert encoded[0][0] == [64]
