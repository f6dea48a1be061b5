"""Windows as pairs of sentences, and sentences as words that know their tokens, so that a page can point at them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reluformer.data.tokenizer import EOS_ID, SEP_ID, SPECIALS
from reluformer.translation.translator import Written

SPACE = "Ġ"  # a space in the alphabet of a byte-level vocabulary: the first character of a token that begins a word


@dataclass(frozen=True)
class Word:
    """A word of a window, with its punctuation.

    Attributes:
        text: Text of the word.
        start: Position of its first token in its side of the window.
        end: Position after its last token.
    """

    text: str
    start: int
    end: int

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.end - self.start


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation.

    Attributes:
        window: Index of the window in which the sentence counts.
        source: Words of the sentence.
        target: Words of its translation.
    """

    window: int
    source: list[Word]
    target: list[Word]


def pairs_of(tokenizer: Any, windows: Sequence[Written]) -> list[Pair]:
    """Return the sentences of a document in order, each from the window in which it counts."""
    pairs = []
    for number, written in enumerate(windows):
        context = written.window.first - written.window.start
        source, target = (sentences_of(tokenizer, side) for side in (written.source, written.target))
        if written.window.end - written.window.start == 1:  # the translation of a single sentence may have any number
            target = [[word for sentence in target for word in sentence]]
        pairs += [Pair(number, *sides) for sides in zip(source[context:], target[context:], strict=True)]
    return pairs


def sentences_of(tokenizer: Any, tokens: Sequence[int]) -> list[list[Word]]:
    """Return the words of every sentence on one side of a window."""
    sentences: list[list[Word]] = [[]]
    start = 0
    for i, token in enumerate(tokens):
        following = tokens[i + 1] if i + 1 < len(tokens) else EOS_ID
        if token in (SEP_ID, EOS_ID):
            if token == SEP_ID:
                sentences.append([])
            start = i + 1
        elif following < len(SPECIALS) or tokenizer.id_to_token(following).startswith(SPACE):
            text = tokenizer.decode(tokens[start : i + 1]).strip(" ")
            sentences[-1] += [Word(text, start, i + 1)] if text else []
            start = i + 1
    return sentences


def sentence_numbers(tokens: Sequence[int]) -> list[int]:
    """Return the sentence of every token, counted from 0; a separator belongs to the sentence that it ends."""
    numbers, number = [], 0
    for token in tokens:
        numbers.append(number)
        number += token == SEP_ID
    return numbers
