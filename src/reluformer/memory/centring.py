"""Centring: scores less their mean over the keys that a row sees, ``s_ij - mean_j s_ij = q_i . (k_j - mean_j k_j)``.

What all keys have in common adds the same constant to every score of a row. Softmax is invariant to it; under ReLU it
decides how many keys are active and what mass the row has, and every query would have to learn to avoid it. Centred
scores sum to 0, so that no row is dead either, as long as its bias is positive.

Centring takes one number per row, the bias less the mean, which goes into the channel of the bias (constant.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.memory.constant import with_first


def centre(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    scale: float,
    *,
    causal: bool,
    key_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> Tensor:
    """Queries ``(B, Hq, N, D)`` whose scores with keys ``(B, Hk, M, D)`` are centred and include the bias.

    The keys must have their constant, see :mod:`~reluformer.memory.constant`; bias and masks are those of a lookup.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    means = _means(k.to(wide), q.shape, causal, key_mask, attn_mask)  # (B, Hk|Hq, N|1, D)
    means = means.repeat_interleave(q.shape[1] // means.shape[1], dim=1)
    first = -(q[..., 1:].to(wide) * means[..., 1:]).sum(-1, keepdim=True)  # (B, Hq, N, 1)
    if bias is not None:
        first = first + bias.to(wide)[:, None, None] / scale
    return with_first(q, first)


def _means(k: Tensor, queries: torch.Size, causal: bool, key_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor:
    """Mean of the keys ``(B, Hk, M, D)`` that each query sees, ``(B, Hk|Hq, N|1, D)``."""
    n, m = queries[2], k.shape[2]
    seen = k.new_ones(1, 1, m, 1) if key_mask is None else key_mask[:, None, :, None].to(k.dtype)
    if attn_mask is not None:
        pairs = attn_mask.to(k.dtype) * seen.mT  # (B|1, H|1, N, M)
        pairs = pairs.tril(m - n) if causal else pairs
        keys = k.repeat_interleave(queries[1] // k.shape[1], dim=1)
        return pairs @ keys / pairs.sum(-1, keepdim=True).clamp_min(1)
    if causal:
        means = (k * seen).cumsum(2) / seen.cumsum(2).clamp_min(1)
        return means[:, :, m - n :] if n <= m else F.pad(means, (0, 0, n - m, 0))  # the first queries see no key
    return (k * seen).sum(2, keepdim=True) / seen.sum(2, keepdim=True).clamp_min(1)


def less_mean(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores ``(..., M)`` less the mean of the visible ones; hidden scores are still to be masked."""
    if visible is None:
        return scores - scores.mean(-1, keepdim=True)
    count = visible.sum(-1, keepdim=True).clamp_min(1)
    return scores - (scores * visible).sum(-1, keepdim=True) / count
