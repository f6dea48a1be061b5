"""Regulariser that keeps rows of ReLU weights close to distributions: unit mass, and an entropy below a ceiling.

``|log sum_j w_ij| + max(H(w_i) - c log n_i, 0)``, averaged over the rows of a site, then over sites. The mean may be
taken over a share of the sequences: statistics take time, and the order of a batch is independent of its content.
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
    """Cost of the attention weights of a model.

    Attributes:
        mass: Weight of the mass term.
        entropy: Weight of the entropy term.
        ceiling: Ceiling ``c`` of the entropy, as a share of ``log n_i``.
        share: Share of the sequences in a batch that are measured: the first ones, and at least one; 1 for all.
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
        """Whether any term has weight. Not ``__bool__``: PyTorch 2.11 compiles that to False for dynamic numbers."""
        return self.mass > 0 or self.entropy > 0

    def sequences(self, batch: int) -> int | None:
        """Number of sequences in a batch, from the first, that are measured; None for all."""
        return None if self.share == 1 else math.ceil(self.share * batch)

    def __call__(self, sites: Sequence[AttentionStats], count: Tensor, query_mask: Tensor | None = None) -> Tensor:
        """Total cost of these sites, a scalar: the sum over sites of the mean over live rows.

        It takes all sites at once: a model has many, and each alone would take a few dozen launches on a GPU.

        Args:
            sites: Statistics of the rows, each ``(B, H, N)``.
            count: Number of keys that each row sees, broadcasts against the statistics.
            query_mask: Queries that count, ``(B, N)``: all but padding.
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
