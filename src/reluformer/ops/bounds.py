"""Certified bounds of a lookup: the exact range of ``sum_j w_j v_j`` when every score ``s_j`` has an interval to be in.

Rows of scores ``(..., N, M)`` meet columns of values ``(..., M, D)``, as in attention. Weights are never negative, so
the largest sum takes the upper ends of the values and the smallest the lower ends: what is left is a problem in the
scores alone, with fixed coefficients ``c_j``.

- ReLU, ``w_j = factor * relu(s_j + b) ** p``: separable. Scores of positive coefficients go up, the others down.
- Softmax, and ReLU over its mass: ``w_j = r_j / sum r`` with ``r_j`` increasing in ``s_j``. Raising ``r_j`` moves the
  mean towards ``c_j``, so at the maximum ``c*`` exactly the keys with ``c_j > c*`` are up: sorted by ``c``, one of the
  ``M + 1`` threshold vertices. (Vertex-Softmax, arXiv 2605.10974, for softmax; docs/bounds.md has the proofs.)

The ends contain the true value in spite of rounding (see :mod:`reluformer.ops.intervals`), and are differentiable
almost everywhere in scores and values: the best vertex is chosen without gradient, then evaluated with it, which is the
derivative of the maximum (Danskin). Scores of hidden keys are -inf at both ends; a row that sees nothing gives 0.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from reluformer.ops.arguments import POWERS
from reluformer.ops.intervals import EPS, TINY, WIDE, Interval, widened
from reluformer.ops.statistics import TINY as DEAD
from reluformer.ops.vertices import best_vertex_of_exponentials, best_vertex_of_sums


def relu_bounds(
    scores: Interval,
    values: Interval | Tensor,
    *,
    power: int = 1,
    bias: Tensor | float = 0.0,
    factor: Tensor | float = 1.0,
) -> Interval:
    """Range of ``sum_j factor * relu(s_j + bias) ** power * v_j``: two matrix products for each end.

    Args:
        scores: ``(..., N, M)``.
        values: ``(..., M, D)``.
        power: As in :func:`~reluformer.relu_attention`.
        bias: Added to the scores, broadcasts against them.
        factor: Positive, of a row: broadcasts against ``(..., N, D)``; in a memory ``1 / (gamma * (n / 2) ** alpha)``.

    Returns:
        ``(..., N, D)``, in the type of the scores.
    """
    values = Interval.of(values).wide()
    low, high = _rectified(scores, power, bias)  # (..., N, M)
    # What is positive and what is negative in a sum; their difference is the sum of absolute values for free.
    gains, losses = high @ values.upper.clamp_min(0), low @ values.upper.clamp_max(0)
    least_gains, least_losses = low @ values.lower.clamp_min(0), high @ values.lower.clamp_max(0)
    size = torch.maximum(gains - losses, least_gains - least_losses) * factor
    terms = scores.shape[-1] + 40  # each product has up to 20 roundings of its own, those of the factor included
    error = terms * (EPS * size + TINY)
    return widened((least_gains + least_losses) * factor, (gains + losses) * factor, error).to(scores.lower.dtype)


def softmax_bounds(scores: Interval, values: Interval | Tensor) -> Interval:
    """Range of ``sum_j softmax(s)_j v_j``, exact, in ``O(M log M)`` for each row and column.

    Args:
        scores: ``(..., N, M)``; lower ends may be -inf, and where both are the key is hidden. An upper end of inf or
            NaN gives NaN, which certifies nothing.
        values: ``(..., M, D)``.

    Returns:
        ``(..., N, D)``, in the type of the scores.
    """
    wide, values = scores.wide(), Interval.of(values).wide()
    alive = (wide.upper != -torch.inf).any(-1)[..., None]  # (..., N, 1)
    low, high = (x.where(alive, 0.0) for x in (wide.lower, wide.upper))  # dead rows would be NaN, forward and backward

    def largest(c: Tensor) -> Tensor:
        """Over all scores, of ``c (..., D, M)``, which is centred: ``(..., N, D)``."""
        up = best_vertex_of_exponentials(low, high, c)
        weights = torch.where(up, high[..., None, :], low[..., None, :]).softmax(-1)  # (..., N, D, M)
        return (weights * c[..., None, :, :]).sum(-1)

    return _range_of_means(values, largest, alive).to(scores.lower.dtype)


def relu_mass_bounds(
    scores: Interval, values: Interval | Tensor, *, power: int = 1, bias: Tensor | float = 0.0
) -> Interval:
    """Range of ``sum_j r_j v_j / sum_j r_j`` with ``r_j = relu(s_j + bias) ** power``, exact, in ``O(M log M)``.

    A row whose ``r_j`` may all be 0 may be dead: 0 is in its range. Arguments as in :func:`relu_bounds`.
    """
    values = Interval.of(values).wide()
    low, high = _rectified(scores, power, bias)
    alive = (high.sum(-1) != 0)[..., None]  # (..., N, 1)
    safe_high = high.where(alive, 1.0)

    def largest(c: Tensor) -> Tensor:
        up = best_vertex_of_sums(low, safe_high, c)
        r = torch.where(up, safe_high[..., None, :], low[..., None, :])  # (..., N, D, M)
        return (r * c[..., None, :, :]).sum(-1) / r.sum(-1)

    means = _range_of_means(values, largest, alive)
    # The memories treat rows of hardly any mass as dead or as smaller than they are: between their mean and zero.
    may_die = (low.sum(-1) <= 1e6 * DEAD)[..., None]
    hull = Interval(
        torch.where(may_die, means.lower.clamp_max(0), means.lower),
        torch.where(may_die, means.upper.clamp_min(0), means.upper),
    )
    return hull.to(scores.lower.dtype)


def _rectified(scores: Interval, power: int, bias: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both ends of ``relu(s + bias) ** power``: each right to a few roundings, and zero where it is zero."""
    if power not in POWERS:
        raise ValueError(f"power must be one of {', '.join(map(str, POWERS))}, got {power!r}")
    bias = bias.to(WIDE) if isinstance(bias, Tensor) else bias
    low, high = ((end + bias).relu() for end in (scores.wide().lower, scores.wide().upper))
    for _ in range(power.bit_length() - 1):
        low, high = low.square(), high.square()
    return low, high


