"""One at a time: processes that would write the same thing wait for each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of that name; a process that dies lets go of it. Where the system has none, nobody waits."""
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
        finally:  # to close it is not enough: whoever was forked meanwhile, to make batches, has it open too
            fcntl.flock(file, fcntl.LOCK_UN)
