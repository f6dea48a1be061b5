"""Progress of a study, on standard error: the cells done, those running and the time left."""

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from reluformer.study.cells import Cell
from reluformer.training.progress import duration


class StudyProgress:
    """A progress bar on a terminal, a line per cell elsewhere."""

    def __init__(self, cells: int, kept: int, jobs: int, console: Console | None = None, how: str = "") -> None:
        self.console = console or Console(stderr=True)
        self.cells, self.jobs, self.done, self.how = cells, jobs, kept, how
        self.running: dict[str, float] = {}
        self.spent = 0.0
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[about]}"))
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("", total=cells, completed=kept, about="")

    def __enter__(self) -> "StudyProgress":
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.stop()

    def __call__(self, cell: Cell, status: str) -> None:
        """Record that a cell is running, or its final status."""
        with self.lock:
            if status == "running":
                self.running[cell.label] = time.monotonic()
            else:
                seconds = time.monotonic() - self.running.pop(cell.label)
                self.spent += seconds
                self.done += 1
                self.counts[status] = self.counts.get(status, 0) + 1
                if status != "done" or not self.console.is_terminal:
                    line = f"{self.done}/{self.cells}  {self.how}{cell.label}: {status}, {seconds:.1f} s"
                    self.console.print(line, highlight=False, markup=False, soft_wrap=True)
            self.bar.update(self.task, completed=self.done, about=self.about())

    def about(self) -> str:
        """Return what is running, and the time left if the remaining cells take as long as those before."""
        finished = sum(self.counts.values())
        names = self.how + "; ".join(list(self.running)[:2])
        more = f" and {len(self.running) - 2} more" if len(self.running) > 2 else ""
        if not finished:
            return names + more
        left = self.spent / finished * (self.cells - self.done) / self.jobs
        return f"{duration(left)} left  {names}{more}"
