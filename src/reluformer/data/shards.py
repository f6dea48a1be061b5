"""A shard: one input as tokens, in a folder of arrays.

======================  ========================================================================================
``source.tokens.bin``   tokens of all sentences, each followed by ``<sep>``; uint16, or uint32 for a large vocabulary
``source.starts.bin``   where every sentence begins in the tokens, and where the last ends; int64
``target.*.bin``        the same for the target
``documents.bin``       a :data:`DOCUMENT` for every document, and one more that marks the end
``names.bin``           the names of all documents, concatenated; UTF-8
``chunks-512-cut.bin``  the packing to one length, :data:`reluformer.data.packing.CHUNK`; its counts beside it as JSON
``shard.json``          counts, the dtype of the tokens, size and SHA-256 of every file; written last
======================  ========================================================================================
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from reluformer.data.arrays import INDEX, ArrayFile, open_array, starts_of
from reluformer.data.documents import Document, Languages, document_of
from reluformer.data.files import hash_of_file, read_json, write_json, written_file, written_folder
from reluformer.data.packing import CHUNK, Overlong, pack
from reluformer.data.tokenizer import SEP_ID, encode, load_encoder

SIDES = ("source", "target")
# Index of a document's first sentence in the shard, number of that sentence in its document, and where its name begins.
DOCUMENT = np.dtype([("sentence", "<i8"), ("first", "<i8"), ("name", "<i8")])
DOCUMENTS_AT_ONCE = 10_000


@dataclass(frozen=True)
class EncodedBatch:
    """Some documents as tokens: per side one array of tokens, and the length of every sentence with its ``<sep>``."""

    tokens: dict[str, np.ndarray]
    lengths: dict[str, np.ndarray]
    documents: list[tuple[int, int, bytes]]  # number of sentences, number of the first, name


def token_type(vocabulary: int) -> np.dtype:
    """Return the smallest dtype that holds every token of a vocabulary."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class BatchEncoder:
    """Encodes lines of JSON as tokens; it can be sent to other processes, which open the tokeniser themselves."""

    tokenizer: Path
    languages: Languages
    dtype: np.dtype

    def __call__(self, lines: list[bytes]) -> EncodedBatch:
        """Encode documents, one per line."""
        encoder = _encoder(self.tokenizer, (self.tokenizer / "tokenizer.json").stat().st_mtime_ns)
        documents: list[Document] = [document_of(json.loads(line), self.languages, "clean text", "") for line in lines]
        tokens, lengths = {}, {}
        for side in SIDES:
            sentences = encode(encoder, [text for document in documents for text in getattr(document, side)])
            for ids in sentences:
                ids.append(SEP_ID)
            lengths[side] = np.fromiter(map(len, sentences), INDEX, len(sentences))
            tokens[side] = np.fromiter(chain.from_iterable(sentences), self.dtype, int(lengths[side].sum()))
        about = [(len(document.source), document.first, document.id.encode()) for document in documents]
        return EncodedBatch(tokens, lengths, about)


@functools.lru_cache(1)
def _encoder(folder: Path, changed: int) -> Any:
    """Load the tokeniser of a folder, cached until the file changes."""
    return load_encoder(folder)


def write_shard(folder: Path, batches: Iterable[EncodedBatch], dtype: np.dtype) -> None:
    """Write a shard, whole or not at all."""
    totals = dict.fromkeys(("documents", "sentences", "name", *SIDES), 0)
    with written_folder(folder) as place, contextlib.ExitStack() as stack:

        def array(name: str, dtype: np.dtype) -> ArrayFile:
            return stack.enter_context(ArrayFile(place / f"{name}.bin", dtype))

        tokens = {side: array(f"{side}.tokens", dtype) for side in SIDES}
        starts = {side: array(f"{side}.starts", INDEX) for side in SIDES}
        documents, names = array("documents", DOCUMENT), array("names", np.dtype("u1"))
        for side in SIDES:
            starts[side].append(np.zeros(1, INDEX))
        for batch in batches:
            for side in SIDES:
                tokens[side].append(batch.tokens[side])
                ends = starts_of(batch.lengths[side], totals[side])
                starts[side].append(ends)
                totals[side] = int(ends[-1]) if len(ends) else totals[side]
            rows = []
            for sentences, first, name in batch.documents:
                rows.append((totals["sentences"], first, totals["name"]))
                totals["sentences"] += sentences
                totals["name"] += len(name)
            totals["documents"] += len(rows)
            documents.append(np.array(rows, DOCUMENT))
            names.append(np.frombuffer(b"".join(name for _, _, name in batch.documents), "u1"))
        documents.append(np.array([(totals["sentences"], 0, totals["name"])], DOCUMENT))
        stack.close()
        files = {path.name: _about(path) for path in sorted(place.glob("*.bin"))}
        counts = {
            "documents": totals["documents"],
            "sentences": totals["sentences"],
            "source_tokens": totals["source"] - totals["sentences"],  # without the <sep> behind each
            "target_tokens": totals["target"] - totals["sentences"],
        }
        write_json(place / "shard.json", {"dtype": dtype.str, **counts, "files": files})


def is_whole(folder: Path) -> bool:
    """Return whether a shard exists with all its files."""
    about = read_json(folder / "shard.json")
    return about is not None and not damaged(folder, about["files"])


def damaged(folder: Path, files: dict[str, dict[str, Any]]) -> list[Path]:
    """Return the files that are missing or have another size than recorded."""
    sizes = {folder / name: about["bytes"] for name, about in files.items()}
    return [path for path, size in sizes.items() if not path.exists() or path.stat().st_size != size]


def pack_shard(folder: Path, length: int, overlong: Overlong) -> dict[str, Any]:
    """Write the packing to one length beside the tokens, unless it exists, and return its counts, size and hash."""
    path = folder / f"{chunk_name(length, overlong)}.bin"
    note = path.with_suffix(".json")
    known = read_json(note)
    if known is not None and not damaged(folder, {path.name: known}):
        return dict(known)
    source, target = (open_array(folder / f"{side}.starts.bin", INDEX) for side in SIDES)
    documents = open_array(folder / "documents.bin", DOCUMENT)
    count = too_long = longest = 0
    with written_file(path) as file:
        for begin in range(0, len(documents) - 1, DOCUMENTS_AT_ONCE):
            sentences = documents["sentence"][begin : begin + DOCUMENTS_AT_ONCE + 1]
            first, last = int(sentences[0]), int(sentences[-1])
            part = slice(first, last + 1)
            chunks, over = pack(source[part], target[part], sentences - first, length, overlong)
            chunks["first"] += first
            file.write(np.ascontiguousarray(chunks, CHUNK).data)
            count, too_long = count + len(chunks), too_long + over
            longest = max([longest, *(int(chunks[side].max()) for side in SIDES if len(chunks))])
    about = {"chunks": count, "overlong": too_long, "longest": longest, **_about(path)}
    write_json(note, about)
    return about


def chunk_name(length: int, overlong: Overlong) -> str:
    """Return the file name of a packing, without a suffix."""
    return f"chunks-{length}-{overlong}"


def line_batches(path: Path, size: int, watch: Callable[[int], None]) -> Iterator[list[bytes]]:
    """Iterate over the lines of a file, about ``size`` bytes at a time; ``watch`` is told how many bytes are read."""
    with path.open("rb") as file:
        while batch := file.readlines(size):
            yield batch
            watch(file.tell())


def _about(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": hash_of_file(path)}
