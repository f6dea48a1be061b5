"""The threshold vertex that makes a weighted mean largest.

A mean ``sum_j w_j c_j / sum_j w_j`` with every weight ``w_j`` between two ends is largest where the ``t`` largest
coefficients have their upper weight and the others their lower one, for some ``t`` in ``0 ... M``. Prefix sums over the
upper ends and suffix sums over the lower ones give the means of all ``M + 1`` vertices at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.ops.intervals import WIDE

NEAR = 32.0  # scores no further apart than this need no exponents: their exponentials can be added as they are
FLOOR = torch.finfo(WIDE).min  # the exponent of no weight at all: finite, since inf - inf is NaN


class Sums(NamedTuple):
    """Sums of weights, ``mass * e^exponent``, and of weights times coefficients, ``moment * e^exponent``.

    The exponent is the largest score in the sum, so that neither sum overflows and ``mass`` is at least 1 unless it is
    0; it is None where weights need no exponent. All are ``(..., M)``.
    """

    exponent: Tensor | None
    mass: Tensor
    moment: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "Sums":
        """Apply the same change to all three."""
        exponent = None if self.exponent is None else change(self.exponent)
        return Sums(exponent, change(self.mass), change(self.moment))


@torch.no_grad()
def best_vertex_of_exponentials(low: Tensor, high: Tensor, c: Tensor) -> Tensor:
    """The best vertex for weights ``e^s`` with scores ``s`` between ``low`` and ``high``.

    Args:
        low: Lower ends of the scores ``(..., N, M)``; may be -inf.
        high: Upper ends of the scores ``(..., N, M)``; may be -inf.
        c: Coefficients ``(..., D, M)``.

    Returns:
        Whether each score is at its upper end at the best vertex, ``(..., N, D, M)``.
    """
    top = high.amax(-1, keepdim=True)
    bottom = low.masked_fill(low == -torch.inf, torch.inf).amin(-1, keepdim=True)
    if bool((top - bottom <= NEAR).all()):  # the usual case, in a quarter of the time
        return best_vertex_of_sums((low - top).exp(), (high - top).exp(), c)

    def running(scores: Tensor, c: Tensor) -> Sums:
        some = scores != -torch.inf
        mass = some.to(WIDE)
        return _scan(Sums(scores.clamp_min(FLOOR), mass, mass * c))

    return _best_vertex(low, high, c, running)


@torch.no_grad()
def best_vertex_of_sums(low: Tensor, high: Tensor, c: Tensor) -> Tensor:
    """The best vertex for weights that lie between ``low`` and ``high (..., N, M)`` themselves and are not negative.

    The rest is as in :func:`best_vertex_of_exponentials`.
    """
    return _best_vertex(low, high, c, lambda r, c: Sums(None, r.cumsum(-1), (r * c).cumsum(-1)))


def _best_vertex(low: Tensor, high: Tensor, c: Tensor, running: Callable[[Tensor, Tensor], Sums]) -> Tensor:
    order = c.argsort(-1, descending=True)  # (..., D, M)
    rank, c = order.argsort(-1)[..., None, :, :], c.take_along_dim(order, -1)[..., None, :, :]
    order = order[..., None, :, :]  # (..., 1, D, M)
    above = running(high[..., None, :].take_along_dim(order, -1), c)  # (..., N, D, M)
    below = running(low[..., None, :].take_along_dim(order, -1).flip(-1), c.flip(-1)).map(lambda x: x.flip(-1))
    # Vertex t joins the first t upper weights with the last M - t lower ones.
    first, last = (_nothing_like(_part(x, slice(1))) for x in (above, below))
    vertices = _join(_cat(first, above), _cat(below, last))
    empty = vertices.mass == 0
    means = torch.where(empty, -torch.inf, vertices.moment / vertices.mass.masked_fill(empty, 1.0))
    return rank < means.argmax(-1, keepdim=True)  # NaN counts as the largest, so it is not lost


def _scan(x: Sums) -> Sums:
    """Running sums over the last dimension by doubling: log2 M joins."""
    step = 1
    while step < x.mass.shape[-1]:
        x = _cat(_part(x, slice(step)), _join(_part(x, slice(-step)), _part(x, slice(step, None))))
        step *= 2
    return x


def _join(x: Sums, y: Sums) -> Sums:
    if x.exponent is None or y.exponent is None:
        return Sums(None, x.mass + y.mass, x.moment + y.moment)
    exponent = torch.maximum(x.exponent, y.exponent)
    left, right = (x.exponent - exponent).exp(), (y.exponent - exponent).exp()
    return Sums(exponent, x.mass * left + y.mass * right, x.moment * left + y.moment * right)


def _part(x: Sums, keys: slice) -> Sums:
    return x.map(lambda t: t[..., keys])


def _cat(x: Sums, y: Sums) -> Sums:
    exponent = None if x.exponent is None or y.exponent is None else torch.cat([x.exponent, y.exponent], -1)
    return Sums(exponent, torch.cat([x.mass, y.mass], -1), torch.cat([x.moment, y.moment], -1))


def _nothing_like(x: Sums) -> Sums:
    exponent = None if x.exponent is None else torch.full_like(x.exponent, FLOOR)
    return Sums(exponent, torch.zeros_like(x.mass), torch.zeros_like(x.moment))
