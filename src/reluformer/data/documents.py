r"""Documents: sentences of two languages, side by side, read as a stream from whatever holds them.

An input is one of

- ``corpus.jsonl``: a document per line, ``{"id": "...", "en": ["sentence", ...], "de": ["Satz", ...]}``;
- ``corpus.en,corpus.de``: a sentence per line, ``<d>`` or a blank line between documents on both sides;
- ``corpus.tmx``: a translation memory;
- ``hf:NAME``: a Hugging Face data set, by name or folder (see :mod:`reluformer.data.hub`);
- ``bible:PART``: the embedded corpus, of which PART is train, dev, test or all (see :mod:`reluformer.data.bible`);

files plain or with ``.gz`` or ``.xz`` behind their names.
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
        id: Its name in the corpus.
        source: Sentences.
        target: Their translations, one for one.
        first: Number of its first sentence, where it is a part of the document of that name.
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
        """Two names with a hyphen: ``en-de``; a region takes an underscore: ``pt_BR-en``."""
        parts = text.split("-")
        if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
            raise DataError(f"takes two languages such as en-de or pt_BR-en, got {text!r}")
        return cls(*parts)


def read_documents(item: str, languages: Languages) -> Iterator[Document]:
    """Read one input; what can be known to be wrong before the first document is an error at once."""
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
    """The files of one input, which must exist: one, two, or none if it has no file of its own."""
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
    """Refuse a file to write that is an input, or that cannot be one: before the work, which may take hours.

    Args:
        path: The file.
        inputs: What is read, as :func:`read_documents` takes it.
        others: More files that must stay.
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
    """Documents of a JSONL file; one without an id is called after its line."""
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
    """A document as a line of JSONL, as :func:`read_jsonl` reads it."""
    sides = {languages.source: document.source, languages.target: document.target}
    first = {"first": document.first} if document.first else {}
    return json.dumps({name_key(languages): document.id, **first, **sides}, ensure_ascii=False).encode() + b"\n"


def name_key(languages: Languages) -> str:
    """What a record calls the name of its document: ``id``, unless that is a language, Indonesian."""
    return "document" if "id" in (languages.source, languages.target) else "id"


def name_in(record: dict[str, Any]) -> Any:
    """The name of a record's document, or None."""
    return record.get("document") if isinstance(record.get("id"), list) else record.get("id")


def read_bible(part: str, languages: Languages) -> Iterator[Document]:
    """Chapters of the embedded corpus."""
    try:
        chapters = bible_documents(part)
    except ValueError as error:
        raise DataError(f"{BIBLE}{part}: {error}") from None
    return (document_of({**chapter}, languages, f"{BIBLE}{part}", chapter["id"]) for chapter in chapters)


def document_of(record: dict[str, Any], languages: Languages, where: str, default_id: str) -> Document:
    """A document from its fields; ``where`` begins the message if they are none."""
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
    first = record.get("first")  # ours is a number; any other is a field of somebody else's
    return Document(name, sides[0], sides[1], first if type(first) is int and first >= 0 else 0)


def check_text(sentences: Iterable[str], where: str) -> None:
    """Half a surrogate pair, which JSON can write, is no text: nothing can encode it."""
    try:
        "".join(sentences).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: not Unicode text: {error.reason}") from None


def _keys(languages: Languages) -> str:
    return f"{languages.source!r} and {languages.target!r}"
