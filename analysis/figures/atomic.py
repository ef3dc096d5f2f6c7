"""Write files so that no reader sees half of one."""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> Path:
    """Write to a temporary file, sync, rename: a reader sees the old file or the whole new one. Returns the path.

    Raises:
        OSError: the file cannot be written; the error names `path`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "note.txt", b"whole").read_bytes()
    b'whole'
    """
    # The process id tells which files a killed process left; processes in two containers may have the same one.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write names no file, or the temporary one
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path
