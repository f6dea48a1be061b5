"""The rate of an error: the power of the width that fits it best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from reluformer.study.report.student import Difference

LEVEL = 0.05


@dataclass(frozen=True)
class Rate:
    """``error ~ width ** slope``; ``interval`` is half the 95 % confidence interval, None for only two points."""

    slope: float
    interval: float | None


def fit_rate(widths: Sequence[float], errors: Sequence[float]) -> Rate:
    """Fit log error over log width by least squares."""
    x, y = [math.log(width) for width in widths], [math.log(error) for error in errors]
    mean_x, mean_y, freedom = fmean(x), fmean(y), len(x) - 2
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    if freedom < 1:
        return Rate(slope, None)
    residuals = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return Rate(slope, t_quantile(freedom) * math.sqrt(residuals / freedom / spread))


def t_quantile(freedom: float) -> float:
    """Return the value that Student's t exceeds in absolute value with a probability of 5 %, by bisection."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if Difference(middle, 1.0, freedom).either() > LEVEL else (low, middle)
    return low
