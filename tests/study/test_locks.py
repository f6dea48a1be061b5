import fcntl
import multiprocessing
import time
from pathlib import Path

import pytest

from reluformer.study.locks import locked


def is_free(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_child_keeps_it_from_others(tmp_path: Path) -> None:
    """Processes that make batches are forked while it is held, and live on."""
    path = tmp_path / "some" / "lock"
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    with locked(path):
        child.start()
        assert not is_free(path)
    try:
        assert is_free(path)
    finally:
        child.kill()
        child.join()
