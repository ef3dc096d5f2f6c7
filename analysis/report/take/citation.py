"""How to cite a measurement: the tool, the paper of its protocol, a hash of the measurements and their command."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from analysis.figures.atomic import write_atomically
from analysis.load import StudyData, folders
from analysis.measurements import files
from analysis.report.take.latex import escaped

TOOL = "batch-size-study"
PAPER = (
    "C. J. Shallue, J. Lee, J. Antognini, J. Sohl-Dickstein, R. Frostig and G. E. Dahl: Measuring the Effects of Data "
    "Parallelism on Neural Network Training. Journal of Machine Learning Research 20(112), 2019."
)
PAPER_BIBTEX = """@article{shallue2019measuring,
  title = {Measuring the Effects of Data Parallelism on Neural Network Training},
  author = {Shallue, Christopher J. and Lee, Jaehoon and Antognini, Joseph and Sohl-Dickstein, Jascha and
            Frostig, Roy and Dahl, George E.},
  journal = {Journal of Machine Learning Research},
  volume = {20}, number = {112}, pages = {1--49}, year = {2019}
}
"""
RECORD = "tables/measurements.sha256"
"""Beside tables at each study's own goal: the hash of the measurements that they were made of."""
VERIFY = "find studies -name study.json -o -name '*.parquet' | LC_ALL=C sort | xargs sha256sum | sha256sum"
"""Prints the hash of the results folder that it runs in."""


class Citation(NamedTuple):
    """A citation of the measurements of a report.

    Attributes:
        tool: its name, version and commit.
        hashes: (results folder, SHA-256 of its measurements).
        commands: the commands that trained the studies, a line each.
    """

    tool: str
    paper: str
    hashes: list[tuple[str, str]]
    commands: str
    bibtex: str
    verify: str = VERIFY


def citation(title: str, results: Sequence[Path | str], made: Sequence[StudyData], commands: str) -> Citation:
    """The citation of a report on these results folders.

    Arguments:
        title: of the report.
        made: all searches in these folders.

    >>> found = citation("Digits", [published], [study], "python -m study sweep")
    >>> len(found.hashes[0][1]), found.bibtex.splitlines()[1]
    (64, '  title = {Digits},')
    """
    hashes = [(str(result), content_hash(Path(result), made)) for result in results]
    runs: list[dict[str, Any]] = [run for study in made for run in study.provenance]
    commits = dict.fromkeys(str(run["git_commit"])[:12] for run in runs if run.get("git_commit"))
    tool = " ".join([TOOL, _version(), *([f"(commit {', '.join(commits)})"] if commits else [])])
    year = max((str(run.get("started", ""))[:4] for run in runs), default="")
    note = f"Measured with {tool}. SHA-256 of the measurements: {', '.join(each for _, each in hashes)}"
    entry = [
        f"@misc{{{TOOL}-{hashes[0][1][:8]},",
        f"  title = {{{escaped(title)}}},",
        f"  note = {{{escaped(note)}}},",
        *([f"  year = {{{year}}},"] if year else []),
        "}",
    ]
    return Citation(tool, PAPER, hashes, commands, "\n".join([*entry, PAPER_BIBTEX]))


def digests(study: StudyData) -> list[tuple[Path, str]]:
    """(file, its SHA-256) of each file that holds the question or the measurements of a search.

    >>> [path.name for path, _ in digests(study)]
    ['curves.parquet', 'study.json']
    """
    return study.once("digests", lambda: list(_digests([*files(study.folder), study.folder / "study.json"])))


def _digests(paths: Iterable[Path]) -> Iterable[tuple[Path, str]]:
    for path in paths:
        with suppress(FileNotFoundError), path.open("rb") as file:  # a trial may be gathered meanwhile
            yield path, hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(results: Path, made: Iterable[StudyData]) -> str:
    """One SHA-256 of all measurements in a results folder: what VERIFY prints there.

    >>> len(content_hash(Path(published), [study]))
    64
    """
    return _together(results, (each for study in made for each in digests(study)))


def hash_on_disk(results: Path) -> str:
    """The same, read from the files alone.

    >>> hash_on_disk(Path(published)) == content_hash(Path(published), list(load(published)))
    True
    """
    paths = (path for folder in folders(results) for path in [*files(folder), folder / "study.json"])
    return _together(results, _digests(paths))


def record(folder: Path, digest: str | None) -> None:
    """Write the hash of the measurements beside the tables that were made of them; None removes it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     record(Path(folder), "ab12")
    ...     recorded(Path(folder)), record(Path(folder), None), recorded(Path(folder))
    ('ab12', None, '')
    """
    if digest is None:
        (folder / RECORD).unlink(missing_ok=True)
    else:
        (folder / RECORD).parent.mkdir(exist_ok=True)
        write_atomically(folder / RECORD, f"{digest}\n".encode())


def recorded(folder: Path) -> str:
    """The hash of the measurements that the tables of a folder were made of; empty if it is not on record.

    >>> recorded(Path("no_such_folder"))
    ''
    """
    path = folder / RECORD
    return path.read_text().strip() if path.exists() else ""


def _together(results: Path, digested: Iterable[tuple[Path, str]]) -> str:
    lines = {path.relative_to(results).as_posix(): digest for path, digest in digested if results in path.parents}
    text = "".join(f"{digest}  {path}\n" for path, digest in sorted(lines.items(), key=lambda item: item[0].encode()))
    return hashlib.sha256(text.encode()).hexdigest()


def _version() -> str:
    try:
        return version(TOOL)
    except PackageNotFoundError:  # a checkout that is not installed
        return "(not installed)"
