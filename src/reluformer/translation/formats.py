r"""Files as pages of lines: what is translated, and what stays as it is.

One line comes out for each line that goes in. Only ``\n`` ends a line, and whatever surrounds its text (a byte order
mark, indentation, ``\r\n`` or no end at all) is kept.
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
LONGEST_PAGE = 10_000  # lines: an endless file is still translated as a stream
LONGEST_LINE = 1 << 26  # bytes, ten times the Bible: a line that is longer has no end at all
BLOCK = 1 << 16  # bytes
FORMATS = ("auto", "text", "markdown", "jsonl")
ALIASES = {"md": "markdown", "txt": "text"}
MARKDOWN = (".md", ".markdown", ".mdown", ".mkd", ".qmd", ".rmd")
# Text whose structure would not survive a translation of its lines: columns, tags, keys, times.
STRUCTURED = (
    ".csv", ".tsv", ".json", ".xml", ".html", ".htm", ".yaml", ".yml", ".toml", ".ini", ".po", ".srt", ".vtt", ".tex",
    ".rst", ".rtf", ".ipynb", ".py", ".tmx",
)  # fmt: skip


class Page(Protocol):
    """A part of a file that is translated as one document, and how it is put together again."""

    @property
    def sentences(self) -> list[str]:
        """Sentences to translate."""

    def render(self, translations: Sequence[str]) -> str:
        """Return the page with a translation in place of every sentence."""


@dataclass(frozen=True)
class Line:
    """A line in parts: kept, translated, kept, ..., kept; the last part includes whatever ends the line.

    Attributes:
        parts: Parts of the line, an odd number.
        escape: Function that makes a translation safe for its place, given the index of the sentence in its line.
    """

    parts: tuple[str, ...]
    escape: Callable[[int, str], str] = lambda _, text: text

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences to translate."""
        return self.parts[1::2]

    def render(self, translations: Iterable[str]) -> str:
        """Return the line with translations in place of its sentences."""
        parts = list(self.parts)
        parts[1::2] = [self.escape(i, text) for i, text in enumerate(translations)]
        return "".join(parts)


@dataclass(frozen=True)
class LinePage:
    """A page of lines."""

    lines: list[Line]

    @property
    def sentences(self) -> list[str]:
        """Sentences of all lines."""
        return [sentence for line in self.lines for sentence in line.sentences]

    def render(self, translations: Sequence[str]) -> str:
        """Return the page with a translation in place of every sentence."""
        rest = iter(translations)
        return "".join(line.render([next(rest) for _ in line.sentences]) for line in self.lines)


@dataclass(frozen=True)
class RecordPage:
    """A document of a JSONL file; other fields of the record are kept."""

    record: dict[str, Any]
    sentences: list[str]
    target: str
    before: str
    after: str

    def render(self, translations: Sequence[str]) -> str:
        """Return the record with the translations under the key ``target``."""
        return (
            self.before + json.dumps(self.record | {self.target: list(translations)}, ensure_ascii=False) + self.after
        )


def format_of(path: Path | None, chosen: str) -> str:
    """Return the format of a file, judged by its name if none was chosen; standard input is text."""
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
    """Iterate over the pages of a file, at least one.

    Args:
        lines: Lines from :func:`decoded_lines`.
        form: ``text``, ``markdown`` or ``jsonl``.
        name: Name of the file, for messages.
        source: Key of the sentences in JSONL; None for the only list of strings in a record.
        target: Key of the translations in JSONL.
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
    r"""Iterate over lines with their ends, split at ``\n`` alone; an error says where the file is not UTF-8 text."""
    before = 0  # bytes
    for number, line in enumerate(_ended_lines(file), 1):
        if len(line) > LONGEST_LINE:
            raise DataError(f"{name}, line {number}: longer than {LONGEST_LINE:,} bytes: takes text in lines")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {before + error.start + 1} of the file"
            raise DataError(f"{name}, line {number}: not UTF-8, {place}: takes text in UTF-8") from None
        if "\0" in text:  # valid UTF-8, but never text: an archive, say, or UTF-16
            place = f"byte {before + line.index(0) + 1} of the file"
            raise DataError(f"{name}, line {number}: a zero byte, {place}: takes text in UTF-8")
        yield text
        before += len(line)


def _ended_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Iterate over lines; one is cut at a zero byte or beyond :data:`LONGEST_LINE`, since it might never end."""
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
    """Split a text into byte order mark and white space before it, the text itself, and white space and line end."""
    rest = text.removeprefix(BOM).lstrip()
    inner = rest.rstrip()
    before = len(text) - len(rest)
    return text[:before], inner, text[before + len(inner) :]


def is_text(text: str) -> bool:
    """Return whether there is something to translate: a letter of any script. Numbers and times are left alone."""
    return any(map(str.isalpha, text))


def _text_lines(lines: Iterable[str]) -> Iterator[tuple[Line, bool]]:
    """Iterate over lines of text and whether a document ends there, at ``<d>`` or a blank line, as in training data."""
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
            json.dumps(record, allow_nan=False)  # a number too large for a float cannot be written back
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: takes an object with lists of sentences, got {type(record).__name__}")
        sentences = record[_source_key(record, source, target, where)]
        check_text(sentences, where)
        yield RecordPage(record, sentences, target, before, after)


def _source_key(record: dict[str, Any], source: str | None, target: str, where: str) -> str:
    """Return the key of the sentences to translate."""
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
