"""Models whose translations are known: they copy, more or less faithfully."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn

from reluformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SEP_ID


class Copier(nn.Module):
    """Writes what ``write`` makes of its source; by default the same.

    Attributes:
        calls: The batches of sources that it was given, without padding.
    """

    def __init__(self, write: Callable[[list[int]], list[int]] = lambda tokens: tokens, most: int = 10**9) -> None:
        super().__init__()
        self.write, self.most = write, most
        self.config = SimpleNamespace(positions="sinusoidal", max_position_embeddings=64, decoder_start_token_id=BOS_ID)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.calls: list[list[list[int]]] = []

    def generate(self, input_ids, attention_mask, **options):
        if len(input_ids) > self.most:
            raise torch.OutOfMemoryError("too many")
        sources = [row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]
        self.calls.append(sources)
        rows = [[BOS_ID, *self.write(tokens[:-1]), EOS_ID] for tokens in sources]
        width = max(map(len, rows))
        return torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows])


def drops_separators(tokens: list[int]) -> list[int]:
    """Every second separator or so becomes nothing."""
    draw = random.Random(str(tokens))
    return [x for x in tokens if x != SEP_ID or draw.random() < 0.5]


def adds_separators(tokens: list[int]) -> list[int]:
    """Here and there a separator more, also in a sentence alone."""
    draw = random.Random(str(tokens))
    return [y for x in tokens for y in ([x, SEP_ID] if draw.random() < 0.1 else [x])]


def repeats_the_first(tokens: list[int]) -> list[int]:
    """The first sentence of several comes twice."""
    return [*tokens[: tokens.index(SEP_ID) + 1], *tokens] if SEP_ID in tokens else tokens


def leaves_out_the_last(tokens: list[int]) -> list[int]:
    """The last sentence of several is empty, its separator there."""
    return tokens[: len(tokens) - tokens[::-1].index(SEP_ID)] if SEP_ID in tokens else tokens
