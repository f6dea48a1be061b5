r"""Documents: sentences in two languages, side by side, read as a stream from files or data sets.

An input is one of

- ``corpus.jsonl``: a document per line, ``{"id": "...", "en": ["sentence", ...], "de": ["Satz", ...]}``;
- ``corpus.en,corpus.de``: a sentence per line, ``<d>`` or a blank line between documents on both sides;
- ``corpus.tmx``: a translation memory;
- ``hf:NAME``: a Hugging Face data set, by name or folder (see :mod:`reluformer.data.hub`);
- ``bible:PART``: the embedded corpus, where PART is train, dev, test or all (see :mod:`reluformer.data.bible`).

Files may be compressed, with ``.gz`` or ``.xz`` at the end of their names.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reluformer.data.bible import BIBLE, bible_documents
from reluformer.data.files import DataError, check_name, check_readable, check_writable, numbered_lines, plain_suffix

HUB = "hf:"
TAKES = "takes a .jsonl or .tmx file, two text files as source,target, hf:NAME or bible:PART"


@dataclass(frozen=True)
class Document:
    """Consecutive sentences and their translations.

    Attributes:
        id: Name of the document in the corpus.
        source: Sentences in the source language.
        target: Their translations, one to one.
        first: Number of its first sentence, where this is a part of the document of that name.
    """

    id: str
    source: list[str]
    target: list[str]
    first: int = 0


@dataclass(frozen=True)
class Languages:
    """The languages of the two sides, as the inputs name them."""

    source: str
    target: str

    @classmethod
    def parse(cls, text: str) -> "Languages":
        """Parse two names joined by a hyphen, ``en-de``; a region takes an underscore, ``pt_BR-en``."""
        parts = text.split("-")
        if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
            raise DataError(f"takes two languages such as en-de or pt_BR-en, got {text!r}")
        return cls(*parts)


def read_documents(item: str, languages: Languages) -> Iterator[Document]:
    """Read the documents of one input; unusable files are refused at once, not when the first document is read."""
    if item.startswith(BIBLE):
        return read_bible(item.removeprefix(BIBLE), languages)
    paths = input_files(item)
    if not paths:
        from reluformer.data.hub import read_hub

        return read_hub(item.removeprefix(HUB), languages)
    if len(paths) == 2:
        from reluformer.data.lines import read_lines

        return read_lines(paths[0], paths[1])
    if plain_suffix(paths[0]) == ".tmx":
        from reluformer.data.tmx import read_tmx

        return read_tmx(paths[0], languages)
    return read_jsonl(paths[0], languages)


def input_files(item: str) -> list[Path]:
    """Return the files of one input, which must be readable: one, two, or none if it has no file of its own."""
    if item.startswith((HUB, BIBLE)):
        return []
    names = item.split(",")
    paths = [Path(item)] if len(names) != 2 or Path(item).exists() else [Path(name) for name in names]
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path} is a folder: {TAKES}")
        check_readable(path)
        check_name(path)
    if len(paths) == 1 and plain_suffix(paths[0]) not in (".jsonl", ".tmx"):
        raise DataError(f"cannot tell what {item} holds: {TAKES}")
    return paths


def check_output(path: Path, inputs: Iterable[str], others: Iterable[Path] = ()) -> None:
    """Refuse an output file that is an input or cannot be written, before work that may take hours.

    Args:
        path: File to write.
        inputs: Inputs that are read, as :func:`read_documents` takes them.
        others: Other files that must not be overwritten.
    """
    if str(path) == "-":
        raise DataError("takes a file, - is standard output only for translations")
    if path.is_dir():
        raise DataError(f"takes a file, {path} is a folder")
    place = path.resolve()
    if place in {file.resolve() for file in [*others, *(file for item in inputs for file in input_files(item))]}:
        raise DataError(f"{path} is an input: takes another file")
    check_writable(path)


def read_jsonl(path: Path, languages: Languages) -> Iterator[Document]:
    """Read the documents of a JSONL file; one without an id is named after its line."""
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: takes an object with {_keys(languages)}, got {type(record).__name__}")
        yield document_of(record, languages, where, default_id=f"{path.name}:{number}")


def to_line(document: Document, languages: Languages) -> bytes:
    """Return a document as a line of JSONL, as :func:`read_jsonl` reads it."""
    sides = {languages.source: document.source, languages.target: document.target}
    first = {"first": document.first} if document.first else {}
    return json.dumps({name_key(languages): document.id, **first, **sides}, ensure_ascii=False).encode() + b"\n"


def name_key(languages: Languages) -> str:
    """Return the key of a document's name in a record: ``id``, unless that is one of the languages (Indonesian)."""
    return "document" if "id" in (languages.source, languages.target) else "id"


def name_in(record: dict[str, Any]) -> Any:
    """Return the name of a record's document, or None."""
    return record.get("document") if isinstance(record.get("id"), list) else record.get("id")


def read_bible(part: str, languages: Languages) -> Iterator[Document]:
    """Read chapters of the embedded corpus as documents."""
    try:
        chapters = bible_documents(part)
    except ValueError as error:
        raise DataError(f"{BIBLE}{part}: {error}") from None
    return (document_of({**chapter}, languages, f"{BIBLE}{part}", chapter["id"]) for chapter in chapters)


def document_of(record: dict[str, Any], languages: Languages, where: str, default_id: str) -> Document:
    """Build a document from the fields of a record; ``where`` begins the message of an error about them."""
    sides = []
    for language in (languages.source, languages.target):
        side = record.get(language)
        if not isinstance(side, list) or not all(isinstance(sentence, str) for sentence in side):
            got = f"has {', '.join(record) or 'nothing'}" if side is None else f"{language!r} is no list of strings"
            raise DataError(f"{where}: takes lists of sentences as {_keys(languages)}, {got}")
        sides.append(side)
    name = str(default_id if name_in(record) is None else name_in(record))
    check_text([name, *sides[0], *sides[1]], where)
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{where}: document {name!r} has {len(sides[0])} sentences {languages.source} "
            f"and {len(sides[1])} {languages.target}"
        )
    first = record.get("first")  # a number if we wrote it; anything else is an unrelated field
    return Document(name, sides[0], sides[1], first if type(first) is int and first >= 0 else 0)


def check_text(sentences: Iterable[str], where: str) -> None:
    """Refuse half a surrogate pair, which JSON can hold but no encoding can write."""
    try:
        "".join(sentences).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: not Unicode text: {error.reason}") from None


def _keys(languages: Languages) -> str:
    return f"{languages.source!r} and {languages.target!r}"
