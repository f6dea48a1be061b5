r"""Files as pages of lines: what is translated of them, and what stays as it is.

One line comes out for each line that goes in. Only ``\n`` ends a line, and whatever stands around its text (a byte
order mark, indentation, ``\r\n`` or no end at all) is kept.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from reluformer.data.documents import check_text
from reluformer.data.files import DataError, plain_suffix
from reluformer.data.lines import MARK

BOM = "\ufeff"
LONGEST_PAGE = 10_000  # lines: a file without an end still goes through as a stream
LONGEST_LINE = 1 << 26  # bytes, ten times the Bible: what has no line's end by then has none at all
BLOCK = 1 << 16  # bytes
FORMATS = ("auto", "text", "markdown", "jsonl")
ALIASES = {"md": "markdown", "txt": "text"}
MARKDOWN = (".md", ".markdown", ".mdown", ".mkd", ".qmd", ".rmd")
# Text whose form a translation of its lines would not keep: columns, tags, keys, times.
STRUCTURED = (
    ".csv", ".tsv", ".json", ".xml", ".html", ".htm", ".yaml", ".yml", ".toml", ".ini", ".po", ".srt", ".vtt", ".tex",
    ".rst", ".rtf", ".ipynb", ".py",
)  # fmt: skip


class Page(Protocol):
    """What is translated as one document, and how its lines are put together again."""

    @property
    def sentences(self) -> list[str]:
        """What is to be translated."""

    def render(self, translations: Sequence[str]) -> str:
        """The page with a translation in the place of every sentence."""


@dataclass(frozen=True)
class Line:
    """A line in parts: kept, translated, kept, ..., kept; the last one with whatever ends the line.

    Attributes:
        parts: An odd number of them.
        escape: Makes a translation fit for its place: is told the number of the sentence in its line.
    """

    parts: tuple[str, ...]
    escape: Callable[[int, str], str] = lambda _, text: text

    @property
    def sentences(self) -> tuple[str, ...]:
        """What of it is to be translated."""
        return self.parts[1::2]

    def render(self, translations: Iterable[str]) -> str:
        """The line with these in the places of its sentences."""
        parts = list(self.parts)
        parts[1::2] = [self.escape(i, text) for i, text in enumerate(translations)]
        return "".join(parts)


@dataclass(frozen=True)
class LinePage:
    """A page of lines."""

    lines: list[Line]

    @property
    def sentences(self) -> list[str]:
        """Of all its lines."""
        return [sentence for line in self.lines for sentence in line.sentences]

    def render(self, translations: Sequence[str]) -> str:
        """Line by line."""
        rest = iter(translations)
        return "".join(line.render([next(rest) for _ in line.sentences]) for line in self.lines)


@dataclass(frozen=True)
class RecordPage:
    """A document of a JSONL file; whatever else is in the record stays there."""

    record: dict[str, Any]
    sentences: list[str]
    target: str
    before: str
    after: str

    def render(self, translations: Sequence[str]) -> str:
        """The record with the translations under the name of the target."""
        return (
            self.before + json.dumps(self.record | {self.target: list(translations)}, ensure_ascii=False) + self.after
        )


def format_of(path: Path | None, chosen: str) -> str:
    """The format of a file, by its name if none was chosen; standard input is text."""
    chosen = ALIASES.get(chosen, chosen)
    if chosen not in FORMATS:
        raise DataError(f"format takes {', '.join(FORMATS)}, got {chosen!r}")
    if chosen != "auto":
        return chosen
    suffix = "" if path is None else plain_suffix(path)
    if suffix in STRUCTURED:
        raise DataError(
            f"{path}: what gives a {suffix} file its form would be lost: takes text, Markdown and JSONL; "
            "--format text translates its lines all the same"
        )
    return "markdown" if suffix in MARKDOWN else "jsonl" if suffix == ".jsonl" else "text"


def read_pages(lines: Iterable[str], form: str, name: str, source: str | None, target: str) -> Iterator[Page]:
    """Pages of a file, one at least.

    Args:
        lines: As :func:`decoded_lines` gives them.
        form: ``text``, ``markdown`` or ``jsonl``.
        name: Of the file, for messages.
        source: Key of the sentences in JSONL; None for the only list of strings in a record.
        target: Key of the translations.
    """
    if form == "jsonl":
        yield from _records(lines, name, source, target)
    elif form == "markdown":
        from reluformer.translation.markdown import markdown_lines

        yield from _pages((line, False) for line in markdown_lines(lines))
    else:
        yield from _pages(_text_lines(lines))
    yield LinePage([])  # so that an empty file has a page, too


def decoded_lines(file: IO[bytes], name: str) -> Iterator[str]:
    r"""Lines with their ends, split at ``\n`` alone; what is no text in UTF-8 is an error that says where."""
    before = 0  # bytes
    for number, line in enumerate(_ended_lines(file), 1):
        if len(line) > LONGEST_LINE:
            raise DataError(f"{name}, line {number}: longer than {LONGEST_LINE:,} bytes: takes text in lines")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {before + error.start + 1} of the file"
            raise DataError(f"{name}, line {number}: not UTF-8, {place}: takes text in UTF-8") from None
        if "\0" in text:  # UTF-8, but no text has it: an archive, say, or UTF-16
            place = f"byte {before + line.index(0) + 1} of the file"
            raise DataError(f"{name}, line {number}: a zero byte, {place}: takes text in UTF-8")
        yield text
        before += len(line)


def _ended_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines; one ends early at a zero byte and beyond :data:`LONGEST_LINE`, for it might not end at all."""
    line = bytearray()
    for block in iter(partial(file.readline, BLOCK), b""):
        zero = block.find(0)
        line += block if zero < 0 else block[: zero + 1]
        if zero >= 0 or len(line) > LONGEST_LINE or line.endswith(b"\n"):
            yield bytes(line)
            line.clear()
    if line:
        yield bytes(line)


