"""Attention maps: all weights of chosen heads on one sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reluformer.memory import Attention
from reluformer.memory.lookup import changed
from reluformer.report.rows import block
from reluformer.report.watch import Place, Seen, places, watch

MOST_TOKENS = 2048  # longest sequence to map, since a map holds every pair of its tokens


class HeadChoice(NamedTuple):
    """Choice of attention heads: a site (``*`` matches any characters), a layer and a head; None for all of them."""

    site: str
    layer: int | None = None
    head: int | None = None

    @classmethod
    def parse(cls, text: str) -> "HeadChoice":
        """Parse ``site:layer:head``, where ``*`` means all, as in ``encoder.attention:0:*``."""
        site, *numbers = (part.strip() for part in text.split(":"))
        if not site or len(numbers) != 2 or not all(x == "*" or x.isdecimal() for x in numbers):
            raise ValueError(f"heads must be site:layer:head, * for all, such as encoder.attention:0:1, got {text!r}")
        layer, head = (None if x == "*" else int(x) for x in numbers)
        return cls(site, layer, head)

    def __str__(self) -> str:
        return ":".join([self.site, *("*" if x is None else str(x) for x in (self.layer, self.head))])

    def heads_of(self, place: Place, heads: int) -> list[int]:
        """Indices of the chosen heads of the attention at this place."""
        if not fnmatchcase(place.site, self.site) or self.layer not in (None, place.layer):
            return []
        return [h for h in range(heads) if self.head in (None, h)]


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one head on one sequence, without padding.

    Attributes:
        site: Site of the attention.
        layer: Index of its layer.
        head: Index of the head.
        weights: Weights ``(N, M)``, float32 or wider, on the CPU.
        visible: Keys that each query may see, boolean ``(N, M)``.
        queries: Labels of the rows: tokens, or positions.
        keys: Labels of the columns; learned slots come first.
    """

    site: str
    layer: int
    head: int
    weights: Tensor
    visible: Tensor
    queries: list[str]
    keys: list[str]


def attention_maps(
    model: nn.Module,
    batch: Mapping[str, Any],
    heads: Sequence[HeadChoice | str],
    *,
    sequence: int = 0,
    source_tokens: Sequence[str] | None = None,
    target_tokens: Sequence[str] | None = None,
    limit: int = MOST_TOKENS,
) -> list[AttentionMap]:
    """Maps of chosen heads on one sequence of a batch, from one forward pass in eval mode.

    Args:
        model: Model that holds the attention.
        batch: Inputs of the model, by name.
        heads: Heads to map, each a :class:`HeadChoice` or its text: ``"encoder.attention:0:*"``.
        sequence: Index of the sequence in the batch.
        source_tokens: Labels of its positions, padding included, for the axes; None for their numbers.
        target_tokens: The same for the queries of an attention with "decoder" in its name, and for its own keys.
        limit: Most positions that a sequence may have.
    """
    choices = [HeadChoice.parse(x) if isinstance(x, str) else x for x in heads]
    if not choices:
        return []
    chosen = chosen_heads(model, choices)
    found: dict[tuple[Place, int], AttentionMap] = {}

    def see(seen: Seen) -> None:
        wanted = chosen.get(seen.place)
        if not wanted:
            return
        assert seen.lookup is not None
        slots = seen.lookup.settings.slots_in_rows
        batch_size, _, n, _ = seen.lookup.q.shape
        m = seen.lookup.k.shape[2] - slots
        if not 0 <= sequence < batch_size:
            raise ValueError(f"sequence must be 0 to {batch_size - 1} in this batch, got {sequence}")
        if max(n, m) > limit:
            raise ValueError(f"batch has a sequence of {max(n, m)} tokens: attention maps take at most {limit}")
        sides = ("target_tokens", target_tokens), ("source_tokens", source_tokens)
        queries = sides[0] if seen.place.decoding else sides[1]
        rows = _names(*queries, n)
        columns = [f"slot {i}" for i in range(slots)] + _names(*(sides[1] if seen.cross else queries), m)
        for head in wanted:
            found[seen.place, head] = _map(seen, sequence, head, rows, columns)

    watch(model, batch, see)
    return list(found.values())


def chosen_heads(model: nn.Module, choices: Sequence[HeadChoice]) -> dict[Place, list[int]]:
    """Indices of the chosen heads by place; each choice must match at least one."""
    sites = {place: m.heads for m, place in places(model).items() if isinstance(m, Attention)}
    for choice in choices:
        if not any(choice.heads_of(place, heads) for place, heads in sites.items()):
            raise ValueError(f"heads must name an attention head, got {choice}; there are {_listed(sites)}")
    return {
        place: sorted({h for choice in choices for h in choice.heads_of(place, heads)})
        for place, heads in sites.items()
    }


def _listed(sites: Mapping[Place, int]) -> str:
    """All heads in short, such as ``encoder.attention:0-5:0-7``, separated by commas."""
    texts = []
    for site in dict.fromkeys(place.site for place in sites):
        layers = [place.layer for place in sites if place.site == site]
        heads = max(count for place, count in sites.items() if place.site == site)
        texts.append(f"{site}:{_span(min(layers), max(layers))}:{_span(0, heads - 1)}")
    return ", ".join(texts) or "none in this model"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _names(argument: str, tokens: Sequence[str] | None, length: int) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(length)]
    if len(tokens) != length:
        raise ValueError(f"{argument} must name {length} positions, got {len(tokens)}")
    return list(tokens)


def _map(seen: Seen, sequence: int, head: int, rows: list[str], columns: list[str]) -> AttentionMap:
    call = seen.lookup
    assert call is not None
    gates, mask = call.log_forget, call.attn_mask
    alone = changed(
        call,
        q=call.q[:, head, None],  # (B, 1, N, D)
        k=call.k[:, head // (call.q.shape[1] // call.k.shape[1]), None],
        gamma=None if call.gamma is None else call.gamma[head, None],
        bias=None if call.bias is None else call.bias[head, None],
        log_forget=None if gates is None else gates[:, head, None],  # (B, 1, M)
        attn_mask=mask if mask is None or mask.shape[1] == 1 else mask[:, head, None],
    )
    weights, visible, _, _ = block(alone, slice(sequence, sequence + 1))
    weights, visible = weights[0, 0].cpu(), visible.expand_as(weights)[0, 0].cpu()  # (N, M)
    kept = torch.ones(len(rows), dtype=torch.bool) if seen.query_mask is None else seen.query_mask[sequence].cpu()
    shown = visible[kept].any(0)  # a key that no query may see is padding
    return AttentionMap(
        site=seen.place.site,
        layer=seen.place.layer,
        head=head,
        weights=weights[kept][:, shown],
        visible=visible[kept][:, shown],
        queries=[name for name, keep in zip(rows, kept.tolist(), strict=True) if keep],
        keys=[name for name, keep in zip(columns, shown.tolist(), strict=True) if keep],
    )
