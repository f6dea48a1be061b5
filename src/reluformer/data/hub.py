"""Hugging Face data sets, by name or folder: ``hf:NAME?option=value&...``.

Options: ``config``, ``split`` (by default train), ``revision``, and ``document``, the column that names a row's
document. A row is a document, ``{"id": ..., "en": [...], "de": [...]}``, or a pair of sentences, as columns or inside
``translation``. Consecutive pairs that name the same document form one; without such a column every pair is a document
of its own, since neighbours need not belong together.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from reluformer.data.documents import Document, Languages, check_text, document_of
from reluformer.data.files import DataError

OPTIONS = ("config", "document", "revision", "split")


def read_hub(item: str, languages: Languages) -> Iterator[Document]:
    """Read the documents of a data set; ``item`` is what follows ``hf:``."""
    name, options = _parse(item)
    column = options.get("document")
    rows = load(item)
    if column is not None and column not in rows.column_names:
        raise DataError(f"hf:{name} has no column {column!r}, it has {', '.join(rows.column_names)}")
    numbered = ((number, {**row, **(row.get("translation") or {})}) for number, row in enumerate(rows))
    for key, group in groupby(numbered, key=lambda x: (x[0],) if column is None else x[1][column]):
        records = list(group)
        number, first = records[0]
        where = f"hf:{name}, row {number}"
        default_id = str(number if column is None else key)
        if isinstance(first.get(languages.source), list):
            for number, record in records:
                yield document_of(record, languages, f"hf:{name}, row {number}", default_id=default_id)
            continue
        for language in (languages.source, languages.target):
            if not all(isinstance(record.get(language), str | None) and language in record for _, record in records):
                raise DataError(f"{where}: takes sentences as {language!r}, has {', '.join(first)}")
        source, target = (
            [record[language] or "" for _, record in records] for language in (languages.source, languages.target)
        )
        check_text([*source, *target], where)
        yield Document(default_id, source, target)


def load(item: str) -> Any:
    """Load the data set itself, whose rows stay on disk until they are read."""
    try:
        import datasets  # type: ignore[import-untyped,import-not-found]
        from huggingface_hub.utils import logging
    except ModuleNotFoundError as error:
        raise DataError(f'hf:{item} needs datasets: pip install "reluformer[datasets]"') from error
    name, options = _parse(item)
    split = options.get("split", "train")
    datasets.disable_progress_bars()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # what goes wrong is one line, and alone
    try:
        if (Path(name) / "state.json").exists():
            return datasets.load_from_disk(name)
        if (Path(name) / "dataset_dict.json").exists():
            return datasets.load_from_disk(name)[split]
        return datasets.load_dataset(name, options.get("config"), split=split, revision=options.get("revision"))
    except Exception as error:  # datasets raises many kinds
        reason = " ".join(str(error).split())
        raise DataError(f"cannot load hf:{item}: {type(error).__name__}: {reason[:300]}") from None


def fingerprint(item: str) -> str:
    """Return the fingerprint of a data set, which changes whenever its content does."""
    return str(load(item)._fingerprint)


def _parse(item: str) -> tuple[str, dict[str, str]]:
    name, _, query = item.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    for option in options:
        if option not in OPTIONS:
            raise DataError(f"hf:{name} takes the options {', '.join(OPTIONS)}, got {option!r}")
    return name, options
