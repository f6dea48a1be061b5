"""Decoding steps as CUDA graphs.

A step of decoding is hundreds of tiny kernels, and launching them one after another takes longer than running them.
Here the second step of a batch is recorded, and every further one is a single launch. Recorded kernels read and write
the addresses they were recorded with, so keys and values stay where they are, with room for more, and how many there
are is a number on the device.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

ROOM = 256  # keys there is room for at first; twice as many whenever they are used up


class _Store:
    """Keys and values of all layers in one tensor, ``(layers, 2, B, H, room, D)``."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.tensor: Tensor | None = None
        self.seen = 0  # tokens, as the host knows it
        self.recording = False

    def fit(self, tokens: int, like: Tensor) -> bool:
        """Make room for more tokens; True if keys and values had to move."""
        needed = self.seen + tokens
        if self.tensor is None:
            b, h, _, d = like.shape
            self.tensor = like.new_zeros(self.layers, 2, b, h, max(ROOM, needed + 1), d)
            self.position = torch.zeros(1, dtype=torch.long, device=like.device)  # of the next token
            return True
        room = self.tensor.shape[-2]
        if needed <= room:
            return False
        self.tensor = F.pad(self.tensor, (0, 0, 0, max(2 * room, needed) - room))
        return True

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next tokens' ``(B, H, n, D)``; returns all there is room for."""
        n = keys.shape[2]
        if not self.recording:
            self.fit(n if layer == 0 else 0, keys)
        assert self.tensor is not None
        where = self.position if n == 1 else self.position + torch.arange(n, device=keys.device)
        for kept, new in zip(self.tensor[layer], (keys, values), strict=True):
            kept.index_copy_(2, where, new)
        if layer == self.layers - 1:
            self.position += n
            self.seen += 0 if self.recording else n
        return self.tensor[layer, 0], self.tensor[layer, 1]

    def reorder(self, rows: Tensor) -> None:
        """Replace the batch by these rows of it."""
        if self.tensor is not None:
            used = self.tensor[..., : self.seen, :]
            used.copy_(used.index_select(2, rows))


class FixedLayer(DynamicLayer):
    """What one layer sees of the store."""

    def __init__(self, store: _Store, index: int) -> None:
        super().__init__()
        self.store, self.index = store, index
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add keys and values."""
        return self.store.write(self.index, key_states, value_states)

    def get_seq_length(self) -> Any:
        """How many tokens there are: on the device while a step is recorded, since that goes on counting."""
        return self.store.position if self.store.recording else self.store.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams, all layers at once."""
        if self.index == 0:
            self.store.reorder(beam_idx)


class StepCache(EncoderDecoderCache):
    """A cache of an encoder-decoder whose decoding steps can be recorded and replayed.

    Args:
        layers: Of the decoder.
        padded: Whether the source needs its mask.
    """

    def __init__(self, layers: int, padded: bool = False) -> None:
        self.padded = padded
        self.store = _Store(layers)
        own = DynamicCache()
        own.layers = [FixedLayer(self.store, index) for index in range(layers)]
        super().__init__(own, DynamicCache())
        self._graph: Any = None

    def step(self, ids: Tensor, decode: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits ``(B, 1, V)`` of the tokens that follow ``ids (B, 1)``, in a place that the next step writes to again.

        ``decode`` computes them with this cache; it is recorded when called first, and when the keys had to move.
        """
        store = self.store
        assert store.tensor is not None
        if store.fit(1, store.tensor[0, 0]) or self._graph is None:
            self._record(ids, decode)
        self._ids.copy_(ids)
        self._graph.replay()
        store.seen += 1
        return self._logits

    def _record(self, ids: Tensor, decode: Callable[[Tensor], Tensor]) -> None:
        self._ids = ids.clone()
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self.store.recording = True
        # Not torch.cuda.graph(), which collects garbage and empties the caches of the allocator first: a tenth of a
        # second, for every batch.
        try:
            with torch.cuda.stream(stream):
                self._graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._logits = decode(self._ids)
                finally:
                    self._graph.capture_end()
        finally:
            self.store.recording = False
        torch.cuda.current_stream().wait_stream(stream)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams. Beams of one source see the same keys of it: those stay where they are."""
        self.store.reorder(beam_idx)