def kept_around(text: str) -> tuple[str, str, str]:
    """White space and a byte order mark before a text, the text, and white space and the line's end behind it."""
    rest = text.removeprefix(BOM).lstrip()
    inner = rest.rstrip()
    before = len(text) - len(rest)
    return text[:before], inner, text[before + len(inner) :]


def is_text(text: str) -> bool:
    """Whether there is something to translate: a letter, of whatever script. Numbers and times are left as they are."""
    return any(map(str.isalpha, text))


def _text_lines(lines: Iterable[str]) -> Iterator[tuple[Line, bool]]:
    """Lines of plain text, and whether a document ends with them: at ``<d>`` or a blank line, as in training data."""
    marked = False
    for line in lines:
        before, text, after = kept_around(line)
        marked = marked or text == MARK
        if text == MARK or not is_text(text):
            yield Line((line,)), text == MARK or (not text and not marked)
        else:
            yield Line((before, text, after)), False


def _pages(lines: Iterable[tuple[Line, bool]]) -> Iterator[Page]:
    page: list[Line] = []
    for line, ends in lines:
        page.append(line)
        if ends or len(page) == LONGEST_PAGE:
            yield LinePage(page)
            page = []
    yield LinePage(page)


def _records(lines: Iterable[str], name: str, source: str | None, target: str) -> Iterator[Page]:
    for number, line in enumerate(lines, 1):
        before, text, after = kept_around(line)
        if not text:
            yield LinePage([Line((line,))])
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(text)
            json.dumps(record, allow_nan=False)  # a number too large for a float cannot be written again
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: takes an object with lists of sentences, got {type(record).__name__}")
        sentences = record[_source_key(record, source, target, where)]
        check_text(sentences, where)
        yield RecordPage(record, sentences, target, before, after)


def _source_key(record: dict[str, Any], source: str | None, target: str, where: str) -> str:
    """The key of the sentences."""
    lists = [
        key
        for key, value in record.items()
        if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value)
    ]
    if source is None:
        others = [key for key in lists if key != target]
        if not others:
            raise DataError(f"{where}: has no list of sentences to translate; {target!r} is for translations")
        if len(others) > 1:
            raise DataError(f"{where}: has the lists {', '.join(others)}: say which to translate with --source")
        return others[0]
    if source not in lists:
        if isinstance(record.get(source), str):
            raise DataError(f"{where}: takes a list of sentences as {source!r}, got one string: put it into [ ]")
        raise DataError(f"{where}: takes a list of sentences as {source!r}, has {', '.join(lists) or 'none'}")
    return source
