"""Student's t, Welch's test and the two one-sided tests, without SciPy."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The continued fraction converges in tens of terms for every degree of freedom a study can have.
_TERMS = 300
_TINY = 1e-300


@dataclass(frozen=True)
class Difference:
    """The difference of two means, with what a t-test needs.

    Attributes:
        mean: The first mean minus the second.
        error: Standard error of the difference.
        freedom: Welch's degrees of freedom.
    """

    mean: float
    error: float
    freedom: float

    def above(self, margin: float) -> float:
        """Return the p-value against "the difference is at most ``margin``", small if it is larger."""
        return _upper_tail(self.mean - margin, self.error, self.freedom)

    def below(self, margin: float) -> float:
        """Return the p-value against "the difference is at least ``margin``", small if it is smaller."""
        return _upper_tail(margin - self.mean, self.error, self.freedom)

    def either(self, margin: float = 0.0) -> float:
        """Return Welch's two-sided p-value against "the difference is ``margin``"."""
        return min(1.0, 2 * min(self.above(margin), self.below(margin)))

    def within(self, margin: float) -> float:
        """Return the p-value of the two one-sided tests, small if the difference lies within ``-margin ... margin``."""
        return max(self.above(-margin), self.below(margin))


def welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two samples, of two values or more each, whose variances need not be equal."""
    n, m = len(first), len(second)
    a, b = statistics.variance(first) / n, statistics.variance(second) / m
    # Without any spread, Welch's formula for the degrees of freedom is 0 / 0: take the pooled test's.
    freedom = (a + b) ** 2 / (a * a / (n - 1) + b * b / (m - 1)) if a * a + b * b > 0 else float(n + m - 2)
    return Difference(statistics.fmean(first) - statistics.fmean(second), math.sqrt(a + b), freedom)


def _upper_tail(distance: float, error: float, freedom: float) -> float:
    """Return P(T > distance / error); without any spread, the sign alone decides."""
    if error == 0:
        return 0.0 if distance > 0 else 1.0
    t = distance / error
    half = incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return half if t > 0 else 1 - half


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function ``I_x(a, b)``, by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # past this point the fraction converges slowly, its mirror image fast
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(
        a * math.log(x) + b * math.log1p(-x) - math.log(a) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    )
    fraction, c, d = 1.0, 1.0, 0.0
    for i in range(_TERMS):
        k = i // 2
        if i == 0:
            term = 1.0
        elif i % 2:
            term = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
        else:
            term = k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k))
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        fraction *= c * d
        if abs(c * d - 1) < 1e-15 and i > 0:
            break
    return front * (fraction - 1)


def _away_from_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY
