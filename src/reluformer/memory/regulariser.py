"""What keeps rows of ReLU weights near those of a distribution: unit mass and an entropy with a ceiling.

``|log sum_j w_ij| + max(H(w_i) - c log n_i, 0)``, averaged over the rows of a site, then over sites. A mean can be had
from a share of the rows: statistics take time, and what a batch holds has nothing to do with its order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.ops import AttentionStats
from reluformer.ops.statistics import TINY


@dataclass(frozen=True)
class Regulariser:
    """Weights of the two terms, the ceiling ``c`` of the entropy, as a share of ``log n_i``, and what is measured.

    That is a share of the sequences in a batch, the first ones, and at least one; 1 for all.
    """

    mass: float = 0.0
    entropy: float = 0.0
    ceiling: float = 0.7
    share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("mass", "entropy", "ceiling"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ValueError(f"share must be a number above 0 and at most 1, got {self.share!r}")

    @property
    def costs(self) -> bool:
        """Whether it does anything. No ``__bool__``: PyTorch 2.11 compiles that to False where numbers are dynamic."""
        return self.mass > 0 or self.entropy > 0

    def sequences(self, batch: int) -> int | None:
        """How many of the sequences in a batch are measured, the first ones; None for all."""
        return None if self.share == 1 else math.ceil(self.share * batch)

    def __call__(self, sites: Sequence[AttentionStats], count: Tensor, query_mask: Tensor | None = None) -> Tensor:
        """What these sites cost together, a scalar: the sum of their means over rows that are alive.

        All sites at once: a model has many, and each alone would be a few dozen launches on a GPU.

        Args:
            sites: Statistics of the rows, each ``(B, H, N)``.
            count: How many keys each row sees, broadcasts against them.
            query_mask: Which queries count, ``(B, N)``; padding should not.
        """
        mass = torch.stack([stats.mass for stats in sites])  # (sites, B, H, N)
        alive = mass > TINY
        if query_mask is not None:
            alive = alive & query_mask[:, None, :]
        cost = torch.zeros_like(mass)
        if self.mass > 0:  # dead rows are replaced before the logarithm: their gradient is zero, not NaN
            cost = self.mass * mass.where(alive, 1.0).log().abs()
        if self.entropy > 0:
            entropy = torch.stack([stats.entropy for stats in sites])
            cost = cost + self.entropy * (entropy - self.ceiling * count.clamp_min(1).log()).clamp_min(0)
        rows = alive.sum((1, 2, 3)).clamp_min(1)  # (sites,)
        return (cost.where(alive, 0.0).sum((1, 2, 3)) / rows).sum()
