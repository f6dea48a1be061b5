"""What keeps rows of ReLU weights near those of a distribution: unit mass and an entropy with a ceiling.

``|log sum_j w_ij| + max(H(w_i) - c log n_i, 0)``, averaged over the rows of a site, then over sites.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.ops import AttentionStats
from reluformer.ops.statistics import TINY


@dataclass(frozen=True)
class Regulariser:
    """Weights of the two terms and the ceiling ``c`` of the entropy, as a share of ``log n_i``."""

    mass: float = 0.0
    entropy: float = 0.0
    ceiling: float = 0.7

    def __post_init__(self) -> None:
        for name in ("mass", "entropy", "ceiling"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")

    def __bool__(self) -> bool:
        return self.mass > 0 or self.entropy > 0

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
