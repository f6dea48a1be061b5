"""Fast decoding: keys and values in one tensor and, on a GPU, the whole step as a CUDA graph.

A decoding step is hundreds of tiny kernels, and launching them one after another takes longer than running them. Here
the second step of a batch is recorded, and every later one is a single launch. Recorded kernels read and write the
addresses they were recorded with, so keys and values stay in place, with room for more, and their number is kept on the
device.

Without a GPU there is nothing to record, but keeping room for more is still faster than copying all keys at every step.
Beams of one source need not exchange the keys of that source, nor those of the words that they have in common.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationMixin
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.generation.configuration_utils import GenerationMode

from reluformer.models.masks import needed

ROOM = 256  # keys to make room for at first, or fewer if the maximum length is less; doubled when used up
NEVER = 2**62  # position at which a row differs from itself


class _Kin:
    """Tracks where the rows of one source part, since beams have most of what they have written in common.

    Args:
        rows: Number of rows of the batch.
        shared: Number of consecutive rows that share a source.
        device: Device of the row indices.
    """

    def __init__(self, rows: int, shared: int, device: torch.device) -> None:
        itself = torch.eye(shared, dtype=torch.bool, device=device)
        self.itself = itself.expand(rows // shared, -1, -1)  # (S, shared, shared)
        self.parted = self.itself.long() * NEVER  # the first position where two may differ

    def follow(self, rows: Tensor, seen: int) -> int:
        """Replace the batch by its rows ``(B,)``; return the first of ``seen`` positions where any place changes."""
        shared = self.parted.shape[1]
        parents = rows.view(-1, shared) % shared  # (S, shared)
        first = self.parted.gather(2, parents[:, :, None]).min()
        of_first = self.parted.gather(1, parents[:, :, None].expand_as(self.parted))
        of_both = of_first.gather(2, parents[:, None, :].expand_as(self.parted))
        # Two rows that continue the same one differ from the next position on.
        self.parted = of_both.clamp_max(seen).masked_fill(self.itself, NEVER)
        return min(int(first), seen)

    def keep(self, sources: Tensor) -> None:
        """Continue with these sources only."""
        self.itself, self.parted = self.itself[: len(sources)], self.parted[sources]


class _Store:
    """Keys and values of all layers in one tensor, ``(layers, 2, B, H, room, D)``."""

    def __init__(self, layers: int, recorded: bool, room: int, shared: int) -> None:
        self.layers, self.recorded, self.room, self.shared = layers, recorded, room, shared
        self.tensor: Tensor | None = None
        self.kin: _Kin | None = None
        self.seen = 0  # number of tokens, on the host
        self.recording = False

    def fit(self, tokens: int, like: Tensor) -> bool:
        """Make room for more tokens; return True if keys and values had to move."""
        needed = self.seen + tokens
        if self.tensor is None:
            b, h, _, d = like.shape
            make = like.new_zeros if self.recorded else like.new_empty  # recorded steps read all the room
            self.tensor = make(self.layers, 2, b, h, max(self.room, needed + 1), d)
            self.position = torch.zeros(1, dtype=torch.long, device=like.device)  # of the next token
            return True
        room = self.tensor.shape[-2]
        if needed <= room:
            return False
        self.tensor = F.pad(self.tensor, (0, 0, 0, max(2 * room, needed) - room))
        return True

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values ``(B, H, n, D)``; return all there are or, if steps are recorded, all the room."""
        n = keys.shape[2]
        if not self.recording:
            self.fit(n if layer == 0 else 0, keys)
        assert self.tensor is not None
        kept = self.tensor[layer]  # (2, B, H, room, D)
        if self.recorded:
            where = self.position if n == 1 else self.position + torch.arange(n, device=keys.device)
            kept[0].index_copy_(2, where, keys)
            kept[1].index_copy_(2, where, values)
        else:
            end = self.seen + n
            kept[0, :, :, self.seen : end], kept[1, :, :, self.seen : end] = keys, values
            kept = kept[..., :end, :]
        if layer == self.layers - 1:
            self.position += n
            self.seen += 0 if self.recording else n
        return kept[0], kept[1]

    def reset(self) -> None:
        """Start over, for a batch of any size."""
        self.tensor = self.kin = None
        self.seen = 0

    def used(self) -> Tensor | None:
        """The part of the tensor that has been written; None if there is none.

        While a step is recorded it is all of the tensor, as replays will write more of it.
        """
        return self.tensor if self.tensor is None or self.recording else self.tensor[..., : self.seen, :]

    def reorder(self, rows: Tensor) -> None:
        """Replace the batch by these rows of it; no row may move to another source if sources are shared."""
        used = self.used()
        if used is None:
            return
        first = 0
        if self.shared > 1:
            self.kin = self.kin or _Kin(len(rows), self.shared, rows.device)
            first = self.kin.follow(rows, self.seen)
        if first < self.seen:
            changed = used[..., first:, :]
            changed.copy_(changed.index_select(2, rows.to(changed.device)))

    def keep(self, sources: Tensor) -> None:
        """Continue with the rows of these sources only."""
        assert self.tensor is not None
        rows = (sources[:, None] * self.shared + torch.arange(self.shared, device=sources.device)).flatten()
        self.tensor = self.tensor.index_select(2, rows.to(self.tensor.device))
        if self.kin is not None:
            self.kin.keep(sources)


