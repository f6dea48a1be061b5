"""File locks: processes that would write the same thing wait for each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock on a file; a process that dies releases it. Does nothing on systems without ``fcntl``."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # closing is not enough: data loading processes that were forked meanwhile hold the file open, too
            fcntl.flock(file, fcntl.LOCK_UN)
