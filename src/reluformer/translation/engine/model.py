"""A model prepared for decoding on a CPU: the source is read at once, the target written token by token."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reluformer.models.positions import rotation, turns
from reluformer.models.quantising import can_multiply_integers, float_linear, integer_linear, multiplies_bf16
from reluformer.models.sentences import of_source
from reluformer.translation.engine import native
from reluformer.translation.engine.attention import OwnAttention, Reading, SourceAttention
from reluformer.translation.engine.keys import TreeKeys
from reluformer.translation.engine.layers import FeedForward, normer
from reluformer.translation.engine.obstacles import obstacle
from reluformer.translation.engine.threads import THREADS

FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine:
    """Computes what a model computes, with the fewest calls.

    Args:
        model: Model without an :func:`~reluformer.translation.engine.obstacles.obstacle`.
        precision: Precision of products with weights: ``int8``, ``bf16`` or ``fp32``. Everything else is float32, but
            unless ``fp32`` is asked for, keys and values are stored as bf16 on a CPU that multiplies it natively:
            reading them is what a step of a long document waits for.
        compiled: Whether to use step.c, where it was built, instead of PyTorch.
    """

    def __init__(self, model: Any, precision: str = "fp32", compiled: bool = True) -> None:
        if (reason := obstacle(model)) is not None:
            raise ValueError(f"model must be a ReLUFormer of plain memories on a CPU, got {reason}")
        integers = precision == "int8"
        if not integers and precision not in FLOATS:
            raise ValueError(f"precision must be one of int8, {', '.join(FLOATS)}, got {precision!r}")
        if integers and not can_multiply_integers():
            raise ValueError("precision int8: this PyTorch has no int8 matrices for this CPU; there are fp32 and bf16")
        make = integer_linear if integers else partial(float_linear, dtype=FLOATS[precision])
        self.config, self.precision = model.config, precision
        self.kept = torch.bfloat16 if precision != "fp32" and multiplies_bf16() else torch.float32
        self.compiled = compiled = compiled and native.library() is not None
        self._versions = _versions(model)
        config, inner = model.config, model.model
        self.heads, self.head_dim = config.heads, config.d_model // config.heads
        self.embeddings = inner.shared.weight.detach().float() * math.sqrt(config.d_model)
        self.read_positions = _Positions(inner.encoder.positions, config.d_model)
        self.write_positions = _Positions(inner.decoder.positions, config.d_model)
        self.reading = [(Reading(x.self_attention, make, compiled), _ffn(x, make)) for x in inner.encoder.layers]
        turned = inner.decoder.positions.kind == "rotary"
        self.writing = [
            (
                OwnAttention(x.self_attention, make, self.kept, turned, compiled),
                SourceAttention(x.cross_attention, make, self.kept, compiled),
                _ffn(x, make, compiled and integers),
            )
            for x in inner.decoder.layers
        ]
        self.read_norm, self.write_norm = normer(inner.encoder.norm), normer(inner.decoder.norm)
        head = model.get_output_embeddings()
        self.head = make(head.weight, head.bias)

    def is_current(self, model: Any) -> bool:
        """Return whether the model still has the weights that this engine was made of."""
        return self._versions == _versions(model)

    def read(self, sources: list[list[int]]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the states ``(S, N, width)`` of sources, a mask ``(S, N)`` that is False at padding, and sentences."""
        width = max(map(len, sources))
        lengths = torch.tensor([len(x) for x in sources])
        mask = torch.arange(width) < lengths[:, None]
        # Any token will do as padding: nothing looks at it.
        tokens = torch.tensor([x + [0] * (width - len(x)) for x in sources])  # (S, N)
        separator = self.config.separator("encoder_self", "cross")
        sentences = None if separator is None else of_source(tokens, separator)
        x = self.embeddings[tokens.flatten()]
        x = self.read_positions.add(x, 0, width)
        rotate = self.read_positions.rotation(width, self.head_dim)
        padded = not bool(mask.all())
        for attention, ffn in self.reading:
            x = attention(x, mask, padded, rotate, sentences)
            x = x if ffn is None else ffn(x)
        return self.read_norm(x).view(len(sources), width, -1), mask, sentences

    def start(self, sources: list[list[int]], beam: int) -> "Decoding":
        """Read sources and return a decoding with ``beam`` hypotheses of each."""
        return Decoding(self, *self.read(sources), beam)