class StoredLayer(DynamicLayer):
    """View of the store for one layer, as a layer of a Hugging Face cache."""

    is_croppable = False

    def __init__(self, store: _Store, index: int) -> None:
        self.store, self.index = store, index
        super().__init__()
        self.is_initialized = True

    def _used(self, which: int) -> Tensor | None:
        used = self.store.used()
        return None if used is None else used[self.index, which]

    # Setters that do nothing: the base class sets both to None at first.
    keys = property(lambda self: self._used(0), lambda self, _: None)
    values = property(lambda self: self._used(1), lambda self, _: None)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values."""
        return self.store.write(self.index, key_states, value_states)

    def get_seq_length(self) -> Any:
        """Number of tokens: while a step is recorded, the counter on the device, which replays go on increasing."""
        return self.store.position if self.store.recording else self.store.seen

    def reset(self) -> None:
        """Drop the tokens of all layers."""
        self.store.reset()

    def crop(self, *_: Any, **__: Any) -> None:
        """Not implemented: no decoding method that uses this cache takes tokens back."""
        raise NotImplementedError("a StepCache cannot be cropped: give generate() a DynamicCache")

    def batch_select_indices(self, *_: Any, **__: Any) -> None:
        """Not implemented: no decoding method that uses this cache drops single rows of the batch."""
        raise NotImplementedError("a StepCache keeps all rows of a source: give generate() a DynamicCache")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the beams, in all layers at once."""
        if self.index == 0:
            self.store.reorder(beam_idx)


class StepCache(EncoderDecoderCache):
    """Cache of an encoder-decoder for decoding step by step.

    Args:
        layers: Number of decoder layers.
        recorded: Whether to record and replay steps, which takes a GPU.
        padded: Whether the source needs its mask.
        shared: Number of consecutive rows of the batch that share a source, as beams do: its keys are kept once.
        room: Number of tokens to make room for at first.
    """

    def __init__(
        self, layers: int, recorded: bool = False, padded: bool = False, shared: int = 1, room: int = ROOM
    ) -> None:
        self.recorded, self.padded, self.shared = recorded, padded, shared
        self.store = _Store(layers, recorded, room, shared)
        own = DynamicCache()
        own.layers = [StoredLayer(self.store, index) for index in range(layers)]
        super().__init__(own, DynamicCache())
        self._graph: Any = None

    def reset(self) -> None:
        """Drop everything, the recorded step included: its addresses are no longer valid."""
        super().reset()
        self.cross_attention_cache = DynamicCache()  # transformers up to 5.17 leaves zeros in one that is reset
        self._graph = None

    def can_step(self, ids: Tensor | None, options: dict[str, Any]) -> bool:
        """Whether a call of the model asks for one more token and nothing else, and so can be replayed."""
        more = ("decoder_attention_mask", "decoder_inputs_embeds", "output_hidden_states")
        alone = ids is not None and ids.shape[1] == 1 and options.get("encoder_outputs") is not None
        return alone and self.recorded and self.store.seen > 0 and all(options.get(name) is None for name in more)

    def step(self, ids: Tensor, decode: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits ``(B, 1, V)`` of the tokens that follow ``ids (B, 1)``, in a tensor that the next step overwrites.

        ``decode`` computes them with this cache; it is recorded the first time, and again when the keys have moved.
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
        # Not torch.cuda.graph(), which would collect garbage and empty the allocator's caches for every batch.
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
        """Reorder the beams. Those of one source share its keys, which stay where they are."""
        self.store.reorder(beam_idx)

    def keep(self, sources: Tensor) -> None:
        """Continue with these sources only, all ``shared`` rows of each; the next step is recorded anew."""
        self.store.keep(sources)
        layers: Any = self.cross_attention_cache.layers
        for layer in layers:
            where = sources.to(layer.keys.device)
            layer.keys, layer.values = layer.keys.index_select(0, where), layer.values.index_select(0, where)
        self._graph = None


class SteppingMixin(GenerationMixin):
    """``generate`` with a :class:`StepCache`, unless the caller chooses another cache."""

    config: Any
    device: Any

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: GenerationMode, *args: Any
    ) -> None:
        """Prepare the cache that ``generate`` asks for or, if the choice is left to the model, the fastest one."""
        chosen = model_kwargs.get("past_key_values") is not None or generation_config.cache_implementation is not None
        chosen = chosen or bool(generation_config.is_assistant)  # rejected tokens of an assistant are taken back
        base: Any = super()
        base._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *args)
        plain = generation_mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE) or "beam" in generation_mode
        if plain and not chosen and model_kwargs.get("past_key_values") is not None and self.config.decoder_layers:
            padded = needed(model_kwargs.get("attention_mask")) is not None
            shared = max(generation_config.num_beams, generation_config.num_return_sequences)
            room = min(ROOM, generation_config.max_length)  # unused room of thousands of short sentences fills a GPU
            cache = StepCache(self.config.decoder_layers, self._can_record(), padded, shared, room)
            model_kwargs["past_key_values"] = cache

    def _can_record(self) -> bool:
        return (
            self.device.type == "cuda"
            and self.config.positions != "learned"  # they check their range on the host
            and not torch.is_autocast_enabled("cuda")  # its copies of the weights would be recorded too
            and not hasattr(self, "hf_device_map")
        )
