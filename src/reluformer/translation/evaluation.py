"""Documents with references, and files of their translations."""

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from reluformer.data.documents import Document, Languages, name_in, name_key, read_documents
from reluformer.data.files import DataError, numbered_lines, plain_suffix, written_file
from reluformer.data.lines import MARK


def read_references(data: Sequence[str], languages: Languages, limit: int | None = None) -> list[Document]:
    """Read the documents of some inputs, or the first ``limit`` of them."""
    documents = (document for item in data for document in read_documents(item, languages))
    found = list(islice(documents, None if limit is None else min(limit, sys.maxsize)))
    if not any(sentence.strip() for document in found for sentence in document.source):
        raise DataError(f"{', '.join(data)}: no sentence to translate")
    return found


def read_hypotheses(path: Path, documents: Sequence[Document], target: str) -> list[list[str]]:
    """Read translations from a file, aligned with the sentences of the documents.

    Args:
        path: JSONL with a document per line, as ``--keep`` writes it; or text with a sentence per line, in which
            ``<d>`` or blank lines may separate documents.
        documents: Documents that were translated.
        target: Key of the translations in JSONL.
    """
    if plain_suffix(path) == ".jsonl":
        found = list(islice(_records(path, target), len(documents)))
        if len(found) < len(documents):
            raise DataError(f"{path} has {len(found)} documents, the data {len(documents)}")
        for (name, sentences), document in zip(found, documents, strict=True):
            if name is not None and str(name) != document.id:
                raise DataError(f"{path} has document {name!r} where the data has {document.id!r}")
            if len(sentences) != len(document.target):
                raise DataError(
                    f"{path}, document {document.id!r}: {len(sentences)} sentences, the data has {len(document.target)}"
                )
        return [sentences for _, sentences in found]
    lines = [line for _, line in numbered_lines(path) if line.strip() != MARK]
    wanted = sum(len(document.target) for document in documents)
    for kept in (lines, [line for line in lines if line.strip()]):
        if len(kept) == wanted:
            rest = iter(kept)
            return [list(islice(rest, len(document.target))) for document in documents]
    raise DataError(f"{path} has {len(lines)} lines, the data has {wanted} sentences")


def _records(path: Path, target: str) -> Iterator[tuple[Any, list[str]]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            sentences = record[target]
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}, line {number}: takes an object with a list of sentences as {target!r}") from None
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise DataError(f"{path}, line {number}: {target!r} is no list of strings")
        yield name_in(record), sentences


def keep(
    path: Path, documents: Sequence[Document], languages: Languages, systems: Sequence[Sequence[Sequence[str]]]
) -> None:
    """Write translations with their sources and references, to be read by people and scored again.

    The key of the first system is the target language, where :func:`read_hypotheses` finds it; a second is ``compare``.
    """
    with written_file(path) as file:
        for document, *texts in zip(documents, *systems, strict=True):
            record = {name_key(languages): document.id, languages.source: document.source, languages.target: texts[0]}
            record |= {"reference": document.target} | dict(zip(["compare"], texts[1:], strict=False))
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
