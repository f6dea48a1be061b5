"""The number of threads for a step: as many as there are free cores, which on a busy machine are fewer than it has.

The threads of a step wait for each other dozens of times. Where another program holds the core of one of them, all wait
until the scheduler switches: milliseconds, for microseconds of work. A single thread is many times as fast then.
"""

import os
import threading
import time
from collections import deque
from types import TracebackType
from typing import NamedTuple

import torch

PERIOD = 0.2  # seconds over which cores are observed: the system counts in hundredths
PERIODS = 3
SLACK = 0.25  # of a core that others may use without costing us a thread


class Clocks(NamedTuple):
    """Seconds since some moment: wall time, idle time of all cores that this process may use, and its own CPU time."""

    wall: float
    idle: float
    own: float


class Threads(threading.local):
    """Sets PyTorch's number of threads during a translation, at most to the caller's own, which is restored at the end.

    The number drops at once, but rises only when there were cores for more during all of the last :data:`PERIODS`
    periods. PyTorch's setting belongs to the thread that calls it, and so does everything here.
    """

    def __init__(self) -> None:
        self.last = _BEGAN
        self.seen: deque[int] = deque(maxlen=PERIODS)  # free cores in each of the last periods
        self.most: int | None = None  # the caller's number of threads, during a translation
        self.fewest: int | None = None  # the smallest number of threads so far

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
        """Take as many threads as cores were free of late; costs next to nothing within a period."""
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
    """Return how many cores were available to this process: those that idled and those that it used itself."""
    wall, idle, own = (after - before for before, after in zip(first, last, strict=True))
    return max(1, int((idle + own) / wall + SLACK))


def clocks() -> Clocks | None:
    """Read the clocks, or return None if the system does not provide them."""
    try:
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        idle = [int(line[4]) + int(line[5]) for line in lines if line[0] in cores]  # idle, and waiting for a disk
    except (AttributeError, OSError, ValueError, IndexError):  # macOS, Windows, a container that hides it
        return None
    return Clocks(time.monotonic(), sum(idle) / tick, time.process_time()) if idle else None


_BEGAN = clocks()  # read here so that the load while a model is loaded informs the first step
THREADS = Threads()
