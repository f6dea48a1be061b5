"""What is said on standard error while files are translated: a bar or, where nobody watches, now and then a line."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from reluformer.translation.outputs import STANDARD, Job

EVERY = 60.0  # seconds between two lines of a log


@contextmanager
def sentences_done(what: str, total: int | None) -> Iterator[Callable[[float], None]]:
    """A function to be told how many sentences more are done."""
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
    """A line a minute, for a log; work of less than a minute leaves none."""

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
    """What becomes of some files, in words: nobody should wonder why there is nothing to see.

    Args:
        jobs: What is read and written.
        counts: Sentences of each; None where they can be read only once.
    """

    def __init__(self, jobs: Sequence[Job], counts: Sequence[int | None]) -> None:
        self.jobs, self.counts, self.done, self.began = jobs, counts, 0.0, 0.0

    @property
    def total(self) -> int | None:
        """Sentences of all files, as far as that can be known beforehand."""
        known = [count for count in self.counts if count is not None]
        return sum(known) if len(known) == len(self.counts) else None

    def begin(self) -> None:
        """Say what a person at the keyboard has to do."""
        if any(job.input == STANDARD for job in self.jobs) and sys.stdin is not None and sys.stdin.isatty():
            _say("reading the keyboard: a text, then Ctrl-D on a line of its own")
        self.began = time.perf_counter()

    def counting(self, watch: Callable[[float], None]) -> Callable[[float], None]:
        """The same function, counted."""

        def counted(count: float) -> None:
            self.done += count
            watch(count)

        return counted

    def warn(self, job: Job, what: str | None) -> None:
        """Say something about a file, if there is anything to say."""
        if what:
            _say(f"{job.name} {what}")

    def end(self) -> None:
        """Name the files in which there was nothing to do and, where somebody watches, those that were written."""
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
