"""What a report is made of, before it is Markdown or HTML: both show the same content."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """The content of one table cell.

    Attributes:
        text: As it reads, not escaped.
        bold: The best of its column.
        tone: What it means, for colour: "good", "bad", "open", "quiet" or "".
    """

    text: str
    bold: bool = False
    tone: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading of level 1 to 3; those of level 2 make the table of contents."""

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
    """Rows under a head; ``numeric`` counts the columns at the right that hold numbers."""

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
    """A PNG that a cell left beside it; ``path`` is relative to the report."""

    path: str
    title: str
    png: bytes


@dataclass(frozen=True)
class Recipe:
    """How one arm is made again: where its cells are and the commands."""

    arm: str
    cells: tuple[str, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Recipes:
    """The recipes of all arms of one experiment, folded away."""

    recipes: tuple[Recipe, ...]


Block = Heading | Paragraph | Table | Picture | Image | Recipes
