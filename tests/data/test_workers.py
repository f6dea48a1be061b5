"""Work in several processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reluformer.data.files import DataError
from reluformer.data.workers import workers

KILLED = """
import os, signal
from reluformer.data.workers import workers
if __name__ == "__main__":
    with workers(2) as mapped:
        print(*mapped(abs, range(-3, 0)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
IMPATIENT = """
import os, signal, threading, time
from reluformer.data.workers import workers
if __name__ == "__main__":
    try:
        with workers(2) as mapped:
            results = mapped(time.sleep, [0.0, *[1.0] * 8])
            next(results)
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""
UNGUARDED = """
import sys
from pathlib import Path
from reluformer.study.corpus import embedded_corpus
from reluformer.study.scales import SCALES
embedded_corpus(Path(sys.argv[1]), SCALES["laptop"])  # enough text for several processes
"""


def test_results_come_in_order_and_few_are_under_way() -> None:
    taken = 0

    def items():
        nonlocal taken
        for i in range(20):
            taken += 1
            yield -i

    with workers(2) as mapped:
        results = mapped(abs, items())
        assert next(results) == 0
        assert taken < 8
        assert [*results] == list(range(1, 20))


def test_one_worker_is_this_process() -> None:
    with workers(1) as mapped:
        assert list(mapped(lambda _: os.getpid(), [0])) == [os.getpid()]


def test_an_error_comes_through() -> None:
    with pytest.raises(ValueError, match="invalid literal"), workers(2) as mapped:
        list(mapped(int, ["1", "x"]))


def test_a_worker_that_was_killed_is_said() -> None:
    with pytest.raises(DataError, match="a worker process was killed"), workers(2) as mapped:
        list(mapped(os._exit, [9]))


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(KILLED)
    # Returns when the last process that holds the pipe has ended, so workers that live on are a timeout.
    ran = subprocess.run([sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, "3 2 1\n")


def test_ctrl_c_twice_is_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(IMPATIENT)
    ran = subprocess.run([sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "stopped\n", "")


def test_a_script_that_forgot_its_guard_is_told(tmp_path: Path) -> None:
    """Its workers run it again: they would wait for the lock that it holds."""
    (tmp_path / "main.py").write_text(UNGUARDED)
    script = [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "out")]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    assert "a script that prepares data must do so below `if __name__" in ran.stderr
    assert "a worker process was killed" in ran.stderr
