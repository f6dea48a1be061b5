"""The corpus of a study: a folder of ``reluformer data prepare``, or the embedded corpus, prepared here once."""

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from reluformer.data.bible import bible_documents
from reluformer.data.cleaning import Cleaning
from reluformer.data.dataset import read_manifest
from reluformer.data.documents import Languages, input_files
from reluformer.data.files import DataError, hash_of, hash_of_file, written_file
from reluformer.data.prepare import Plan, prepare
from reluformer.data.workers import refuse_in_workers
from reluformer.study.locks import locked
from reluformer.study.scales import Scale
from reluformer.translation.evaluation import read_references

EMBEDDED = "Bible, English to Spanish"
USUAL = {"source": "en", "overlong": Plan.overlong, "cleaning": asdict(Cleaning())}


@dataclass(frozen=True)
class Corpus:
    """Prepared data and a test set.

    Attributes:
        folder: Folder that ``reluformer data prepare`` wrote.
        name: Name in reports.
        key: Hash of the data, which changes when the data does, but not when the folder moves.
        test: Test documents, as ``reluformer evaluate`` takes them; empty for the validation data.
    """

    folder: str
    name: str
    key: str
    test: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, serialisable as JSON."""
        return asdict(self)

    @property
    def languages(self) -> Languages:
        """Source and target language."""
        return Languages(*read_manifest(self.folder)["languages"])


def open_corpus(folder: Path, test: str = "") -> Corpus:
    """Open a corpus that the user prepared, and read the test set, so that errors in it show before any training."""
    corpus = _corpus(folder, folder.name, test)
    if test:
        read_references([test], corpus.languages)
    return corpus


def embedded_corpus(out: Path, scale: Scale) -> Corpus:
    """Return as much of the Bible as the scale takes, prepared below ``out`` unless it is there already."""
    refuse_in_workers()  # before there is a lock to wait for
    place = out / "data" / scale.name
    with locked(out / "data" / f"{scale.name}.lock"):
        train, valid = "bible:train", "bible:dev"
        if scale.chapters is not None:
            train = _write(place.with_suffix(".train.jsonl"), "train", scale.chapters)
            valid = _write(place.with_suffix(".valid.jsonl"), "dev", max(1, scale.chapters // 10))
        lengths = (0, *scale.lengths)
        prepare(Plan((train,), Languages("en", "es"), (valid,), vocab=scale.vocab, lengths=lengths), place)
    return _corpus(place, EMBEDDED, "bible:test")


def _corpus(folder: Path, name: str, test: str) -> Corpus:
    manifest = read_manifest(folder)
    if "valid" not in manifest["splits"]:
        raise DataError(f"{folder} has no validation data: prepare it with --valid")
    content = [shard["content"] for split in manifest["splits"].values() for shard in split["shards"]]
    tested = [hash_of_file(path) for path in input_files(test)] if test else []
    parts = [content, manifest["tokenizer"]["sha256"], tested or test]
    # Settings that the first cells had in common are left out, so that those keep their names.
    settings = manifest["settings"] | {"source": manifest["languages"][0]}
    if unusual := {key: settings[key] for key, usual in USUAL.items() if settings[key] != usual}:
        parts.append(unusual)
    return Corpus(str(folder), name, hash_of(parts), test)


def _write(path: Path, part: str, count: int) -> str:
    """Write chapters spread over a part of the Bible to a file, and return its path."""
    chapters = list(bible_documents(part))
    with written_file(path) as file:
        for chapter in islice(chapters, 0, None, max(1, len(chapters) // count)):
            file.write(json.dumps(chapter, ensure_ascii=False).encode() + b"\n")
    return str(path)
