"""Parallel text files: line i of one is the translation of line i of the other.

Documents are separated by ``<d>`` or by a blank line, on both sides. A line that is blank on one side alone is a
sentence without a translation, which cleaning drops; where blank lines separate documents it can only be a slip, and is
refused.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from reluformer.data.documents import Document
from reluformer.data.files import DataError, numbered_lines

MARK = "<d>"
_DIFFER = "sides of different lengths"


def read_lines(source: Path, target: Path) -> Iterator[Document]:
    """Read the documents of two text files, named after the source file and their position in it."""
    sides: tuple[list[str], list[str]] = ([], [])
    count = 1
    for ours, theirs in _pairs(source, target):
        if ours is not None and theirs is not None:
            sides[0].append(ours)
            sides[1].append(theirs)
        elif sides[0]:
            yield Document(f"{source.name}:{count}", *sides)
            sides, count = ([], []), count + 1
    if sides[0]:
        yield Document(f"{source.name}:{count}", *sides)


def _pairs(source: Path, target: Path) -> Iterator[tuple[str | None, str | None]]:
    """Iterate over pairs of lines, with a pair of None between documents."""
    document, inside = 1, False
    separator = ""  # the one that these files use, once it is known
    lonely = ""  # place of the last line that is blank on one side alone
    for ours, theirs in zip_longest(numbered_lines(source), numbered_lines(target)):
        if ours is None or theirs is None:
            (short, long), (line, _) = ((source, target), theirs) if ours is None else ((target, source), ours)
            raise DataError(f"{short} has {line - 1} lines, {long} has more: {_DIFFER} in document {document}")
        number, pair = ours[0], (ours[1], theirs[1])
        marked, blank = ([line.strip() == sign for line in pair] for sign in (MARK, ""))
        if marked[0] != marked[1]:
            alone, other = (source, target) if marked[0] else (target, source)
            raise DataError(f"{alone}, line {number}: {MARK}, not so in {other}: {_DIFFER} in document {document}")
        if blank[0] != blank[1]:
            lonely = f"{source if blank[0] else target}, line {number}"
        if marked[0]:
            separator = MARK
        elif all(blank) and not separator:
            separator = "blank line"
        if lonely and separator == "blank line":
            raise DataError(
                f"{lonely}: blank on this side alone, where blank lines separate documents: {_DIFFER} in document "
                f"{document}; if it is meant, put {MARK} between documents"
            )
        ends = marked[0] or (all(blank) and separator != MARK)
        document, inside = document + (ends and inside), not ends
        yield (None, None) if ends else pair
