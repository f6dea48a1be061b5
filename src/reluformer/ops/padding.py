"""Padding without a mask: a key of zeros scores zero, and ReLU gives it no weight.

Kernels without masks are faster, and those written for Hopper take none. All that remains of the mask is the number of
keys that a query sees, which is a factor of its whole row.
"""

import torch
from torch import Tensor

from reluformer.ops.statistics import AttentionStats
from reluformer.ops.visibility import Band, count_visible


def hide_keys(k: Tensor, key_mask: Tensor) -> Tensor:
    """Zero the keys ``(B, H, M, D)`` that ``key_mask (B, M)`` hides: they get no weight if scores have no bias."""
    return k.masked_fill(~key_mask[:, None, :, None], 0.0)


def rescale(
    out: Tensor, stats: AttentionStats, key_mask: Tensor, band: Band, alpha: float
) -> tuple[Tensor, AttentionStats]:
    """Correct the output and mass of rows that were divided as if they saw the hidden keys too."""
    if alpha == 0:
        return out, stats
    n, m = out.shape[2], key_mask.shape[1]
    wide = torch.promote_types(out.dtype, torch.float32)
    counted, seen = (count_visible(band, n, m, mask, None, out.device).to(wide) for mask in (None, key_mask))
    factor = (counted.clamp_min(1) / seen.clamp_min(1)) ** alpha  # (B, 1, N)
    mass = stats.mass * factor[: stats.mass.shape[0]] if stats.mass.numel() else stats.mass
    return (out * factor[..., None]).to(out.dtype), AttentionStats(mass, *stats[1:])
