"""Parallel text files."""

from pathlib import Path

import pytest

from reluformer.data.documents import Document
from reluformer.data.files import DataError
from reluformer.data.lines import read_lines


def read(folder: Path, source: str, target: str) -> list[Document]:
    (folder / "x.en").write_bytes(source.encode())
    (folder / "x.de").write_bytes(target.encode())
    return list(read_lines(folder / "x.en", folder / "x.de"))


@pytest.mark.parametrize("mark", ["<d>\n", "\n", "  \n", "<d>\r\n", "<d>\n<d>\n"])
def test_documents_end_where_both_sides_say_so(tmp_path: Path, mark: str) -> None:
    assert read(tmp_path, f"a\nb\n{mark}c", f"A\r\nB\r\n{mark}C\r\n") == [
        Document("x.en:1", ["a", "b"], ["A", "B"]),
        Document("x.en:2", ["c"], ["C"]),
    ]


def test_one_document_with_odd_characters(tmp_path: Path) -> None:
    odd = " a\rb\u2028c\x85d\x0c😀"  # only \n ends a line
    assert read(tmp_path, f"\ufeff{odd}\nb\n", f"{odd}\nB") == [Document("x.en:1", [odd, "b"], [odd, "B"])]


def test_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, "", "") == read(tmp_path, "\n\n", "\n\n") == []


def test_a_missing_translation_keeps_its_place(tmp_path: Path) -> None:
    (document,) = read(tmp_path, "a\n\nc\n", "A\nB\nC\n")
    assert document.source == ["a", "", "c"]
    marked = read(tmp_path, "a\n<d>\n\nc\n", "A\n<d>\nB\nC\n")
    assert [d.source for d in marked] == [["a"], ["", "c"]]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("a\nb\n", "A\n", "x.de has 1 lines, .*x.en has more: sides of different lengths in document 1"),
        ("a\n<d>\nb\n<d>\n", "A\n<d>\nB\nC\n<d>\n", "x.en, line 4: <d>, not so in .*x.de: .* in document 2"),
        ("a\n\nb\n\nc\n", "A\n\nB\nC\n\n", "x.en, line 4: blank on this side alone.* in document 2; .* put <d>"),
        ("\nb\n\nc\n", "A\nB\n\nC\n", "x.en, line 1: blank on this side alone"),
    ],
)
def test_sides_that_differ(tmp_path: Path, source: str, target: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(tmp_path, source, target)


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "x.en").write_bytes(b"a\nb\n")
    (tmp_path / "x.de").write_bytes("A\nä\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"x\.de, line 2: not UTF-8"):
        list(read_lines(tmp_path / "x.en", tmp_path / "x.de"))
