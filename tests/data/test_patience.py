"""Ctrl-C is heard while a library is at work."""

import subprocess
import sys
from pathlib import Path

import pytest

import reluformer
from reluformer.data.patience import hearing


def test_what_the_work_returns_or_raises() -> None:
    assert hearing(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        hearing(lambda: 1 // 0)


def test_ctrl_c_is_heard_and_leaves_the_work_behind() -> None:
    program = f"""
import os, signal, sys, time
sys.path.insert(0, {str(Path(reluformer.__file__).parents[1])!r})
from reluformer.data.patience import hearing
def work():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
try:
    hearing(work)
except KeyboardInterrupt:
    print("heard")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "heard\n", "")
