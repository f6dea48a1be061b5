"""The report as Markdown, its plots as files beside it."""

import re
from collections.abc import Sequence

from reluformer.study.report.blocks import Block, Heading, Image, Paragraph, Picture, Recipes, Table, Text

PLOTS = "plots"


def markdown(blocks: Sequence[Block]) -> str:
    """Return the whole Markdown file."""
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {escaped(block.text)}"
        case Paragraph():
            return escaped(block.text)
        case Table():
            return _table(block)
        case Picture():
            return f"**{escaped(block.title)}**\n\n![{escaped(block.title)}]({PLOTS}/{block.name}.png)"
        case Image():
            return f"**{escaped(block.title)}**\n\n![{escaped(block.title)}](<{block.path}>)"
        case Recipes():
            return _recipes(block)


def _table(table: Table) -> str:
    width = len(table.head) or max((len(row) for row in table.rows), default=1)
    head = [escaped(title) for title in table.head] or [""] * width
    rule = ["---"] * (width - table.numeric) + ["---:"] * table.numeric
    rows = [head, rule, *([_cell(text) for text in row] for row in table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(text: Text) -> str:
    return f"**{escaped(text.text)}**" if text.bold else escaped(text.text)


def _recipes(block: Recipes) -> str:
    lines = ["<details><summary>Cells and commands</summary>", ""]
    for recipe in block.recipes:
        lines += [f"- {escaped(recipe.arm)}: " + ", ".join(_code(cell) for cell in recipe.cells)]
        lines += [f"  - {_code(command)}" for command in recipe.commands]
    return "\n".join([*lines, "", "</details>"])


def _code(text: str) -> str:
    """Format text as inline code, even if it contains backticks."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def escaped(text: str) -> str:
    """Escape text so that Markdown takes it literally, on one line; an underscore inside a word needs no escape."""
    text = re.sub(r"([\\`*<>|\[\]~]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
    return re.sub(r"^([-+#]|\d+[.)])(?=\s)", r"\\\1", text)
