"""One line for each line, and everything around the text as it was."""

import io
import json
import random
from pathlib import Path

import pytest

from reluformer.data.files import DataError
from reluformer.translation import formats
from reluformer.translation.formats import decoded_lines, format_of, is_text, read_pages

PIECES = [
    "In the beginning", "God said: 😀", "\n", "\n", "\r\n", "\r", "\x0c", "\u2028", "\x85", "\x0b", "\x1c", "\u00a0",
    " ", "\t", "    ", "# ", "- ", "> ", "1. ", "| a | b |", "|---|---|", "```", "~~~", "$$", "---", "\ufeff", "<d>",
    "[x](http://y.z/a_b)", "![pic](p.png)", "`code`", "**bold**", "<b>", "<!--", "-->", "<pre>", "起初", "...", "\\",
]  # fmt: skip


def made_text(seed: int) -> str:
    draw = random.Random(seed)
    return draw.choice(["", "\ufeff"]) + "".join(draw.choices(PIECES, k=draw.randrange(60)))


def read(text: str, form: str, source: str | None = None, target: str = "de") -> list[formats.Page]:
    return list(read_pages(decoded_lines(io.BytesIO(text.encode()), "x"), form, "x", source, target))


@pytest.mark.parametrize("form", ["text", "markdown"])
@pytest.mark.parametrize("seed", range(150))
def test_line_for_line(seed: int, form: str) -> None:
    text = made_text(seed)
    pages = read(text, form)
    copied = "".join(page.render(page.sentences) for page in pages)
    if form == "text":
        assert copied == text
    # Markdown may have an escape more, and emphasis less.
    assert copied.replace("\\", "").replace("*", "") == text.replace("\\", "").replace("*", "")
    assert copied.count("\n") == text.count("\n")
    other = "".join(page.render(["ein Wort"] * len(page.sentences)) for page in pages)
    ours, theirs = other.split("\n"), text.split("\n")
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.endswith("\r") == b.endswith("\r")
        assert bool(a.strip()) == bool(b.strip())  # blank lines are blank, and no others
    assert all(any(map(str.isalnum, x)) and x == x.strip() for page in pages for x in page.sentences)


def documents_of(text: str) -> list[list[str]]:
    return [page.sentences for page in read(text, "text") if page.sentences]


def test_documents_of_text() -> None:
    assert documents_of("a\nb\n\nc\n\n\nd") == [["a", "b"], ["c"], ["d"]]
    assert documents_of("a\nb\n<d>\nc\n\nd\n<d>\n") == [["a", "b"], ["c", "d"]]
    assert documents_of("\ufeff a\r\n***\r\n  b\x0c\r\n") == [["a", "b"]]
    assert documents_of("") == []
    assert len(read("", "text")) > 0  # an empty file is written, too


def test_a_file_without_an_end_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_PAGE", 3)
    assert documents_of("a\nb\nc\nd\n") == [["a", "b", "c"], ["d"]]
    monkeypatch.undo()
    many = io.BytesIO(b"line\n" * 3 * formats.LONGEST_PAGE)
    pages = read_pages(decoded_lines(many, "x"), "text", "x", None, "de")
    assert len(next(pages).sentences) == formats.LONGEST_PAGE
    assert many.tell() == 5 * formats.LONGEST_PAGE


def test_jsonl() -> None:
    text = '\ufeff{"id": 7, "en": ["a", "", "b\\n\u2028"], "note": {"x": "ü"}}\r\n\r\n{"en": [], "de": ["old"]}'
    pages = read(text, "jsonl", "en")
    assert [page.sentences for page in pages if page.sentences] == [["a", "", "b\n\u2028"]]
    found = "".join(page.render([x.upper() for x in page.sentences]) for page in pages)
    lines = found.removeprefix("\ufeff").split("\r\n")
    assert found.startswith("\ufeff{")
    assert lines[1] == ""
    assert json.loads(lines[0]) == {
        "id": 7, "en": ["a", "", "b\n\u2028"], "note": {"x": "ü"}, "de": ["A", "", "B\n\u2028"]
    }  # fmt: skip
    assert "ü" in lines[0]
    assert json.loads(lines[2]) == {"en": [], "de": []}
    assert read('{"id": "1", "fr": ["x"], "de": ["y"]}', "jsonl")[0].sentences == ["x"]