class Decoding:
    """State of the decoder: keys and values of the sources, and of the targets so far.

    Attributes:
        position: Number of tokens in the targets.
        sentences: Those that the rows are writing, ``(S, beam)``; None if no memory asks for them.
    """

    def __init__(self, engine: Engine, states: Tensor, mask: Tensor, sentences: Tensor | None, beam: int) -> None:
        self.engine, self.beam, self.position = engine, beam, 0
        summed = any(own.settings.centred for own, _, _ in engine.writing)
        shape = len(engine.writing), len(states), beam, engine.heads, engine.head_dim
        self.own = TreeKeys(*shape, engine.kept, summed)
        # For each layer (2, S, H, N, D).
        self.source = [x.remember(states, mask, sentences) for _, x, _ in engine.writing]
        self.separator = engine.config.separator("decoder_self")
        self.sentences = None if self.separator is None else torch.zeros(len(states), beam, dtype=torch.long)
        self.mask = None if bool(mask.all()) else mask[:, None].to(engine.kept)  # (S, 1, N)

    def step(self, tokens: Tensor) -> Tensor:
        """Append ``tokens (S * beam,)``, one per hypothesis, and return the logits ``(S * beam, V)`` of the next."""
        engine = self.engine
        THREADS.follow()
        x = engine.write_positions.add(engine.embeddings[tokens], self.position, 1)
        turn = engine.write_positions.turn(self.position, engine.head_dim)
        self.position += 1
        self.own.begin_step()
        if self.sentences is not None:
            self.sentences = self.sentences + (tokens == self.separator).view_as(self.sentences)
        for layer, (own, cross, ffn) in enumerate(engine.writing):
            x = own(x, self.own, layer, turn, self.sentences)
            x = cross(x, self.source[layer], self.mask, self.beam, self.sentences)
            x = x if ffn is None else ffn(x)
        return engine.head(engine.write_norm(x))

    def reorder(self, rows: Tensor) -> None:
        """Let every hypothesis continue from the present row given in ``rows (S * beam,)``."""
        self.own.reorder(rows)
        self.sentences = None if self.sentences is None else self.sentences.flatten()[rows].view_as(self.sentences)

    def keep(self, sources: Tensor) -> None:
        """Continue with some of the sources only."""
        self.own.keep(sources)
        self.sentences = None if self.sentences is None else self.sentences[sources]
        self.source = [x.index_select(1, sources) for x in self.source]
        self.mask = None if self.mask is None else self.mask.index_select(0, sources)


class _Positions:
    """What positions add to embeddings, or how they turn queries and keys; computed on demand."""

    def __init__(self, module: Any, width: int) -> None:
        self.module, self.width = module, width
        self.turns = module.kind == "rotary"
        self.table = torch.empty(0, width)  # for each position, what is added, or complex numbers to multiply by

    def add(self, x: Tensor, first: int, count: int) -> Tensor:
        """Return ``x (S * count, width)`` with its positions added, unless they turn."""
        if self.turns:
            return x
        if first + count > len(self.table):
            most = 2 * (first + count)
            if self.module.learned is not None:
                most = max(min(most, len(self.module.learned.weight)), first + count)
            nothing = torch.zeros(1, most, self.width)
            self.table = self.module(nothing, torch.arange(most)[None]).detach().float()[0]
        return (x.view(-1, count, self.width) + self.table[first : first + count]).view(x.shape)

    def rotation(self, count: int, head_dim: int) -> Any:
        """Return the rotation of ``count`` positions, or None if positions do not turn."""
        return rotation(torch.arange(count)[None], head_dim) if self.turns else None

    def turn(self, position: int, head_dim: int) -> Tensor | None:
        """Return the rotation of one position as complex numbers ``(head_dim / 2,)``, or None."""
        if not self.turns:
            return None
        if position >= len(self.table):
            turn = turns(torch.arange(2 * (position + 1)), head_dim)
            self.table = torch.polar(torch.ones_like(turn), turn)
        return self.table[position]


def _ffn(layer: Any, make: Any, compiled: bool = False) -> FeedForward | None:
    return None if layer.ffn is None else FeedForward(layer.ffn, make, compiled)


def _versions(model: Any) -> tuple[tuple[int, int], ...]:
    """Return a fingerprint that changes with every change of a weight."""
    found = model.state_dict(keep_vars=True).values()
    return tuple((x.data_ptr(), 0 if x.is_inference() else x._version) for x in found)
