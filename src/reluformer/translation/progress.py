"""A bar on standard error while something is translated, where somebody watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def sentences_done(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function to be told how many sentences more are done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
