"""A text as one sequence of tokens: the source side of a corpus, document after document, or a file."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from reluformer.data.dataset import TOKENIZER, PackedDataset, load_tokenizer, read_manifest
from reluformer.data.documents import read_documents
from reluformer.data.files import DataError, numbered_lines
from reluformer.data.tokenizer import EOS_ID, SEP_ID, encode, load_encoder, train_tokenizer
from reluformer.study.corpus import Corpus

HELD_OUT = 0.1  # share of a file, at its end, to test on; as much before that to validate on


@dataclass(frozen=True)
class Text:
    """Tokens for training, validation and testing, each ``(tokens,)``, and their tokeniser."""

    train: Tensor
    valid: Tensor
    test: Tensor
    tokenizer: object
    vocabulary: int


def read_corpus(corpus: Corpus) -> Text:
    """Read the source side of a corpus: ``<sep>`` after every sentence, ``</s>`` after the last of a document.

    Where the corpus has no test set, its validation data takes that place.
    """
    folder = Path(corpus.folder)
    valid = _split(folder, "valid")
    test = _documents(corpus.test, corpus) if corpus.test else valid
    tokenizer = load_tokenizer(folder)
    return Text(_split(folder, "train"), valid, test, tokenizer, read_manifest(folder)["vocabulary"])


def read_file(path: Path, vocab: int) -> Text:
    """Read a plain text file, whose tokeniser is learned from the training part: all but the last two tenths.

    A line is a sentence; a blank line ends a document, with ``</s>``.
    """
    if not path.is_file():
        raise DataError(f"{path} is no text file")
    lines = [line for _, line in numbered_lines(path)]
    cuts = [round(len(lines) * share) for share in (0.0, 1 - 2 * HELD_OUT, 1 - HELD_OUT, 1.0)]
    parts = [lines[start:stop] for start, stop in pairwise(cuts)]
    if not all(any(line.strip() for line in part) for part in parts):
        raise DataError(f"{path} must have text in all of its ten tenths of lines, it has {len(lines)} lines")
    tokenizer = train_tokenizer(parts[0], vocab)
    bare = tokenizer.backend_tokenizer
    rows = [_row(encode(bare, part)) for part in parts]
    return Text(rows[0], rows[1], rows[2], tokenizer, len(tokenizer))


def _split(folder: Path, split: str) -> Tensor:
    """Return the sentences of a split in order, from its shortest packing; if that is 0, no sentence is cut."""
    examples = PackedDataset(folder, split, min(read_manifest(folder)["lengths"]))
    tokens: list[int] = []
    names = [examples.origin(i)[0] for i in range(len(examples))]
    for i, (name, following) in enumerate(zip(names, [*names[1:], ""], strict=True)):
        tokens += examples[i]["input_ids"]
        if name == following:
            tokens[-1] = SEP_ID
    return torch.tensor(tokens)


def _documents(item: str, corpus: Corpus) -> Tensor:
    encoder = load_encoder(Path(corpus.folder) / TOKENIZER)
    documents = [encode(encoder, document.source) for document in read_documents(item, corpus.languages)]
    return torch.cat([_row([*sentences, []]) for sentences in documents])


def _row(sentences: list[list[int]]) -> Tensor:
    """Join sentences, with ``<sep>`` after each; an empty one ends a document and turns the last into ``</s>``."""
    tokens: list[int] = []
    for sentence in sentences:
        if sentence:
            tokens += [*sentence, SEP_ID]
        elif tokens:
            tokens[-1] = EOS_ID
    return torch.tensor(tokens)
