"""A lookup: queries, the keys and values they look into, and everything that determines the weights.

    w_ij = activation(scale * q_i.k_j + bias_h) / (gamma_h * (n_i / 2) ** alpha)        h_i = sum_j w_ij v_j

A centred memory first subtracts the mean of a row from its scores, see centring.py. A forget gate adds ``D_ij`` to the
scores of an activation that normalises, and multiplies the weights of any other by ``exp(D_ij)``. With ``norm="mass"``
a row is divided by the sum of its weights instead, which cancels all its factors.

weights.py computes exactly this; dispatch.py has faster ways to the sums.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.memory.constant import with_bias
from reluformer.memory.settings import MemorySettings
from reluformer.ops.statistics import TINY
from reluformer.ops.visibility import UNBOUNDED, Band, band_mask, count_visible


class Lookup(NamedTuple):
    """Queries ``q (B, Hq, N, D)`` in ``k, v (B, Hk, M, D)``; masks are boolean, True = may be seen.

    Attributes:
        q: Queries.
        k: Keys.
        v: Values.
        settings: Kind of memory.
        gamma: Divisor of the weights, ``(Hq,)``.
        bias: Added to the scores, ``(Hq,)``.
        scale: Factor of the scores; None for ``1 / sqrt(D)``.
        causal: Whether later keys are hidden; the last query is aligned with the last key.
        key_mask: Keys that may be seen, ``(B, M)``.
        attn_mask: Pairs that may be seen, broadcasts to ``(B, Hq, N, M)``.
        limit: Index of the last key that each query may see, ``(N,)``; replaces a mask where all later keys are zeros.
        log_forget: Logarithms of the forget gates, ``(B, Hq, M)``.
        counted: Whether the first channel of every value is 1, and hence that of a sum the mass of its row, so that
            division by the mass needs no statistics.
        slots: Keys and values ``(Hk, S, D)`` beside those of the sequences, which all queries see.
        apart: Lookup of :func:`together` queries in slots that are a memory of their own; its sums are added.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    settings: MemorySettings
    gamma: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None
    causal: bool = False
    key_mask: Tensor | None = None
    attn_mask: Tensor | None = None
    limit: Tensor | None = None
    log_forget: Tensor | None = None
    counted: bool = False
    slots: tuple[Tensor, Tensor] | None = None
    apart: "Lookup | None" = None


def changed(call: Lookup, **fields: Any) -> Lookup:
    """The same lookup with other fields: ``_replace``, written so that every version of ``torch.compile`` traces it."""
    values: list[Any] = [fields.get(name, value) for name, value in zip(Lookup._fields, call, strict=True)]
    return Lookup(*values)


def scale_of(call: Lookup) -> float:
    """Factor of the scores."""
    return call.q.shape[-1] ** -0.5 if call.scale is None else call.scale


def wide_dtype(call: Lookup) -> torch.dtype:
    """Dtype of sums and counts: float32 or wider."""
    return torch.promote_types(call.q.dtype, torch.float32)


def bias_by_channel(call: Lookup) -> Lookup:
    """The lookup with its bias moved into the constant channel of the queries, if any; centring does that itself."""
    if call.bias is None or call.settings.centred or not call.settings.constant_channel:
        return call
    return changed(call, q=with_bias(call.q, call.bias, scale_of(call)), bias=None)


def joined(call: Lookup) -> Lookup:
    """The lookup with a copy of the slots before the keys of every sequence.

    There, causal queries see all of them, being aligned with the last key.
    """
    if call.slots is None:
        return call
    batch, _, m, _ = call.k.shape
    slots = call.slots[0].shape[1]
    k, v = (
        torch.cat([shared.expand(batch, -1, -1, -1), own], dim=2)
        for shared, own in zip(call.slots, (call.k, call.v), strict=True)
    )
    masks = {name: with_slots(getattr(call, name), m, slots) for name in ("key_mask", "attn_mask")}
    return changed(call, k=k, v=v, slots=None, **masks)


def together(q: Tensor) -> Tensor:
    """Queries ``(B, H, N, D)`` as those of one sequence, ``(1, H, B * N, D)``: a view, in the layout of models."""
    return q.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None]


def by_sequence(x: Tensor, q: Tensor) -> Tensor:
    """Rows ``(1, H, B * N, ...)`` of all queries together, sequence by sequence as in ``q``: ``(B, H, N, ...)``."""
    return x[0].reshape(x.shape[1], q.shape[0], q.shape[2], *x.shape[3:]).transpose(0, 1)


def with_slots(mask: Tensor | None, m: int, slots: int) -> Tensor | None:
    """Extend a mask ``(..., M)``, which may broadcast over the keys, by ``slots`` visible slots before them."""
    return None if mask is None else F.pad(mask.expand(*mask.shape[:-1], m), (slots, 0), value=True)


def up_to(limit: Tensor, m: int) -> Tensor:
    """Mask ``(1, 1, N, M)`` that shows each query the keys up to its last one, ``limit (N,)``."""
    return (torch.arange(m, device=limit.device) <= limit[:, None])[None, None]


def visible_keys(call: Lookup, sequences: slice = slice(None), rows: slice = slice(None)) -> Tensor | None:
    """All masks for these rows of these sequences as one, ``(B|1, H|1, N|1, M)``; None if everything may be seen."""
    n, m = call.q.shape[2], call.k.shape[2]
    masks = []
    if call.attn_mask is not None:
        mask = call.attn_mask
        masks.append((mask if mask.shape[0] == 1 else mask[sequences])[:, :, rows])
    if call.causal and n > 1:
        masks.append(band_mask(_band(call), n, m, call.q.device, rows)[None, None])
    if call.key_mask is not None:
        masks.append(call.key_mask[sequences, None, None, :])
    visible = None
    for mask in masks:
        visible = mask if visible is None else visible & mask
    return visible


def count_of(call: Lookup) -> Tensor:
    """Number of keys, slots included, that each query may see, ``(B|1, H|1, N, 1)``."""
    n, m = call.q.shape[2], call.k.shape[2]
    attn_mask = call.attn_mask
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:2], n, m)
    count = count_visible(_band(call), n, m, call.key_mask, attn_mask, call.q.device)
    slots = 0 if call.slots is None else call.slots[0].shape[1]
    return (count[..., None] + slots).to(wide_dtype(call))


def row_factor(call: Lookup, count: Tensor) -> Tensor:
    """``1 / (gamma * (n_i / 2) ** alpha)`` of every row, from the counts ``(B|1, H|1, N, 1)``."""
    factor = (count.clamp_min(1) / 2) ** -call.settings.alpha
    return factor if call.gamma is None else factor / call.gamma.to(factor.dtype)[:, None, None]


def over_mass(x: Tensor, mass: Tensor) -> Tensor:
    """``x (..., D)`` divided by the mass of its rows ``(...)``; a dead row, which is zero, stays zero."""
    return (x / mass.where(mass > TINY, 1.0)[..., None]).to(x.dtype)


def _band(call: Lookup) -> Band:
    return Band(UNBOUNDED, 0 if call.causal else UNBOUNDED)
