"""Timing of calls: after a warm-up, on the device's clock, in turns, by the median."""

import gc
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], object]
FLUSH_BYTES = 2**30  # many times the largest L2 cache, and enough work for the host to prepare the next call meanwhile


def medians(
    calls: dict[str, Call],
    device: torch.device,
    seconds: float,
    fewest: int = 3,
    most: int = 100,
    pause: float = 0.0,
) -> dict[str, float | str]:
    """Return the median milliseconds of each call, or one line that says why it has none.

    The calls take turns, so that a noisy or throttled machine affects all of them alike. Each is repeated for about
    ``seconds``, ``fewest`` to ``most`` times, each time after a ``pause`` in seconds.
    """
    clock: _CudaClock | _HostClock = _CudaClock(device) if device.type == "cuda" else _HostClock()
    repeats: dict[str, int] = {}
    failures: dict[str, str] = {}
    for name, call in calls.items():
        try:
            (estimate,) = clock.read([clock.time(call)])  # compiles, allocates
            if estimate < 1000 * seconds or device.type == "cuda":  # long calls on a CPU are hardly slower at first
                (estimate,) = clock.read([clock.time(call)])
            repeats[name] = max(fewest, min(most, int(1000 * seconds / max(estimate, 1e-3))))
        except Exception as error:  # a rival that cannot run here loses its row, not the table
            failures[name] = reason(error)
            release(device)
    marks: dict[str, list[Any]] = {name: [] for name in repeats}
    for turn in range(max(repeats.values(), default=0)):
        for name, count in repeats.items():
            if turn < count and name not in failures:
                time.sleep(pause)
                try:
                    marks[name].append(clock.time(calls[name]))
                except Exception as error:
                    failures[name] = reason(error)
                    release(device)
    timed = {name: statistics.median(clock.read(found)) for name, found in marks.items() if name not in failures}
    return timed | failures


def reason(error: Exception) -> str:
    """Return an error as one line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    inner = re.search(r"raised exception \w+\(['\"](.+)['\"]\)", str(error))  # the compiler's wrapping says less
    text = inner[1] if inner else next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
    text = text.removeprefix("LoweringException: ")
    return text if len(text) <= 120 else text[:117] + "..."


def release(device: torch.device) -> None:
    """Free the leftovers of one contestant, many of which refer to each other, so that they do not starve the next."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class _HostClock:
    def time(self, call: Call) -> float:
        start = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - start)

    def read(self, marks: list[Any]) -> list[float]:
        return marks


class _CudaClock:
    """Records device events around each call; the host runs ahead, so that its own time does not show."""

    def __init__(self, device: torch.device) -> None:
        self.trash = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)

    def time(self, call: Call) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self.trash.zero_()  # evicts the inputs from the L2 cache
        start.record()
        call()
        stop.record()
        return start, stop

    def read(self, marks: list[Any]) -> list[float]:
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in marks]
