"""Claims: at most one process trains a shard of a study, however many machines share the results folder.

A claim is a file `.claim.SHARD.NUMBER` that names its process. Only one process can create it. That process keeps the
file locked and touches it every BEAT seconds.

A held lock proves that the process lives. A free lock proves that the process is dead only if the process ran on this
machine, because the file system's locks may not reach other machines. A process on another machine counts as dead if
its claim was not touched for STALE seconds. Ages use the file system's clock, so that the clocks of two machines are
never compared.

To take over the shard of a dead process, a process creates the claim with the next number. If the first process lives
after all (its machine slept), it finds the higher number before it saves a trial, and stops.
"""

import fcntl
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from study.store import atomic
from study.store.atomic import Stopped, StoreError

BEAT = 10.0
STALE = 120.0  # longer than the minute for which network file systems cache the times of a file
_NAME = re.compile(r"\.claim\.(\d+)-of-(\d+)\.(\d+)")


@dataclass(frozen=True)
class Shard:
    """The trials of a study whose index is `index` modulo `count`.

    >>> [trial for trial in range(10) if trial in Shard(1, count=4)]
    [1, 5, 9]
    """

    index: int = 0
    count: int = 1

    def __contains__(self, trial: object) -> bool:
        return isinstance(trial, int) and trial % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}-of-{self.count}"


WHOLE = Shard()


class Held(StoreError):
    """Another process holds a claim on this study. `touched`: when it last touched the claim, by the file system's
    clock; None if it certainly lives."""

    def __init__(self, folder: Path, holder: str, touched: float | None = None) -> None:
        super().__init__(f"{folder} is being worked on by {holder}; wait for it or choose another results=DIR.")
        self.touched = touched


class Claim:
    """A shard that this process trains, until `release`.

    Arguments:
        path: the claim's file.
        file: the same file, open; closing it releases the lock.
        content: the file's content. It is unique, while numbers are used again after a release.
    """

    def __init__(self, path: Path, file: BinaryIO, content: bytes) -> None:
        self.path, self._file, self._content = path, file, content
        self.shard, self.number, _ = _parse(path)
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with suppress(OSError):  # saving the next trial fails too, and reports the error
                os.utime(self.path)

    def check(self) -> None:
        """Raise Stopped if another process took this shard over, or the folder is no longer there."""
        if not os.path.isdir(self.path.parent):
            raise atomic.gone(self.path.parent)
        newer = any(each.shard == self.shard and each.number > self.number for each in _claims(self.path.parent))
        if newer or _content(self.path) != self._content:
            raise Stopped(
                f"{self.path.parent} was taken over by another process, because this one had not touched its "
                f"claim for {STALE:g} s. Finished trials are kept; run the same command to continue."
            )

    def release(self) -> None:
        """Delete the claim, so that other processes can take the shard."""
        self._over.set()
        try:
            if _content(self.path) == self._content:
                self.path.unlink(missing_ok=True)
        finally:
            self._file.close()


@contextmanager
def claimed(folder: Path, shard: Shard = WHOLE) -> Iterator[Claim]:
    """Claim a shard of a study for the duration of the block.

    If a claim of another machine may be dead, a process that wants the whole study waits: until the claim is touched
    (Held), or until it is STALE seconds old (take it over). A process that wants one of several shards does not wait.

    Raises:
        Held: another process trains this shard, or shards of another `count`.
        StoreError: the folder cannot be written.
    """
    atomic.make_folder(folder)
    first: Held | None = None
    while True:
        try:
            claim = _take(folder, shard)
            break
        except Held as held:
            first = first or held
            if held.touched is None or held.touched != first.touched or shard.count > 1:
                raise
        time.sleep(1)
    try:
        yield claim
    finally:
        claim.release()


def refuse_held(folder: Path) -> None:
    """Raise Held if a process that certainly lives holds a claim on this study; claims nothing."""
    for each in _claims(folder):
        try:
            _content_if_dead(each)
        except Held as held:
            if held.touched is None:
                raise


def busy(folder: Path) -> bool:
    """True if a process that lives or may live holds a claim on this study; claims nothing."""
    try:
        for each in _claims(folder):
            _content_if_dead(each)
    except Held:
        return True
    return False


class _ClaimFile(NamedTuple):
    shard: Shard
    number: int
    path: Path


def _parse(path: Path) -> _ClaimFile:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    index, count, number = map(int, match.groups())
    return _ClaimFile(Shard(index, count), number, path)


def _claims(folder: Path) -> list[_ClaimFile]:
    return [_parse(path) for path in folder.glob(".claim.*") if _NAME.fullmatch(path.name)]


def _rivals(folder: Path, shard: Shard) -> list[_ClaimFile]:
    """The claims on this shard, and on shards of another `count`, which overlap with it."""
    return [each for each in _claims(folder) if each.shard == shard or each.shard.count != shard.count]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _take(folder: Path, shard: Shard) -> Claim:
    dead = {each: content for each in _rivals(folder, shard) if (content := _content_if_dead(each)) is not None}
    number = 1 + max((each.number for each in dead if each.shard == shard), default=0)
    claim = _create(folder / f".claim.{shard}.{number}")
    try:
        for each in _rivals(folder, shard):
            now = _content(each.path)
            if each.path != claim.path and now is not None and now != dead.get(each):
                raise Held(folder, "another process")  # claimed after the dead claims were found
        for each in dead:
            with suppress(OSError):
                each.path.unlink()
    except BaseException:
        claim.release()
        raise
    return claim


def _create(path: Path) -> Claim:
    """Create a claim, with its content and its lock from the start. Raises Held if one of this name exists."""
    who = {"pid": os.getpid(), "host": socket.gethostname(), "boot": _boot(), "claim": secrets.token_hex(8)}
    content, aside = json.dumps(who).encode(), atomic.temporary(path)
    with atomic.writing(path.with_name(".claim")):
        file = aside.open("x+b", buffering=0)
        try:
            try:
                with suppress(OSError):  # a network file system may have no locks
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.write(content)
                if not atomic.link(aside, path):
                    raise Held(path.parent, "another process")
            finally:
                aside.unlink(missing_ok=True)
        except BaseException:
            file.close()
            raise
    return Claim(path, file, content)


def _content_if_dead(claim: _ClaimFile) -> bytes | None:
    """The content of a claim whose process is dead; None if the claim is gone. Raises Held if the process lives or may
    live."""
    folder = claim.path.parent
    try:
        file = claim.path.open("rb")  # opening it refreshes the cache of a network file system
    except FileNotFoundError:
        return None
    with file:
        content = file.read()
        holder = _parsed(content)
        name = f"process {holder.get('pid', '?')} on {holder.get('host', 'another machine')}"
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Held(folder, name) from error
        except OSError:
            known_dead = False
        else:
            known_dead = holder.get("boot") == _boot()
        touched = os.fstat(file.fileno()).st_mtime
        if not known_dead and _now(folder) - touched < STALE:
            raise Held(folder, name, touched)
    return content


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):  # incomplete: its process died on a full disk
        return {}


def _now(folder: Path) -> float:
    """The time by the file system's clock."""
    probe = atomic.temporary(folder / ".claim")
    with atomic.writing(folder / ".claim"):
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)


def _boot() -> str:
    """An identifier of the running kernel: two machines may have the same host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