@pytest.mark.parametrize(
    ("line", "source", "words"),
    [
        ('{"en": ["a"]}\n{', "en", "x, line 2: not JSON"),
        ("[1]", "en", "x, line 1: takes an object"),
        ('{"fr": ["a"], "n": 3}', "en", "takes a list of sentences as 'en', has fr"),
        ('{"en": "a"}', "en", "takes a list of sentences as 'en', got one string"),
        ('{"en": ["a", 1]}', "en", "has none"),
        ('{"en": ["a"], "fr": ["b"]}', None, "has the lists en, fr: say which to translate with --source"),
        ('{"de": ["a"], "en": "b"}', None, "has no list of sentences to translate; 'de' is for translations"),
        ('{"en": ["\\ud83d"]}', "en", "x, line 1: not Unicode text"),
    ],
)
def test_wrong_jsonl(line: str, source: str | None, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(line, "jsonl", source)


def test_not_utf8() -> None:
    with pytest.raises(DataError, match=r"^y\.txt, line 2: not UTF-8, byte 8 of the file: takes text in UTF-8$"):
        list(decoded_lines(io.BytesIO("äbc\n".encode() + b"zz\xff\xfe\n"), "y.txt"))


def test_a_zero_byte_is_no_text() -> None:
    with pytest.raises(DataError, match=r"^y, line 2: a zero byte, byte 8 of the file: takes text in UTF-8$"):
        list(decoded_lines(io.BytesIO("äbc\nzz\0\0\n".encode()), "y"))


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = io.BytesIO(b"a\nb" + bytes(10 * formats.BLOCK))
    with pytest.raises(DataError, match=r"^zeros, line 2: a zero byte, byte 4 of the file"):
        list(decoded_lines(zeros, "zeros"))
    assert zeros.tell() < 2 * formats.BLOCK  # it did not look for the end
    monkeypatch.setattr(formats, "BLOCK", 8)
    monkeypatch.setattr(formats, "LONGEST_LINE", 20)
    assert list(decoded_lines(io.BytesIO("ä".encode() * 10), "x")) == ["ä" * 10]
    with pytest.raises(DataError, match=r"^x, line 2: longer than 20 bytes: takes text in lines$"):
        list(decoded_lines(io.BytesIO(b"\n" + "ä".encode() * 1000), "x"))


def test_format_of() -> None:
    names = {"a.md": "markdown", "a.MARKDOWN": "markdown", "a.jsonl.gz": "jsonl", "a.txt": "text", "a": "text"}
    assert {name: format_of(Path(name), "auto") for name in names} == names
    assert format_of(None, "auto") == "text"
    assert format_of(Path("a.txt"), "markdown") == format_of(Path("a.csv"), "md") == "markdown"
    with pytest.raises(DataError, match=r"^a\.csv\.gz: what gives a \.csv file its form would be lost"):
        format_of(Path("a.csv.gz"), "auto")
    with pytest.raises(DataError, match=r"^a\.tmx: what gives a \.tmx file its form would be lost"):
        format_of(Path("a.tmx"), "auto")  # XML, which reluformer data reads
    with pytest.raises(DataError, match="format takes auto, text, markdown, jsonl, got 'html'"):
        format_of(None, "html")


def test_what_has_no_letter_is_no_text() -> None:
    assert not any(map(is_text, ["2023", "3.14159", "00:00:05,000 --> 00:00:07,000", "...", "\N{GRINNING FACE}", ""]))
    assert all(map(is_text, ["a", "2nd", "\u65e5", "1 \u03b1"]))


@pytest.mark.parametrize("line", ['{"en": ["a"], "n": 1e400}', "[" * 100_000])
def test_records_that_cannot_be_written_again_are_refused(line: str) -> None:
    with pytest.raises(DataError, match="file, line 1: not JSON"):
        list(read_pages([line], "jsonl", "file", None, "de"))
