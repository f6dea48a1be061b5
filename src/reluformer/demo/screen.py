"""Output of the demo on the console."""

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from reluformer.demo.run import Demonstration

# What to do next, and the command for it.
NEXT = (
    ("Translate a file of yours: text, Markdown or JSONL", "reluformer translate notes.txt"),
    (
        "Look inside the model on a sentence of yours",
        'reluformer inspect "She kept her word." --out inside',
    ),
    ("See the operator alone: weights, back ends, speed", "reluformer demo operator"),
)


def side_by_side(found: Demonstration) -> Table:
    """Tabulate the document and its translation sentence by sentence, as wide as the terminal."""
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False, title_justify="left")
    table.add_column("", justify="right", style="dim", no_wrap=True)
    known = found.languages
    for name in (known.source, known.target) if known else ("source", "translation"):
        table.add_column(name, ratio=1, overflow="fold")
    for i, (sentence, translation) in enumerate(zip(found.sentences, found.translations, strict=True), 1):
        table.add_row(str(i), escape(sentence), escape(translation))
    return table


def summary(found: Demonstration) -> str:
    """Summarise size, speed, zeros and model in a few lines."""
    source, target = found.tokens
    speed = found.words / found.seconds
    return (
        f"[bold]{source:,} tokens in, {target:,} out[/], {len(found.sentences)} sentences in "
        f"{_count(len(found.windows), 'window')}: {found.seconds:.1f} s, {speed:,.0f} words/s, "
        f"{found.dtype} on {escape(found.machine)}\n"
        f"[bold]Weights that are exactly zero:[/] attention {100 * found.zeros('attention'):.1f} %, "
        f"FFN {100 * found.zeros('key-value'):.1f} %; with softmax there is none in attention\n"
        f"Model: {escape(found.model)}, {found.parameters / 1e6:.1f} M parameters, {found.megabytes:.1f} MB"
    )


def goodbye(out: Path) -> str:
    """Say where the page is, and what to do next."""
    lines = [f"Page: [bold]{escape(str(out))}[/], with the maps of attention and what every memory did"]
    return "\n".join([*lines, *(f"{what}: [bold]{escape(command)}[/]" for what, command in NEXT)])


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
