"""Rows of weights: made a block at a time, measured, and forgotten."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reluformer.memory.forgetting import decay
from reluformer.memory.lookup import up_to, weights_of
from reluformer.ops.statistics import entropy_from_sums, row_sums
from reluformer.ops.visibility import UNBOUNDED, Band, band_mask

# In thousandths, so that the number of keys in a share is exact: 0.2 % of 1500 keys are 3.
TOP_SHARES = {"top_0_2_percent": 2, "top_1_percent": 10, "top_10_percent": 100}


class Block(NamedTuple):
    """Some rows of some sequences: ``weights (b, H, r, M)`` and ``visible``, which broadcasts against them."""

    weights: Tensor
    visible: Tensor
    sequences: slice
    rows: slice


def blocks(lookup: Mapping[str, Any], most_rows: int) -> Iterator[Block]:
    """The weights of an attention, at most so many queries at a time: of one sequence, or of several short ones."""
    batch, _, n, _ = lookup["q"].shape
    together = max(1, most_rows // max(n, 1))
    for first in range(0, batch, together):
        for row in range(0, n, most_rows):
            yield block(lookup, slice(first, first + together), slice(row, row + most_rows))


def block(lookup: Mapping[str, Any], sequences: slice = slice(None), rows: slice = slice(None)) -> Block:
    """The weights of these rows of these sequences."""
    q, k = lookup["q"][sequences, :, rows], lookup["k"][sequences]  # (b, H, r, D), (b, Hk, M, D)
    visible = _visible(lookup, sequences, rows)
    fades = _fades(lookup, sequences, rows)
    options = {"gamma": lookup["gamma"], "bias": lookup["bias"], "fades": fades}
    weights = weights_of(q, k, lookup["settings"], attn_mask=visible, **options)
    return Block(weights, visible, sequences, rows)


def _visible(lookup: Mapping[str, Any], sequences: slice, rows: slice) -> Tensor:
    """Which keys these rows see, ``(b|1, H|1, r, M)``: never made for all rows at once."""
    q, k, key_mask, attn_mask = (lookup[name] for name in ("q", "k", "key_mask", "attn_mask"))
    band = Band(UNBOUNDED, 0 if lookup["causal"] else UNBOUNDED)
    visible = band_mask(band, q.shape[2], k.shape[2], q.device, rows)[None, None]
    if key_mask is not None:
        visible = visible & key_mask[sequences, None, None, :]
    if attn_mask is not None:
        visible = visible & (attn_mask if attn_mask.shape[0] == 1 else attn_mask[sequences])[:, :, rows]
    if lookup.get("limit") is not None:
        visible = visible & up_to(lookup["limit"][rows], k.shape[2])
    return visible


def _fades(lookup: Mapping[str, Any], sequences: slice, rows: slice) -> Tensor | None:
    """``D (b, H, r, M)`` of these rows in a memory that forgets; None in one that does not."""
    log_forget, n, m = lookup.get("log_forget"), lookup["q"].shape[2], lookup["k"].shape[2]
    if log_forget is None:
        return None
    places = lookup["limit"] if lookup.get("limit") is not None else torch.arange(m - n, m, device=log_forget.device)
    return decay(log_forget[sequences], len(places[rows]), places[rows])


def measure_rows(weights: Tensor, visible: Tensor) -> dict[str, Tensor]:
    """What each row of ``weights (..., M)`` did, by name, each ``(...)``; a row without positive weight means nothing.

    Entropy, effective keys and top shares are of the positive part of the weights; mass and zeros of all.
    """
    count = visible.sum(-1).expand(weights.shape[:-1])  # n_i
    positive = weights.clamp_min(0)
    # None of these depends on the scale of a row: its largest weight becomes 1, and no square or logarithm underflows.
    largest = positive.amax(-1, keepdim=True)
    r = positive / largest.where(largest > 0, 1.0)
    total, r_log_r, _ = row_sums(r)
    safe = total.clamp_min(1)
    measures = {
        "mass": weights.sum(-1),
        "entropy": entropy_from_sums(total, r_log_r),
        "effective_keys": total.square() / r.square().sum(-1).clamp_min(1),
        "zeros": ((weights == 0) & visible).sum(-1) / count.clamp_min(1),
    }
    keys = {name: ((count * share + 999) // 1000).clamp_min(1) for name, share in TOP_SHARES.items()}
    most = max(int(k.max()) for k in keys.values())
    running = r.topk(most, dim=-1).values.cumsum(-1)  # sum of the 1, 2, ... largest
    for name, k in keys.items():
        measures[name] = (running.gather(-1, k[..., None] - 1)[..., 0] / safe).clamp_max(1)
    return measures
