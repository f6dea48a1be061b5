"""How many threads a step is worth: as many as there are cores to be had, which on a busy machine is fewer than it has.

The threads of a step wait for each other dozens of times. Where another program holds the core of one of them, all wait
until the scheduler takes turns: milliseconds, for microseconds of work. One thread is many times as fast then.
"""

import os
import threading
import time
from collections import deque
from types import TracebackType
from typing import NamedTuple

import torch

PERIOD = 0.2  # seconds over which cores are watched: the system counts in hundredths
PERIODS = 3
SLACK = 0.25  # of a core, which others may use without harm worth a thread


class Clocks(NamedTuple):
    """Seconds since some time: on the wall, idle on all cores that this process may use, and used by it itself."""

    wall: float
    idle: float
    own: float


class Threads(threading.local):
    """PyTorch's threads while somebody translates: as many as the caller had at the most, who gets them back.

    Fewer are taken at once, more only when there were cores for them all the while, :data:`PERIODS` long. How many
    there are is a matter of the thread that calls PyTorch, and so is all that is here.
    """

    def __init__(self) -> None:
        self.last = _BEGAN
        self.seen: deque[int] = deque(maxlen=PERIODS)  # cores that were to be had, period by period
        self.most: int | None = None  # of the caller, while there is one
        self.fewest: int | None = None  # that were ever taken

    def __enter__(self) -> "Threads":
        self.most = torch.get_num_threads()
        self.follow()
        self._take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self.most is not None
        torch.set_num_threads(self.most)
        self.most = None

    def follow(self) -> None:
        """Take as many threads as cores were to be had of late; costs nothing if that was looked at just now."""
        if self.last is None or self.most is None or time.monotonic() - self.last.wall < PERIOD:
            return
        now = clocks()
        assert now is not None
        self.seen.append(cores_between(self.last, now))
        self.last = now
        self._take()

    def _take(self) -> None:
        assert self.most is not None
        threads = min([self.most, *self.seen])
        self.fewest = min(threads, self.fewest or threads)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)


def cores_between(first: Clocks, last: Clocks) -> int:
    """How many cores were there for this process: those that idled, and those that it used itself."""
    wall, idle, own = (after - before for before, after in zip(first, last, strict=True))
    return max(1, int((idle + own) / wall + SLACK))


def clocks() -> Clocks | None:
    """What they say now, if this system tells."""
    try:
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        idle = [int(line[4]) + int(line[5]) for line in lines if line[0] in cores]  # idle, and waiting for a disk
    except (AttributeError, OSError, ValueError, IndexError):  # macOS, Windows, a container that hides it
        return None
    return Clocks(time.monotonic(), sum(idle) / tick, time.process_time()) if idle else None


_BEGAN = clocks()  # so that what happens while a model is loaded says something about the first step
THREADS = Threads()
