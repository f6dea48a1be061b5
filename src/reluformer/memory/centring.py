"""Scores less the mean of their row, over the keys that it sees: ``s_ij - mean_j s_ij = q_i . (k_j - mean_j k_j)``.

What all keys have in common adds the same to every score of a row. Softmax does not see that; under ReLU it decides how
many keys are alive and what mass the row has, and every query must learn to stay clear of it. Centred scores sum to 0,
so that no row is dead either.

Where all rows see the same keys, their mean is taken from the keys. Where each row sees others, as in causal attention,
it takes a number per row, for which the operator has no place; but it has a channel. If the first of every key is 1,
the first of a query is added to all its scores, and its gradient comes with that of the query.
"""

import torch
from torch import Tensor


def with_constant(k: Tensor) -> Tensor:
    """Keys ``(..., D)`` with 1 in their first channel."""
    return torch.cat([torch.ones_like(k[..., :1]), k[..., 1:]], dim=-1)


def centre(
    q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, attn_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Queries ``(B, Hq, N, D)`` and keys ``(B, Hk, M, D)`` whose products are centred; masks as in a lookup.

    With ``causal`` or ``attn_mask`` the keys must have their constant, see :func:`with_constant`.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    keys = k.to(wide)
    seen = keys.new_ones(1, 1, k.shape[2], 1) if key_mask is None else key_mask[:, None, :, None].to(wide)
    if attn_mask is not None:
        pairs = attn_mask.to(wide) * seen.mT  # (B|1, H|1, N, M)
        if causal:
            pairs = pairs.tril(k.shape[2] - q.shape[2])
        keys = keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        means = pairs @ keys / pairs.sum(-1, keepdim=True).clamp_min(1)  # (B, Hq, N, D)
    elif causal:
        before = k.shape[2] - q.shape[2]
        means = ((keys * seen).cumsum(2) / seen.cumsum(2).clamp_min(1))[:, :, before:]  # (B, Hk, N, D)
        means = means.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    else:
        return q, (keys - (keys * seen).sum(2, keepdim=True) / seen.sum(2, keepdim=True).clamp_min(1)).to(k.dtype)
    shift = -(q[..., 1:].to(wide) * means[..., 1:]).sum(-1, keepdim=True)  # (B, Hq, N, 1)
    return torch.cat([shift.to(q.dtype), q[..., 1:]], dim=-1), k


def less_mean(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores ``(..., M)`` less the mean of those that are visible; what is hidden stays hidden by its mask."""
    if visible is None:
        return scores - scores.mean(-1, keepdim=True)
    count = visible.sum(-1, keepdim=True).clamp_min(1)
    return scores - (scores * visible).sum(-1, keepdim=True) / count
