"""What keeps rows of ReLU weights near those of a distribution: unit mass and an entropy with a ceiling.

``|log sum_j w_ij| + max(H(w_i) - c log n_i, 0)``, averaged over the rows of a site.
"""

from dataclasses import dataclass

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

    def __call__(self, stats: AttentionStats, count: Tensor, query_mask: Tensor | None = None) -> Tensor:
        """The penalty of one site, a scalar: the mean over its rows that are alive.

        Args:
            stats: Of the rows, ``(B, H, N)``.
            count: How many keys each row sees, broadcasts against them.
            query_mask: Which queries count, ``(B, N)``; padding should not.
        """
        alive = stats.mass > TINY
        if query_mask is not None:
            alive = alive & query_mask[:, None, :]
        total = alive.sum().clamp_min(1)
        # Dead rows are replaced before the logarithm: their gradient is zero, not NaN.
        penalty = stats.mass.new_zeros(())
        if self.mass > 0:
            penalty = penalty + self.mass * stats.mass.where(alive, 1.0).log().abs().sum() / total
        if self.entropy > 0:
            excess = (stats.entropy - self.ceiling * count.clamp_min(1).log()).clamp_min(0)
            penalty = penalty + self.entropy * excess.where(alive, 0.0).sum() / total
        return penalty
