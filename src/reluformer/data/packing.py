"""Packing: as many consecutive sentences of a document as fit a length make one example.

On both sides, sentences are separated by ``<sep>`` and the last is followed by ``</s>``, so the number of sentences is
the number of separators plus 1. On disk every sentence is followed by ``<sep>``, and a chunk is a slice of the tokens
whose last one becomes ``</s>``: however many lengths a corpus is packed to, its tokens are stored once.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from reluformer.data.files import DataError
from reluformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SEP_ID

Overlong = Literal["cut", "drop"]

# A chunk: index of its first sentence, number of sentences, and number of tokens on either side, </s> included.
CHUNK = np.dtype([("first", "<i8"), ("sentences", "<i4"), ("source", "<i4"), ("target", "<i4")])
LONGEST = int(np.iinfo(CHUNK["source"]).max)


def pack(
    source: np.ndarray, target: np.ndarray, documents: np.ndarray, length: int, overlong: Overlong = "cut"
) -> tuple[np.ndarray, int]:
    """Pack documents into chunks greedily, in order and never across documents.

    Args:
        source: Where every sentence begins in the source tokens, and where the last ends: one more than sentences.
        target: The same for the target tokens.
        documents: Index of every document's first sentence, and after the last the number of sentences.
        length: Maximum number of tokens on the longer side; 0 or 1 for one sentence per chunk, however long.
        overlong: What becomes of a sentence that is longer by itself: cut to the length, or dropped. No chunk spans the
            gap that a dropped sentence leaves.

    Returns:
        The chunks, an array of :data:`CHUNK`, and the number of sentences that were longer than the length.
    """
    if length < 0:
        raise DataError(f"a length takes 0 or more tokens, got {length}")
    if length > LONGEST:
        raise DataError(f"a length takes {LONGEST} tokens at most, got {length}")
    if overlong not in ("cut", "drop"):
        raise DataError(f"overlong takes cut or drop, got {overlong!r}")
    longest = length if length > 1 else LONGEST
    costs = np.maximum(np.diff(source), np.diff(target))
    too_long = costs > longest
    spans = list(_spans(source, target, documents, longest)) if length > 1 else [(i, 1) for i in range(len(costs))]
    first, count = np.array(spans, np.int64).reshape(-1, 2).T
    if overlong == "drop":
        stays = ~too_long[first]
        first, count = first[stays], count[stays]
    chunks = np.empty(len(first), CHUNK)
    chunks["first"], chunks["sentences"] = first, count
    for name, starts in (("source", source), ("target", target)):
        chunks[name] = np.minimum(starts[first + count] - starts[first], longest)
    return chunks, int(too_long.sum())


def _spans(source: np.ndarray, target: np.ndarray, documents: np.ndarray, longest: int) -> Iterator[tuple[int, int]]:
    """Iterate over the first sentence and the number of sentences of every chunk."""
    ours, theirs = source.tolist(), target.tolist()
    for begin, end in pairwise(documents.tolist()):
        first = begin
        for i in range(begin + 1, end):
            if max(ours[i + 1] - ours[first], theirs[i + 1] - theirs[first]) > longest:
                yield first, i - first
                first = i
        if first < end:
            yield first, end - first


def join_sentences(sentences: Sequence[Sequence[int]]) -> list[int]:
    """Join the tokens of several sentences into one example."""
    joined: list[int] = []
    for sentence in sentences:
        joined += [*sentence, SEP_ID]
    return [*joined[:-1], EOS_ID]


def split_sentences(tokens: Sequence[int]) -> list[list[int]]:
    """Split an example into the tokens of its sentences, without ``<s>``, ``</s>`` and padding."""
    sentences: list[list[int]] = [[]]
    for token in tokens[1:] if len(tokens) and tokens[0] == BOS_ID else tokens:
        if token in (EOS_ID, PAD_ID):
            break
        if token == SEP_ID:
            sentences.append([])
        else:
            sentences[-1].append(token)
    return sentences
