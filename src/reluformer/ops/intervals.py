"""Intervals of tensors, rounded outward: what is inside stays inside, in spite of floating-point rounding.

Everything is computed in float64 and widened by a bound on its own rounding error before it is returned. With the unit
roundoff ``u = eps / 2``, a sum of ``K`` products in any order errs by at most ``K u / (1 - K u)`` times the sum of
their absolute values (Higham, Accuracy and Stability, section 3.1). Each function below widens by more than twice the
error that its sums and products can make, taking ``eps`` where ``u`` would do. This also covers the additions that
widen and the rounding of the error bound itself. ``TINY`` for each product covers underflow.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

WIDE = torch.float64
EPS = torch.finfo(WIDE).eps
TINY = torch.finfo(WIDE).tiny


@dataclass(frozen=True)
class Interval:
    """All tensors between ``lower`` and ``upper``, element by element; both ends have the same shape."""

    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, x: "Tensor | Interval") -> "Interval":
        """``x`` itself if it is an interval, else the interval that contains only the tensor ``x``."""
        return x if isinstance(x, Interval) else cls(x, x)

    @classmethod
    def around(cls, x: Tensor, radius: float, least: float = -torch.inf, most: float = torch.inf) -> "Interval":
        """The L-infinity ball with this radius around ``x``, clipped to lie between ``least`` and ``most``.

        The ends are float64 and rounded outward.
        """
        if not 0 <= radius < torch.inf:
            raise ValueError(f"radius must be a number >= 0, got {radius!r}")
        wide = x.to(WIDE)
        slack = 2 * EPS * (wide.detach().abs() + radius) if radius else torch.zeros_like(wide)
        return cls((wide - radius - slack).clamp(least, most), (wide + radius + slack).clamp(least, most))

    @property
    def shape(self) -> torch.Size:
        """The shape of both ends."""
        return self.lower.shape

    @property
    def width(self) -> Tensor:
        """``upper - lower``."""
        return self.upper - self.lower

    @property
    def magnitude(self) -> Tensor:
        """The largest absolute value of each element, without a gradient: the measure of rounding errors."""
        return torch.maximum(self.lower.detach().abs(), self.upper.detach().abs())

    def contains(self, x: Tensor) -> Tensor:
        """Whether each element of ``x`` is inside; NaN never is."""
        return (self.lower <= x) & (x <= self.upper)

    def wide(self) -> "Interval":
        """The same interval in float64."""
        return Interval(self.lower.to(WIDE), self.upper.to(WIDE))

    def to(self, dtype: torch.dtype) -> "Interval":
        """The interval in another dtype, rounded outward."""
        if dtype == WIDE:
            return self.wide()
        info = torch.finfo(dtype)  # a conversion errs by at most eps / 2 of its result
        slack = info.eps * self.magnitude + info.tiny
        return Interval((self.lower - slack).to(dtype), (self.upper + slack).to(dtype))

    def map(self, change: Callable[[Tensor], Tensor]) -> "Interval":
        """Apply the same change of shape to both ends."""
        return Interval(change(self.lower), change(self.upper))


def widened(lower: Tensor, upper: Tensor, error: Tensor | float) -> Interval:
    """Make computed ends sound by a bound on their error, through which no gradient flows."""
    error = error.detach() if isinstance(error, Tensor) else error
    return Interval(lower - error, upper + error)


def add(x: Interval, y: "Interval | Tensor") -> Interval:
    """The interval of ``x + y``."""
    x, y = x.wide(), Interval.of(y).wide()
    return widened(x.lower + y.lower, x.upper + y.upper, 2 * EPS * (x.magnitude + y.magnitude))


def total(x: Interval, dim: int, scale: float = 1.0) -> Interval:
    """``scale`` (positive) times the sum over a dimension; ``scale = 1 / n`` makes it the mean."""
    x = x.wide()
    error = (x.shape[dim] + 4) * EPS * scale * x.magnitude.sum(dim) + TINY
    return widened(x.lower.sum(dim) * scale, x.upper.sum(dim) * scale, error)


def scaled(x: Interval, factor: Tensor | float, roundings: int = 8) -> Interval:
    """``factor * x`` for a positive factor that took up to ``roundings`` roundings; it broadcasts against ``x``."""
    x = x.wide()
    error = (roundings + 2) * EPS * x.magnitude * factor + TINY
    return widened(x.lower * factor, x.upper * factor, error)


def affine(x: Interval, weight: Tensor, bias: Tensor | None = None, weight_error: Tensor | None = None) -> Interval:
    """``x weight^T + bias`` by centre and radius: ``weight centre + bias +- |weight| radius``.

    Args:
        x: Inputs ``(..., K)``.
        weight: Weights ``(out, K)``, as in ``nn.Linear``.
        bias: Bias ``(out,)``.
        weight_error: Largest error of each weight ``(out, K)``, for weights that are rounded products themselves.
    """
    x, weight = x.wide(), weight.to(WIDE)
    centre, radius = (x.lower + x.upper) / 2, (x.upper - x.lower) / 2
    # Centre and radius are rounded, then their products, then the sums: all in proportion to |weight| (|centre| +
    # radius), so a slightly larger radius covers all of it, through the one product that is needed anyway.
    reach = centre.detach().abs() + radius.detach()
    spread = (radius + (2 * x.shape[-1] + 16) * EPS * reach) @ weight.abs().mT
    if weight_error is not None:
        spread = spread + 2 * reach @ weight_error.detach().to(WIDE).mT
    middle, error = centre @ weight.mT, TINY * (x.shape[-1] + 16)
    if bias is None:
        return widened(middle - spread, middle + spread, error)
    middle = middle + bias.to(WIDE)
    return widened(middle - spread, middle + spread, 4 * EPS * bias.to(WIDE).abs() + error)


def products(q: Interval, k: Interval, scale: float = 1.0) -> Interval:
    """``scale`` (positive) times the inner products of rows ``q (..., N, D)`` with rows ``k (..., M, D)``.

    Every elementary product takes its own best and worst pair of ends, which is the tightest for independent intervals
    and takes memory for ``(..., N, M, D)`` elements; the result is ``(..., N, M)``.
    """
    q, k = q.wide(), k.wide()
    left, right = q.map(lambda x: x[..., :, None, :]), k.map(lambda x: x[..., None, :, :])
    corners = [a * b for a in (left.lower, left.upper) for b in (right.lower, right.upper)]  # (..., N, M, D)
    least = torch.minimum(torch.minimum(*corners[:2]), torch.minimum(*corners[2:])).sum(-1)
    most = torch.maximum(torch.maximum(*corners[:2]), torch.maximum(*corners[2:])).sum(-1)
    count = q.shape[-1] + 8
    error = scale * count * EPS * (q.magnitude @ k.magnitude.mT) + TINY * count
    return widened(scale * least, scale * most, error)
