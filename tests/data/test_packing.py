"""Chunks: greedy, in order, inside documents, no longer than they may be."""

import random
from itertools import pairwise

import numpy as np
import pytest

from reluformer.data.files import DataError
from reluformer.data.packing import Overlong, join_sentences, pack, split_sentences
from reluformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SEP_ID


def starts(lengths: list[int]) -> np.ndarray:
    """Of sentences with so many tokens, a separator behind each."""
    return np.cumsum([0, *(n + 1 for n in lengths)])


def packed(source: list[int], target: list[int], documents: list[int], length: int, overlong: Overlong = "cut"):
    chunks, over = pack(starts(source), starts(target), np.array(documents), length, overlong)
    return chunks.tolist(), over


def test_as_many_as_fit_the_longer_side() -> None:
    chunks, over = packed([2, 2, 2, 2], [1, 5, 1, 1], [0, 4], 9)
    assert chunks == [(0, 2, 6, 8), (2, 2, 6, 4)]
    assert over == 0
    assert packed([2, 2, 2, 2], [2, 2, 2, 2], [0, 4], 12)[0] == [(0, 4, 12, 12)]  # exactly full


def test_never_across_documents() -> None:
    assert packed([1, 1, 1], [1, 1, 1], [0, 2, 3], 100)[0] == [(0, 2, 4, 4), (2, 1, 2, 2)]
    assert packed([], [], [0], 100) == ([], 0)
    assert packed([1], [1], [0, 0, 1, 1], 100)[0] == [(0, 1, 2, 2)]  # empty documents


@pytest.mark.parametrize("length", [0, 1])
def test_sentences(length: int) -> None:
    assert packed([1, 900], [3, 0], [0, 2], length) == ([(0, 1, 2, 4), (1, 1, 901, 1)], 0)


def test_overlong_sentences() -> None:
    source, target = [2, 20, 2, 2], [2, 4, 2, 2]
    assert packed(source, target, [0, 4], 10, "cut") == ([(0, 1, 3, 3), (1, 1, 10, 5), (2, 2, 6, 6)], 1)
    assert packed(source, target, [0, 4], 10, "drop") == ([(0, 1, 3, 3), (2, 2, 6, 6)], 1)


def test_random_documents() -> None:
    draw = random.Random(0)
    source = [draw.randrange(0, 12) for _ in range(500)]
    target = [draw.randrange(0, 12) for _ in range(500)]
    documents = sorted({0, 500, *(draw.randrange(500) for _ in range(40))})
    chunks, _ = pack(starts(source), starts(target), np.array(documents), 20)
    assert chunks["sentences"].sum() == 500
    ends = chunks["first"] + chunks["sentences"]
    assert np.array_equal(chunks["first"][1:], ends[:-1])
    assert max(chunks["source"].max(), chunks["target"].max()) <= 20
    assert set(documents[:-1]) <= set(chunks["first"].tolist())
    for chunk, after in pairwise(chunks):
        i = after["first"]
        more = max(chunk["source"] + source[i] + 1, chunk["target"] + target[i] + 1)
        assert more > 20 or i in documents  # greedy


@pytest.mark.parametrize("sentences", [[[7, 8], [9]], [[7]], [[]], [[], [7], [], []]])
def test_sentences_can_be_counted(sentences: list[list[int]]) -> None:
    tokens = join_sentences(sentences)
    assert tokens[-1] == EOS_ID
    assert tokens.count(SEP_ID) + 1 == len(sentences)
    assert split_sentences(tokens) == sentences
    assert split_sentences([BOS_ID, *tokens, PAD_ID, PAD_ID]) == sentences


def test_refuses() -> None:
    with pytest.raises(DataError, match="takes 0 or more tokens, got -1"):
        packed([1], [1], [0, 1], -1)
    with pytest.raises(DataError, match="takes 2147483647 tokens at most, got 99999999999"):
        packed([1], [1], [0, 1], 99999999999)
    with pytest.raises(DataError, match="overlong takes cut or drop, got 'keep'"):
        packed([1], [1], [0, 1], 5, "keep")  # type: ignore[arg-type]
