"""The blocks of a report, independent of Markdown and HTML, which show the same content."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """The content of one table cell.

    Attributes:
        text: Plain text, not escaped.
        bold: Whether it is bold, as the best figure of a column is.
        tone: Meaning, which decides the colour: "good", "bad", "open", "quiet" or "".
    """

    text: str
    bold: bool = False
    tone: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 3; those of level 2 make up the table of contents."""

    text: str
    level: int
    anchor: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A line of prose; ``quiet`` for notes."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under a head; ``numeric`` is the number of rightmost columns that hold numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    numeric: int = 0


@dataclass(frozen=True)
class Picture:
    """A plot: a PNG for the file beside the Markdown, an SVG for the page."""

    name: str
    title: str
    png: bytes
    svg: str
    panels: int = 1


@dataclass(frozen=True)
class Image:
    """A PNG that a cell wrote; ``path`` is relative to the report."""

    path: str
    title: str
    png: bytes


@dataclass(frozen=True)
class Recipe:
    """How to reproduce one arm: the files of its cells and the commands."""

    arm: str
    cells: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Recipes:
    """The recipes of all arms of one experiment, collapsed by default."""

    recipes: tuple[Recipe, ...]


Block = Heading | Paragraph | Table | Picture | Image | Recipes
