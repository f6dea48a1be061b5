"""Certified bounds of a lookup: the exact range of ``sum_j w_j v_j`` when every score ``s_j`` lies in an interval.

Rows of scores ``(..., N, M)`` meet columns of values ``(..., M, D)``, as in attention. Weights are never negative, so
the largest sum takes the upper ends of the values and the smallest the lower ends. What remains is a problem in the
scores alone, with fixed coefficients ``c_j``.

- ReLU, ``w_j = factor * relu(s_j + b) ** p``: separable. For the largest sum, the scores of positive coefficients take
  their upper ends and the others their lower ends.
- Softmax, and ReLU divided by its mass: ``w_j = r_j / sum r`` with ``r_j`` increasing in ``s_j``. Raising ``r_j`` moves
  the mean towards ``c_j``, so at the maximum ``c*`` exactly the keys with ``c_j > c*`` are at their upper ends: with
  the keys sorted by ``c``, this is one of ``M + 1`` threshold vertices. (Vertex-Softmax, arXiv 2605.10974, for softmax;
  docs/bounds.md has the proofs.)

The bounds contain the true value in spite of rounding (see :mod:`reluformer.ops.intervals`). They are differentiable
almost everywhere in scores and values: the best vertex is chosen without a gradient, then evaluated with one, which
gives the derivative of the maximum (Danskin). Scores of hidden keys are -inf at both ends; a row that sees no key
gives 0.
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
    """Range of ``sum_j factor * relu(s_j + bias) ** power * v_j``, by two matrix products for each end.

    Args:
        scores: Scores ``(..., N, M)``.
        values: Values ``(..., M, D)``.
        power: As in :func:`~reluformer.relu_attention`.
        bias: Bias added to the scores, against which it broadcasts.
        factor: Positive factor of each row, which broadcasts against ``(..., N, D)``; in a memory
            ``1 / (gamma * (n / 2) ** alpha)``.

    Returns:
        The range ``(..., N, D)``, in the dtype of the scores.
    """
    values = Interval.of(values).wide()
    low, high = _rectified(scores, power, bias)  # (..., N, M)
    # The positive and the negative terms of each sum: their difference is the sum of absolute values, for free.
    gains, losses = high @ values.upper.clamp_min(0), low @ values.upper.clamp_max(0)
    least_gains, least_losses = low @ values.lower.clamp_min(0), high @ values.lower.clamp_max(0)
    size = torch.maximum(gains - losses, least_gains - least_losses) * factor
    terms = scores.shape[-1] + 40  # each product has up to 20 roundings of its own, including those of the factor
    error = terms * (EPS * size + TINY)
    return widened((least_gains + least_losses) * factor, (gains + losses) * factor, error).to(scores.lower.dtype)


def softmax_bounds(scores: Interval, values: Interval | Tensor) -> Interval:
    """Range of ``sum_j softmax(s)_j v_j``, exact, in ``O(M log M)`` for each row and column.

    Args:
        scores: Scores ``(..., N, M)``; lower ends may be -inf, and a key is hidden where both ends are. An upper end of
            inf or NaN gives NaN, which certifies nothing.
        values: Values ``(..., M, D)``.

    Returns:
        The range ``(..., N, D)``, in the dtype of the scores.
    """
    wide, values = scores.wide(), Interval.of(values).wide()
    alive = (wide.upper != -torch.inf).any(-1)[..., None]  # (..., N, 1)
    low, high = (x.where(alive, 0.0) for x in (wide.lower, wide.upper))  # else dead rows give NaN, backward too

    def largest(c: Tensor) -> Tensor:
        """The largest mean ``(..., N, D)`` of the centred coefficients ``c (..., D, M)`` over all scores."""
        up = best_vertex_of_exponentials(low, high, c)
        weights = torch.where(up, high[..., None, :], low[..., None, :]).softmax(-1)  # (..., N, D, M)
        return (weights * c[..., None, :, :]).sum(-1)

    return _range_of_means(values, largest, alive).to(scores.lower.dtype)


def relu_mass_bounds(
    scores: Interval, values: Interval | Tensor, *, power: int = 1, bias: Tensor | float = 0.0
) -> Interval:
    """Range of ``sum_j r_j v_j / sum_j r_j`` with ``r_j = relu(s_j + bias) ** power``, exact, in ``O(M log M)``.

    A row whose ``r_j`` may all be 0 may be dead, so its range includes 0. Arguments as in :func:`relu_bounds`.
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
    # The memories treat a row with hardly any mass as dead, or shrink it: its result lies between its mean and zero.
    may_die = (low.sum(-1) <= 1e6 * DEAD)[..., None]
    hull = Interval(
        torch.where(may_die, means.lower.clamp_max(0), means.lower),
        torch.where(may_die, means.upper.clamp_min(0), means.upper),
    )
    return hull.to(scores.lower.dtype)


def _rectified(scores: Interval, power: int, bias: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both ends of ``relu(s + bias) ** power``, each correct to a few roundings, and exactly 0 where it should be."""
    if power not in POWERS:
        raise ValueError(f"power must be one of {', '.join(map(str, POWERS))}, got {power!r}")
    bias = bias.to(WIDE) if isinstance(bias, Tensor) else bias
    low, high = ((end + bias).relu() for end in (scores.wide().lower, scores.wide().upper))
    for _ in range(power.bit_length() - 1):
        low, high = low.square(), high.square()
    return low, high


def _range_of_means(values: Interval, largest: Callable[[Tensor], Tensor], alive: Tensor) -> Interval:
    """Range of the weighted means of ``values (..., M, D)``, given a function that finds the largest.

    ``largest`` maps centred coefficients ``(..., D, M)`` to their largest means ``(..., N, D)``.

    The error. Coefficients are centred, ``|c| <= R``, so that nothing depends on a common offset; ``u = EPS / 2``. A
    mean whose weights have relative errors ``t_j`` is off by at most ``2 R sum_j p_j |t_j|``.

    - Choosing the vertex. If scores are near each other, ``|t_j| <= (NEAR + 4) u``, and two running sums err by ``M u``
      each. Otherwise a scan rescales every weight ``L <= log2 M + 2`` times with 6 roundings each, and the arguments of
      its exponentials, which telescope to ``s_j - m``, add ``u |s_j - m|``. Whatever the size of the scores,
      ``sum_j p_j |s_j - m| <= M / e``, since ``p_j <= exp(s_j - m)``. A wrong choice costs twice the error of a mean:
      in units of ``EPS R``, at most ``2 (NEAR + 6) + 2 M`` or ``0.8 M + 12 L + 6``.
    - Evaluating the chosen vertex, with ``t_j`` as in the scan and two sums of ``M`` terms: ``2.4 M + 8``.

    ``(8 M + 192) EPS R`` exceeds the total for every ``M``; the sums of ReLU divided by its mass err by less.
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
