"""Observation of a running model: every call of every memory, with the queries and keys that it really used."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from reluformer.memory import Attention, KeyValueMemory
from reluformer.memory.lookup import Lookup

# Names of lists of layers, left out of a site: the number of the layer says as much.
LISTS = ("layers", "layer", "blocks", "block", "h")


class Place(NamedTuple):
    """Place of a memory in a model: ``model.encoder.layers.3.ffn.memory`` is site ``encoder.ffn``, layer 3."""

    name: str
    site: str
    layer: int

    @property
    def slots(self) -> "Place":
        """Place of the slots of an attention that are a memory of their own."""
        return Place(f"{self.name}.slots", f"{self.site}.slots", self.layer)

    @property
    def decoding(self) -> bool:
        """Whether the name says that the queries are those of a decoder."""
        return "decoder" in self.name


class Seen(NamedTuple):
    """One call of a memory.

    Attributes:
        place: Place of the memory in the model.
        memory: The module.
        x: Its input, ``(B, N, width)``; in a key-value memory any ``(..., width)``.
        out: Its output, shaped as ``x``.
        stream: The residual stream that it adds to: the input of the module that holds it as ``memory``, or else ``x``.
        query_mask: Positions of ``x`` that are not padding, shaped as ``x`` without its last dimension; None for all.
        cross: Whether the keys come from another sequence.
        lookup: The lookup of an attention; None in a key-value memory.
        slots: Whether this is the lookup in the slots of an attention that are a memory of their own. It is seen after
            that in the sequence, at a place of its own, with all positions as one sequence, ``x (1, B * N, width)``,
            and the same output, of which theirs is a part.
    """

    place: Place
    memory: Attention | KeyValueMemory
    x: Tensor
    out: Tensor
    stream: Tensor
    query_mask: Tensor | None
    cross: bool
    lookup: Lookup | None
    slots: bool = False

    def of_slots(self, lookup: Lookup) -> "Seen":
        """The same call as a lookup in the slots."""
        x, out, stream = (t.flatten(0, 1)[None] for t in (self.x, self.out, self.stream))
        mask = None if self.query_mask is None else self.query_mask.flatten()[None]
        return Seen(self.place.slots, self.memory, x, out, stream, mask, False, lookup, slots=True)


def places(model: nn.Module) -> dict[Attention | KeyValueMemory, Place]:
    """Every memory of a model and its place."""
    prefix = getattr(model, "base_model_prefix", "")
    found = {
        memory: _place(name, f"{prefix}.", memory)
        for name, memory in model.named_modules()
        if isinstance(memory, Attention | KeyValueMemory)
    }
    if not found:
        raise ValueError(f"model must hold an Attention or a KeyValueMemory, got {type(model).__name__} without")
    return found


def _place(name: str, prefix: str, memory: nn.Module) -> Place:
    parts = name.removeprefix(prefix).removesuffix(".memory").split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    if at is None:
        return Place(name, ".".join(parts) or type(memory).__name__, 0)
    before = parts[: at - 1] if at and parts[at - 1] in LISTS else parts[:at]
    return Place(name, ".".join([*before, *parts[at + 1 :]]) or type(memory).__name__, int(parts[at]))


def watch(
    model: nn.Module, batch: Mapping[str, Any], see: Callable[[Seen], None], query_mask: Tensor | None = None
) -> None:
    """Run ``model(**batch)`` in eval mode, without gradients, and pass each call of a memory to ``see``.

    Padding is found as follows. An attention uses the ``query_mask`` that it is called with. Without one it uses the
    first mask that has the shape of its positions: the ``attention_mask`` of the batch (for a memory with "decoder" in
    its name, in a model where another has "encoder" in its own: ``decoder_attention_mask``, then ``labels != -100``),
    and last the argument ``query_mask``. A key-value memory uses the mask of the last attention over positions of the
    same shape, which it follows; without one, it looks for a mask as an attention does.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(f"batch must be a mapping of what the model takes, got {type(batch).__name__}")
    found = places(model)
    masks = _Masks(batch, any("encoder" in p.name for p in found.values()), query_mask)
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), _hooked(model, found, masks, see):
            model(**batch)
    finally:
        model.train(training)


@contextmanager
def _hooked(
    model: nn.Module, found: Mapping[Attention | KeyValueMemory, Place], masks: "_Masks", see: Callable[[Seen], None]
) -> Iterator[None]:
    lookups: dict[nn.Module, Lookup] = {}
    streams: dict[nn.Module, Tensor] = {}

    def after(memory: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        assert isinstance(memory, Attention | KeyValueMemory)
        place, x = found[memory], args[0] if args else kwargs["x"]
        stream = streams.pop(memory, x)
        if isinstance(memory, Attention):
            context = args[1] if len(args) > 1 else kwargs.get("context")
            mask, lookup = masks.of_attention(place, x, kwargs.get("query_mask")), lookups.pop(memory)
            seen = Seen(place, memory, x, result[0], stream, mask, context is not None, lookup)
            see(seen)
            if lookup.apart is not None:
                see(seen.of_slots(lookup.apart))
        else:
            see(Seen(place, memory, x, result, stream, masks.of_feedforward(place, x), False, None))

    def before(holder: nn.Module, args: tuple[Any, ...]) -> None:
        if args:
            streams[holder.memory] = args[0]  # type: ignore[index]

    handles: list[RemovableHandle] = [memory.register_forward_hook(after, with_kwargs=True) for memory in found]
    for place in found.values():
        holder, _, own = place.name.rpartition(".")
        if own == "memory":
            handles.append(model.get_submodule(holder).register_forward_pre_hook(before))
    attentions = [memory for memory in found if isinstance(memory, Attention)]
    for memory in attentions:  # observed rather than computed again: keys must not enter a cache twice
        memory.observer = partial(lookups.__setitem__, memory)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for memory in attentions:
            memory.observer = None


class _Masks:
    """Finds the positions that are not padding, as described in :func:`watch`."""

    def __init__(self, batch: Mapping[str, Any], has_encoder: bool, fallback: Tensor | None) -> None:
        self.batch, self.has_encoder, self.fallback = batch, has_encoder, fallback
        self.latest: dict[torch.Size, Tensor | None] = {}  # mask of the last attention, by the shape of the positions

    def of_attention(self, place: Place, x: Tensor, given: Tensor | None) -> Tensor | None:
        mask = self._of_batch(place, x) if given is None else given.bool()
        self.latest[x.shape[:-1]] = mask
        return mask

    def of_feedforward(self, place: Place, x: Tensor) -> Tensor | None:
        shape = x.shape[:-1]
        return self.latest[shape] if shape in self.latest else self._of_batch(place, x)

    def _of_batch(self, place: Place, x: Tensor) -> Tensor | None:
        masks = [self.batch.get("attention_mask")]
        if place.decoding and self.has_encoder:
            labels = self.batch.get("labels")
            masks = [self.batch.get("decoder_attention_mask"), labels != -100 if isinstance(labels, Tensor) else None]
        for mask in (*masks, self.fallback):
            if isinstance(mask, Tensor) and mask.shape == x.shape[:-1]:
                return mask.to(x.device).bool()
        return None
