"""The content of the report, in order: what was run, the verdict on every claim, then every experiment."""

import datetime
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from reluformer.study.experiment import Experiment
from reluformer.study.report.blocks import Block, Heading, Image, Paragraph, Picture, Recipe, Recipes, Table, Text
from reluformer.study.report.figures import counted, duration
from reluformer.study.report.plots import pictures
from reluformer.study.report.sections import Cell, Section, number, sections, short
from reluformer.study.report.tables import arm_table, claim_table, is_sweep
from reluformer.study.report.verdicts import FAILS, HOLDS, OPEN, UNTRIED, verdict

METHOD = (
    "How a word is found: > and < by Welch's two-sided t-test over seeds, = by two one-sided tests (TOST) within the "
    "margin, both at p < 0.05; one seed decides nothing. An arm of which every run diverged counts as worse than any "
    "that finished. Each claim is tested on its own: of twenty comparisons in which nothing differs, about one is "
    "decided by chance."
)


def content(experiments: Sequence[Experiment], cells: Sequence[Cell], out: Path) -> list[Block]:
    """Return the blocks of the report; pictures that cells name are looked up below ``out``."""
    parts = sections(experiments, cells)
    blocks: list[Block] = [Heading("The study: ReLU and softmax in Transformers", 1), _header(cells)]
    strangers = Counter(short(cell.get("study")) for cell in cells) - Counter(
        {experiment.name: len(cells) for experiment in experiments}
    )
    if strangers:
        blocks.append(Paragraph(f"Cells of experiments that this report does not know: {', '.join(strangers)}."))
    blocks += _summary(parts)
    for part in parts:
        blocks += _experiment(part, out)
    return blocks


def _header(cells: Sequence[Cell]) -> Table:
    statuses = Counter({"done": 0, "failed": 0, "diverged": 0})
    statuses.update(short(cell.get("status")) for cell in cells)
    seconds = sum(number(cell.get("seconds")) or 0.0 for cell in cells)
    facts = {
        "scale": _distinct(short(cell.get("scale")) for cell in cells),
        "corpus": _distinct(short(cell.get("corpus")) for cell in cells),
        "machine": _distinct(short(cell.get("machine")) for cell in cells),
        "versions": _distinct(short(cell.get("versions")) for cell in cells),
        "cells": ", ".join(f"{count} {status}" for status, count in statuses.items()),
        "time": f"{duration(seconds)}, all cells added up",
        "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return Table((), tuple((Text(name, tone="quiet"), Text(fact)) for name, fact in facts.items()))


def _distinct(texts: Iterable[str]) -> str:
    """Return the text that all cells agree on, or each distinct text with its number of cells."""
    counts = Counter(text or "unknown" for text in texts)
    if len(counts) <= 1:
        return next(iter(counts), "unknown")
    return "; ".join(f"{text} ({count} cells)" for text, count in counts.most_common())


def _summary(parts: Sequence[Section]) -> list[Block]:
    words = Counter(verdict(claim, part).word for part in parts for claim in part.claims)
    if not words:
        return []
    told = ", ".join(f"{words[word]} {plural if words[word] != 1 else word}" for word, plural in _PLURALS.items())
    if words[UNTRIED]:
        told += f", {words[UNTRIED]} {UNTRIED}, for want of cells"
    blocks: list[Block] = [
        Heading("What holds", 2, "claims"),
        Paragraph(f"{words.total()} claim{'' if words.total() == 1 else 's'}: {told}."),
    ]
    tried = claim_table(parts, with_experiment=True)
    return [*blocks, tried, Paragraph(METHOD, quiet=True)] if tried.rows else blocks


_PLURALS = {HOLDS: "hold", FAILS: "do not hold", OPEN: OPEN}


def _experiment(part: Section, out: Path) -> list[Block]:
    blocks: list[Block] = [Heading(part.title, 2, part.name), Paragraph(part.experiment.question)]
    if not part.cells:
        blocks.append(Paragraph("No cells yet."))
    elif part.arms:
        blocks += [arm_table(part), Paragraph(_legend(part), quiet=True)]
    claims = claim_table([part], with_experiment=False)
    if claims.rows:
        blocks += [Heading("Claims", 3), claims]
    blocks += _tables(part)
    found: list[Picture | Image] = [*pictures(part), *_images(part, out)]
    if found:
        blocks += [Heading("Plots", 3), *found]
    recipes = tuple(_recipe(arm.name, arm.cells) for arm in part.arms if arm.cells)
    return [*blocks, Recipes(recipes)] if recipes else blocks


def _tables(part: Section) -> list[Block]:
    """Return the ``tables`` of the cells' results, whose columns are numeric except for the ``names`` leftmost ones."""
    blocks: list[Block] = []
    for cell in part.cells:
        result = cell.get("result")
        for table in (result.get("tables") if isinstance(result, dict) else None) or ():
            if not isinstance(table, dict) or not table.keys() >= {"title", "head", "rows"}:
                blocks.append(Paragraph("A table without title, head and rows is left out.", quiet=True))
                continue
            head = tuple(map(str, table["head"]))
            rows = tuple(tuple(Text(str(text)) for text in row) for row in table["rows"])
            title = f"{table['title']}, seed {short(cell.get('seed'))}"
            blocks += [Heading(title, 3), Table(head, rows, numeric=len(head) - int(table.get("names", 1)))]
    return blocks


def _images(part: Section, out: Path) -> list[Image]:
    """Return the ``pictures`` of the cells' results, PNG files below the folder of the study."""
    found = []
    for cell in part.cells:
        result = cell.get("result")
        for name in (result.get("pictures") if isinstance(result, dict) else None) or ():
            path = (out / str(name)).resolve()
            if path.suffix == ".png" and path.is_relative_to(out.resolve()) and path.is_file():
                title = f"{short(cell.get('arm'))}, seed {short(cell.get('seed'))}"
                found.append(Image(path.relative_to(out.resolve()).as_posix(), title, path.read_bytes()))
    return found


def _legend(part: Section) -> str:
    """Return the notes that a reader needs to understand the table."""
    statuses = Counter(short(cell.get("status")) for cell in part.cells)
    notes = [f"{counted(statuses)}; mean ± standard deviation over seeds"]
    if any(column.better for column in part.experiment.columns):
        notes.append("bold: the best mean" + (" at each x" if is_sweep(part) else ""))
    if largest := [column.title for column in part.experiment.columns if column.seeds == "largest"]:
        notes.append(f"{', '.join(dict.fromkeys(largest))}: the largest of all seeds")
    keys = {column.key for column in part.experiment.columns}
    if not any(keys & set(figures) for figures in part.experiment.paper.values()):
        notes.append("the paper's figures: unknown")
    if absent := [arm.name for arm in part.arms if not arm.cells]:
        notes.append(f"not run: {' | '.join(absent)}")
    if part.doubles:
        notes.append(f"{part.doubles} cells left out that share arm and seed with a later one")
    return "; ".join(notes) + "."


def _recipe(arm: str, cells: Sequence[Cell]) -> Recipe:
    places = tuple(_place(cell) for cell in cells)
    return Recipe(arm, places, tuple(dict.fromkeys(filter(None, (short(cell.get("command")) for cell in cells)))))


def _place(cell: Cell) -> str:
    """Return the file of a cell, as its command names it."""
    words = short(cell.get("command")).replace("--cell=", "--cell ")
    try:
        parts = shlex.split(words)
    except ValueError:  # an unbalanced quotation mark in a path: older cells did not quote
        parts = words.split()
    return parts[parts.index("--cell") + 1] if "--cell" in parts[:-1] else f"seed {short(cell.get('seed'))}"
