"""Progress on standard error while files are translated: a bar in a terminal, elsewhere a line now and then."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from reluformer.translation.outputs import STANDARD, Job

EVERY = 60.0  # seconds between two lines in a log


@contextmanager
def sentences_done(what: str, total: int | None) -> Iterator[Callable[[float], None]]:
    """Show progress, and provide a function to call with the number of sentences done since the last call."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield _Lines(what, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


class _Lines:
    """Prints a line a minute, for a log; work of less than a minute leaves none."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what, self.total, self.done = what, total, 0.0
        self.began = self.said = time.monotonic()

    def __call__(self, count: float) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.said < EVERY:
            return
        self.said = now
        of, left = "", ""
        if self.total is not None:
            of = f" of {self.total:,}"
            if self.done > 0:
                seconds = (self.total - self.done) * (now - self.began) / self.done
                left = f" ({self.done / self.total:.0%}), about {max(seconds, 0) / 60:,.0f} min left"
        _print(f"{self.what}: {math.floor(self.done):,}{of} sentences{left}")


class Account:
    """Says in words what becomes of the files, so that nobody wonders why there is nothing to see.

    Args:
        jobs: Files that are read and written.
        counts: Number of sentences of each file; None where it can be read only once.
    """

    def __init__(self, jobs: Sequence[Job], counts: Sequence[int | None]) -> None:
        self.jobs, self.counts, self.done, self.began = jobs, counts, 0.0, 0.0

    @property
    def total(self) -> int | None:
        """Number of sentences of all files; None if that cannot be known beforehand."""
        known = [count for count in self.counts if count is not None]
        return sum(known) if len(known) == len(self.counts) else None

    def begin(self) -> None:
        """Start the clock, and tell a person at the keyboard what to do."""
        if any(job.input == STANDARD for job in self.jobs) and sys.stdin is not None and sys.stdin.isatty():
            _say("reading the keyboard: a text, then Ctrl-D on a line of its own")
        self.began = time.perf_counter()

    def counting(self, watch: Callable[[float], None]) -> Callable[[float], None]:
        """Wrap ``watch`` so that the sentences reported to it are counted here too."""

        def counted(count: float) -> None:
            self.done += count
            watch(count)

        return counted

    def warn(self, job: Job, what: str | None) -> None:
        """Print a warning about a file, if there is one."""
        if what:
            _say(f"{job.name} {what}")

    def end(self) -> None:
        """Name the files that had nothing to translate and, in a terminal, those that were written."""
        for job, count in zip(self.jobs, self.counts, strict=True):
            if count == 0 or (count is None and not self.done):
                _say(f"{job.name} has nothing to translate: what is written is what was read")
        kept = [str(job.output) for job in self.jobs if job.output != STANDARD]
        if kept and sys.stderr.isatty():
            sentences = f"{self.done:,.0f} sentence{'' if round(self.done) == 1 else 's'}"
            _say(f"{', '.join(kept)}: {sentences} in {time.perf_counter() - self.began:.1f} s")


def _say(text: str) -> None:
    _print(f"reluformer translate: {text}")


def _print(line: str) -> None:
    with suppress(OSError):  # a log on a full disk is no reason to stop the work
        print(line, file=sys.stderr, flush=True)
