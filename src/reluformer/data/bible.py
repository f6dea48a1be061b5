"""The embedded corpus: the Bible in English and Spanish, where a chapter is a document and a verse a sentence.

Small, document-shaped and in the public domain, so that everything here runs without a download. ``BIBLE.md`` beside
this file says where it comes from and what was cleaned.
"""

import hashlib
import json
import lzma
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypedDict

BIBLE = "bible:"  # prefix that marks an input as a part of this corpus
# Whole books, from those that share the fewest phrases with the rest: gospels, chronicles and psalms repeat each other.
DEV = ("Ruth", "Ecclesiastes", "Lamentations", "Jonah", "James")
TEST = ("Esther", "Daniel", "Nahum", "1 Timothy")
PARTS = ("train", "dev", "test", "all")


class Chapter(TypedDict):
    """A document: verses of the World English Bible and of the Reina-Valera 1909, aligned one to one."""

    id: str
    en: list[str]
    es: list[str]


def bible_documents(part: str = "all") -> Iterator[Chapter]:
    """Iterate over the chapters of a part of the corpus, in the order of the Bible.

    Args:
        part: ``train``, ``dev``, ``test`` or ``all``.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {', '.join(PARTS)}, got {part!r}")
    return (chapter for chapter in _chapters() if part in ("all", part_of(chapter["id"])))


def part_of(chapter: str) -> str:
    """Return the part that a chapter such as ``Ruth 1`` belongs to, which is that of its book."""
    book = chapter.rpartition(" ")[0]
    return "dev" if book in DEV else "test" if book in TEST else "train"


def fingerprint() -> str:
    """Return a hash of the corpus, which changes whenever its content does."""
    return hashlib.sha256(_packed().read_bytes()).hexdigest()


def _packed() -> Traversable:
    return files("reluformer.data").joinpath("bible.jsonl.xz")


def _chapters() -> Iterator[Chapter]:
    with _packed().open("rb") as file, lzma.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