def _range_of_means(values: Interval, largest: Callable[[Tensor], Tensor], alive: Tensor) -> Interval:
    """Ends of the weighted means of ``values (..., M, D)``, given what the largest is for coefficients ``(..., D, M)``.

    The error. Coefficients are centred, ``|c| <= R``, so that nothing depends on a common offset; ``u = EPS / 2``. A
    mean whose weights have relative errors ``t_j`` is off by ``2 R sum_j p_j |t_j|`` at most.

    - The choice. If scores are near each other, ``|t_j| <= (NEAR + 4) u``, and two running sums err by ``M u`` each.
      Else a scan rescales every weight ``L <= log2 M + 2`` times with 6 roundings each, and the arguments of its
      exponentials, which telescope to ``s_j - m``, add ``u |s_j - m|``, whatever the size of the scores:
      ``sum_j p_j |s_j - m| <= M / e``, as ``p_j <= exp(s_j - m)``. A wrong choice costs twice the error of a mean, in
      units of ``EPS R`` no more than ``2 (NEAR + 6) + 2 M`` or ``0.8 M + 12 L + 6``.
    - The chosen vertex is evaluated with ``t_j`` as in the scan and two sums of ``M``: ``2.4 M + 8``.

    ``(8 M + 192) EPS R`` is more than all of it, for every ``M``; the sums of ReLU over mass err by less.
    """
    upper, lower = values.upper.mT, values.lower.mT  # (..., D, M)
    slots = upper.shape[-1]

    def ends(c: Tensor) -> tuple[Tensor, Tensor]:
        fixed = c.detach()
        centre = (fixed.amax(-1) + fixed.amin(-1)) / 2  # (..., D)
        reach = (fixed - centre[..., None]).abs().amax(-1)
        mean = largest(c - centre[..., None]) + centre[..., None, :]  # (..., N, D)
        error = EPS * ((8 * slots + 192) * reach + 4 * centre.abs())[..., None, :] + TINY * slots
        return mean.where(alive, 0.0), error.where(alive, 0.0)

    most, error_above = ends(upper)
    least, error_below = ends(-lower)
    return Interval(-(least + error_below), most + error_above)
