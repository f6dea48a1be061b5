"""Numbers and tables on the console."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

# Wide enough for the tables where there is no terminal: a log, a file.
WIDTH = 118


def console() -> Console:
    """Return a console on standard output, wide if it is not a terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=WIDTH)


def number(x: float | None) -> str:
    """Format a number with about three significant digits, never with an exponent."""
    if x is None:
        return "n/a"
    return f"{x:.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.2f}" if x >= 0.1 or x == 0 else f"{x:.3f}"


def plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    """Return a table whose first column is text and whose others are numbers."""
    table = Table(
        title=title or None, caption=caption or None, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD
    )
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table
