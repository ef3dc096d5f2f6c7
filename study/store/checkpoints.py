"""The checkpoints of unfinished trials, one file each."""

from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path

from analysis.question.branches import TRUNK
from analysis.question.searches import matching
from study.store import atomic
from study.store.claims import WHOLE, Shard


class Checkpoints(MutableMapping[int, bytes]):
    """Trial index -> latest checkpoint of that trial. Each is one file, read on access; iteration covers one shard.

    Arguments:
        start: the file that the trials of a branch start from, whose index is TRUNK; iteration leaves it out.
    """

    def __init__(self, folder: Path, shard: Shard = WHOLE, start: Path | None = None) -> None:
        self.folder, self.shard, self.start = folder / "checkpoints", shard, start

    def _path(self, index: int) -> Path:
        return self.start if index == TRUNK and self.start else self.folder / f"{index:06d}.pt"

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self._path(index).exists()

    def __getitem__(self, index: int) -> bytes:
        try:
            return self._path(index).read_bytes()
        except OSError as error:  # treat as missing: the trial starts from step 0
            raise KeyError(index) from error

    def __setitem__(self, index: int, content: bytes) -> None:
        path = self._path(index)
        atomic.make_folder(self.folder, parents=False)
        atomic.replace(path, lambda aside: aside.write_bytes(content))

    def __delitem__(self, index: int) -> None:
        with suppress(OSError):  # harmless: finished trials never read their checkpoints
            self._path(index).unlink()

    def __iter__(self) -> Iterator[int]:
        indices = (int(path.stem) for path in matching(self.folder, "*.pt") if path.stem.isdecimal())
        return (index for index in indices if index in self.shard)

    def __len__(self) -> int:
        return sum(1 for _ in self)
