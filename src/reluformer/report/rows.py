"""Rows of weights, computed a block at a time, measured, and dropped."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.memory.forgetting import decay
from reluformer.memory.lookup import Lookup, changed, up_to, visible_keys
from reluformer.memory.weights import weights_of
from reluformer.ops.statistics import entropy_from_sums, row_sums

# Shares in thousandths, so that the number of keys in one is exact: 0.2 % of 1500 keys are 3.
TOP_SHARES = {"top_0_2_percent": 2, "top_1_percent": 10, "top_10_percent": 100}


class Block(NamedTuple):
    """Some rows of some sequences: ``weights (b, H, r, M)`` and ``visible``, which broadcasts against them."""

    weights: Tensor
    visible: Tensor
    sequences: slice
    rows: slice


def blocks(call: Lookup, most_rows: int) -> Iterator[Block]:
    """The weights of an attention, at most ``most_rows`` queries at a time, of one sequence or several short ones."""
    batch, _, n, _ = call.q.shape
    together = max(1, most_rows // max(n, 1))
    for first in range(0, batch, together):
        for row in range(0, n, most_rows):
            yield block(call, slice(first, first + together), slice(row, row + most_rows))


def block(call: Lookup, sequences: slice = slice(None), rows: slice = slice(None)) -> Block:
    """The weights of these rows of these sequences."""
    visible = _visible(call, sequences, rows)
    part = changed(
        call, q=call.q[sequences, :, rows], k=call.k[sequences], attn_mask=visible, key_mask=None, causal=False,
        limit=None,
    )  # fmt: skip
    return Block(weights_of(part, _fades(call, sequences, rows)), visible, sequences, rows)


def _visible(call: Lookup, sequences: slice, rows: slice) -> Tensor:
    """Mask of the keys that these rows see, ``(b|1, H|1, r|1, M)``; it is never built for all rows at once."""
    m = call.k.shape[2]
    visible = visible_keys(call, sequences, rows)
    if visible is None:
        visible = torch.ones(1, 1, 1, m, dtype=torch.bool, device=call.q.device)
    return visible if call.limit is None else visible & up_to(call.limit[rows], m)


def _fades(call: Lookup, sequences: slice, rows: slice) -> Tensor | None:
    """``D (b, H, r, M)`` of these rows in a memory that forgets; None in one that does not."""
    if call.log_forget is None:
        return None
    n, m = call.q.shape[2], call.k.shape[2]
    places = torch.arange(m - n, m, device=call.q.device) if call.limit is None else call.limit
    return decay(call.log_forget[sequences], len(places[rows]), places[rows])


def measure_rows(weights: Tensor, visible: Tensor) -> dict[str, Tensor]:
    """Measures ``(...)`` of each row of ``weights (..., M)``, by name; those of a row without positive weight are void.

    Entropy, effective keys and top shares are those of the positive part of the weights; mass and zeros those of all.
    """
    count = visible.sum(-1).expand(weights.shape[:-1])  # n_i
    positive = weights.clamp_min(0)
    # What is taken from r does not depend on the scale of a row: the largest weight becomes 1, so nothing underflows.
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
