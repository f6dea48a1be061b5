"""Tiny models out of memories."""

from typing import Any

import torch
from torch import nn

from reluformer.memory import Attention, KeyValueMemory, MemorySettings

WIDTH = 16


class Layer(nn.Module):
    def __init__(self, causal: bool, cross: bool, told: bool) -> None:
        super().__init__()
        settings = MemorySettings()
        self.told = told  # whether its attention is told which queries are padding
        self.attention = Attention(WIDTH, 4, settings, key_heads=2, causal=causal)
        self.cross = Attention(WIDTH, 2, settings) if cross else None
        self.feedforward = KeyValueMemory(WIDTH, MemorySettings(slots=24))

    def forward(self, x, mask=None, context=None, context_mask=None):
        told = mask if self.told else None
        x = x + self.attention(x, key_mask=mask, query_mask=told)[0]
        if self.cross is not None:
            x = x + self.cross(x, context, key_mask=context_mask, query_mask=told)[0]
        return x + self.feedforward(x)


class Side(nn.Module):
    def __init__(self, layers: int, causal: bool = False, cross: bool = False, told: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(Layer(causal, cross, told) for _ in range(layers))

    def forward(self, tokens, *rest):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, *rest)
        return x


class Translator(nn.Module):
    """An encoder-decoder with the arguments of one from Hugging Face."""

    def __init__(self, layers: int = 2, told: bool = True) -> None:
        super().__init__()
        self.encoder = Side(layers, told=told)
        self.decoder = Side(layers, causal=True, cross=True, told=told)

    def forward(self, input_ids, attention_mask=None, decoder_input_ids=None, decoder_attention_mask=None):
        masks = [None if m is None else m.bool() for m in (attention_mask, decoder_attention_mask)]
        memory = self.encoder(input_ids, masks[0])
        return self.decoder(decoder_input_ids, masks[1], memory, masks[0])


def padded(*lengths: int) -> torch.Tensor:
    """A mask of sequences of these lengths, padded on the right."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def batch(source: tuple[int, ...] = (7, 4), target: tuple[int, ...] = (5, 6)) -> dict[str, Any]:
    masks = padded(*source), padded(*target)
    return {
        "input_ids": torch.randint(50, masks[0].shape),
        "attention_mask": masks[0].long(),
        "decoder_input_ids": torch.randint(50, masks[1].shape),
        "decoder_attention_mask": masks[1].long(),
    }
