"""The rate of an error: the power of the width that fits it best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression, pvariance

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
    slope, intercept = linear_regression(x, y)
    freedom = len(x) - 2
    if freedom < 1:
        return Rate(slope, None)
    residuals = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    return Rate(slope, t_quantile(freedom) * math.sqrt(residuals / freedom / (len(x) * pvariance(x))))


def t_quantile(freedom: float) -> float:
    """Return the value that Student's t exceeds in absolute value with a probability of 5 %, by bisection."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if Difference(middle, 1.0, freedom).either() > LEVEL else (low, middle)
    return low
