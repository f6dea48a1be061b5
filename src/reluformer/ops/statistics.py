"""Statistics of a row of attention weights: its mass, its entropy and its number of active keys."""

from typing import NamedTuple

import torch
from torch import Tensor

# Masses and weights below this count as zero in the entropy, whose slope is unbounded at zero.
TINY = 1e-20


class AttentionStats(NamedTuple):
    """Statistics of each row of weights ``w_i``, one value per query.

    Each is ``(B, Hq, N)`` (``(T, Hq)`` for packed sequences), float32, or float64 for float64 inputs. Gradients flow
    through ``mass`` and ``entropy``.

    Attributes:
        mass: Sum of the row, ``sum_j w_ij``.
        entropy: Entropy of the normalised row ``p_ij = w_ij / mass_i``, ``-sum_j p_ij log p_ij`` in nats; 0 for a dead
            row.
        active: Number of keys with ``w_ij > 0``; empty if only mass and entropy were requested.
    """

    mass: Tensor
    entropy: Tensor
    active: Tensor


def row_sums(r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum ``r``, ``r log r`` and ``r > 0`` over the last dimension: all that the statistics need, and all additive.

    The argument of the logarithm is clamped so that neither the value nor the gradient of ``r log r`` is NaN at zero.
    """
    return r.sum(-1), (r * r.clamp_min(TINY).log()).sum(-1), (r > 0).sum(-1, dtype=r.dtype)


def entropy_from_sums(total: Tensor, r_log_r: Tensor) -> Tensor:
    """Entropy of a row from ``R = sum r`` and ``E = sum r log r``: ``log R - E / R``, whatever the scale of ``r``."""
    alive = total > TINY
    safe = torch.where(alive, total, 1.0)
    return torch.where(alive, safe.log() - r_log_r / safe, 0.0)
