r"""Markdown, line by line: prose is translated; code, addresses and everything that gives a page its form is kept.

Kept to the letter: front matter, fenced and indented code, formulas, HTML tags and comments, link definitions, the
marks of headings, lists, quotes and tables, and within a line code, addresses and formulas. A line that contains those
is translated in the pieces between them: less fluent than a whole sentence, but nothing is ever lost or altered.
Emphasis is kept on a whole sentence or on what leads into one; words inside a sentence lose it, since their place in
the translation is not known.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise

from reluformer.translation.formats import BOM, Line, is_text, kept_around

_QUOTE = re.compile(r"(?: {0,3}>[ \t]?)*")
_MARKS = re.compile(
    r"""\s*
    (?:(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?)*   # list items, with boxes to tick
    (?:\#{1,6}\s+|\[\^[^\]]+\]:\s+)?                 # a heading, or a foot note
    """,
    re.VERBOSE,
)
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])(?:\s+|$)")
_HEADING_END = re.compile(r"\s+#+\s*$")
_FENCE = re.compile(r"(?:\s*(?:[-*+]|\d{1,9}[.)])\s+)*\s*(`{3,}(?=[^`]*$)|~{3,}|\$\$(?!.*\$\$))")
_DEFINITION = re.compile(r" {0,3}\[[^\]^][^\]]*\]:\s*\S")
_TABLE_RULE = re.compile(r"(?=.*\|)(?=.*-)[\s|:-]+$")
_RAW = re.compile(r"<(?:(!--)|(pre|script|style)(?=[\s>]|$))")
_OPEN_COMMENT = re.compile(r"<!--(?!.*-->)")
_OPEN_TAG = re.compile(r"\s*<[A-Za-z][\w-]*(?:\s[^<>]*)?$")  # a tag that continues on the next line
_FRONT = {"---": re.compile(r"[\w-]+\s*:"), "+++": re.compile(r"[\w.-]+\s*=|\[")}  # mark, and the line that follows
_FRONT_ENDS = {"---": ("---", "..."), "+++": ("+++",)}
_INLINE = re.compile(
    r"""(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)                        # code
    | \$(?=[^\s$])[^$]*(?<=[^\s$])\$(?!\d)                                # a formula; not two prices
    | \[\^[^\]]+\]                                                        # a mark of a foot note
    | \[[^\[\]]+\]\[\]                                                    # a link by the name of its definition
    | !?\[(?=[^\[\]]*\](?:\(|\[))                                         # begins a link or an image
    | \]\((?:<[^<>]*>|(?:[^()\s]|\([^()\s]*\))*)(?:\s+(?:"[^"]*"|'[^']*'))?\s*\) | \]\[[^\]]*\]   # ends it
    | <!--.*?--> | </?[A-Za-z][^<>]*>                                     # HTML, <https://...>
    | [\w.+-]+@[\w-]+(?:\.[\w-]+)+                                        # an address of mail
    | (?:https?|ftp)://[^\s<>\[\]()]*[^\s<>\[\]().,;:!?'"*_]              # an address as it stands
    """,
    re.VERBOSE,
)
_EMPHASIS = re.compile(r"(?<![\\\w*_~])(\*{1,3}|_{1,3}|~~)(?=[^\s*_~])(.+?)(?<=[^\s\\])\1(?![\w*_~])")
_CLOSING = re.compile(r"(?:\*{1,3}|_{1,3}|~~)(?=[\s.,;:!?)]|$)")
_OPENING = re.compile(r"(?<=[\s(])(?:\*{1,3}|_{1,3}|~~)$")
_LEADING = re.compile(r"^[\s,;:.!?)]+")  # of a piece after code or a link: stays between the two
_TRAILING = re.compile(r"[\s,;(]+$")
_SENTENCE_ENDS = re.compile(r"[.:!?]\s*$")
# Text that would begin a block; of an ordered list this matches the number, which a backslash is to follow.
_BLOCK = re.compile(r"\d{1,9}(?=[.)](?:\s|$))|(?=[-+*](?:\s|$)|\#{1,6}(?:\s|$)|>|~{3}|={2,}\s*$|-{2,}\s*$|\|)")


def markdown_lines(lines: Iterable[str]) -> Iterator[Line]:
    """Iterate over the lines of a page, each divided into what is translated and what is kept."""
    reader = _Reader()
    for line, following in pairwise(chain(lines, [""])):
        yield reader.read(line, following)


class _Reader:
    """Reads lines in order: what one means depends on those before it and, for tables and front matter, on the next."""

    def __init__(self) -> None:
        self.first = True
        self.until: str | None = None  # what closes the current block of code, comment, tag or front matter
        self.depth = 0  # of quotes where that block began
        self.paragraph = False  # whether that block ends with its paragraph at the latest
        self.content = 0  # column where the text of the current list item begins
        self.blank = True  # whether the line before was blank
        self.code = False  # whether the line before was indented code
        self.table = False

    def read(self, line: str, following: str) -> Line:
        quote = _QUOTE.match(line.removeprefix(BOM))
        start = len(line) - len(line.removeprefix(BOM)) + (quote.end() if quote else 0)
        body = line[start:].rstrip("\r\n")
        depth = line[:start].count(">")
        first, self.first = self.first, False
        if self._inside(body, depth) or self._begins(body, depth, following if first else ""):
            self.blank = self.table = False
            return Line((line,))
        if self._indented_code(body) or _DEFINITION.match(body):
            self.blank = False
            return Line((line,))
        self.table = "|" in body and (self.table or bool(_TABLE_RULE.match(following.strip("> \r\n"))))
        return _line(line, start, self.table or body.lstrip().startswith("|"))

    def _inside(self, body: str, depth: int) -> bool:
        """Return whether the line belongs to a block that began before."""
        if self.until is None:
            return False
        if depth < self.depth:  # the quote ended, and with it the block inside
            self.until = None
            return False
        text = body.strip()
        if self.paragraph and not text:
            self.until = None
            return False
        mark = self.until
        if mark[0] in "`~":
            closed = text.startswith(mark) and not text.strip(mark[0])
        elif mark in _FRONT:
            closed = body.rstrip() in _FRONT_ENDS[mark]
        else:
            closed = mark in text.lower()
        if closed:
            self.until = None
        return True

    def _begins(self, body: str, depth: int, following: str) -> bool:
        """Return whether the line begins a block that is kept whole; ``following`` is given on the first line alone."""
        self.paragraph = False
        text = body.strip().lower()
        fence = _FENCE.match(body)
        if fence and not self._too_deep(body):
            self.until, self.depth = fence[1], depth
            return True
        raw = _RAW.match(text)
        if raw:
            closing = "-->" if raw[1] else f"</{raw[2]}>"
            self.until, self.depth = (None if closing in text else closing), depth
            return raw[1] is None or self.until is not None or text.endswith(closing)
        comment = _OPEN_COMMENT.search(_INLINE.sub("", text))  # not one inside code
        if comment or _OPEN_TAG.match(body):
            self.until, self.depth, self.paragraph = "-->" if comment else ">", depth, True
            return True
        front = _FRONT.get(body.rstrip())
        if front and front.match(following):
            self.until, self.depth = body.rstrip(), depth
            return True
        return False

    def _too_deep(self, body: str) -> bool:
        return _indent(body) >= self.content + 4

    def _indented_code(self, body: str) -> bool:
        """Return whether the line is indented code, and update where the text of a list item begins."""
        if not body.strip():
            self.blank = True
            return False
        self.code = self._too_deep(body) and (self.blank or self.code)
        if self.code:
            return True
        item = _ITEM.match(body)
        if item:
            self.content = len(item[0].expandtabs(4))
        elif self.blank and _indent(body) < self.content:
            self.content = 0
        self.blank = False
        return False


def _line(line: str, start: int, table: bool) -> Line:
    """Divide a line of prose into its parts."""
    marks = _MARKS.match(line, start)
    begin = marks.end() if marks else start
    end = len(line)
    if "#" in line[start:begin]:
        tail = _HEADING_END.search(line, begin)
        end = tail.start() if tail else end
    parts = [line[:begin]]
    pieces = [(kept, text) for kept, text in _pieces(line[begin:end], table) if text]
    for place, (kept, text) in enumerate(pieces):
        before, inner, after = kept_around(text)
        if kept or not is_text(inner):
            parts[-1] += text
            continue
        if place > 0:
            rest = _LEADING.sub("", inner)
            before, inner = before + inner[: len(inner) - len(rest)], rest
        if place + 1 < len(pieces):
            rest = _TRAILING.sub("", inner)
            inner, after = rest, inner[len(rest) :] + after
        parts[-1] += before
        parts += [inner, after]
    parts[-1] += line[end:]
    escape: Callable[[int, str], str] = _escape_cell if table else _escape
    if len(pieces) > 1:
        escape = partial(_without_stop, parts[1::2], escape)
    return Line(tuple(parts), escape)


def _without_stop(sources: Sequence[str], escape: Callable[[int, str], str], number: int, text: str) -> str:
    """Remove the full stop that the model likes to put after a piece of a sentence, and escape the rest."""
    if text.endswith(".") and not text.endswith("..") and sources[number][-1] not in ".!?":
        text = text[:-1]
    return escape(number, text)


def _pieces(text: str, table: bool) -> Iterator[tuple[bool, str]]:
    """Iterate over pieces of a line and whether they are kept: matches of :data:`_INLINE` and bars of a table are."""
    last = 0
    for found in _INLINE.finditer(text):
        yield from _cells(text[last : found.start()], table)
        yield True, found[0]
        last = found.end()
    yield from _cells(text[last:], table)


def _cells(text: str, table: bool) -> Iterator[tuple[bool, str]]:
    for piece in re.split(r"((?<!\\)\|)", text) if table else [text]:
        if piece == "|" and table:
            yield True, piece
            continue
        closing, opening = _CLOSING.match(piece), _OPENING.search(piece)  # of emphasis around a kept neighbour
        begin, end = closing.end() if closing else 0, opening.start() if opening else len(piece)
        yield True, piece[:begin]
        yield from _emphasised(piece[begin:end])
        yield True, piece[end:]


def _emphasised(text: str) -> Iterator[tuple[bool, str]]:
    """Split prose at the emphasis of whole sentences; emphasis of words inside a sentence is removed."""
    start = 0  # of the text not yet split
    plain = ""
    for found in _EMPHASIS.finditer(text):
        before, inner = text[start : found.start()], found[2]
        begins = not (plain + before).strip() or bool(_SENTENCE_ENDS.search(plain + before))
        after = text[found.end() :]
        ends = not after.strip() or bool(_SENTENCE_ENDS.search(inner)) or after[0] in ":.!?"
        start = found.end()
        if begins and ends:
            yield False, plain + before
            yield True, found[1]
            yield from _emphasised(inner)
            yield True, found[1]
            plain = ""
        else:
            plain += before + "".join(piece for _, piece in _emphasised(f" {inner} "))[1:-1]
    yield False, plain + text[start:]


def _escape(number: int, text: str) -> str:
    """Escape a translation so that it stays prose; the first of its line could begin a block."""
    text = re.sub(r"(?<!\\)`", r"\\`", text)
    block = _BLOCK.match(text) if number == 0 else None
    return f"{text[: block.end()]}\\{text[block.end() :]}" if block else text


def _escape_cell(number: int, text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", _escape(number, text))


def _indent(body: str) -> int:
    wide = body.expandtabs(4)
    return len(wide) - len(wide.lstrip())
