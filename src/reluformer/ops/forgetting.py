"""The forget gate: how far a weight fades between its key and its query.

With gates ``f_l`` in (0, 1] at the positions of the keys, the weight of key ``j`` at position ``i`` is multiplied by

    f_{j+1} ... f_i = exp(c_i - c_j)        c_t = log f_0 + ... + log f_t

Back ends take the sums ``c``, which never rise from key to key. They are float64: over 16384 positions float32 would
lose the digits that differences of neighbours need.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

# Logarithm below which a faded weight is forgotten: it is zero, and whole blocks of such weights are never computed.
# 2^-32 is 2^-8 of float32's rounding, which leaves room for scores of very different size.
FAINTEST = -32 * math.log(2)


def accumulate(log_forget: Tensor) -> Tensor:
    """The sums ``c (B, H, M)`` of the logarithms of the gates, differentiable."""
    return log_forget.to(torch.float64).cumsum(-1)


def at_queries(c: Tensor, n: int) -> Tensor:
    """``c (B, H, M)`` at the positions of the queries, ``(B, H, N)``, the last at the last key; 0 before the first."""
    return F.pad(c, (n - c.shape[-1], 0))


def at_keys(x: Tensor, m: int) -> Tensor:
    """Numbers that belong to queries, ``x (B, H, N)``, placed at the keys of the same position, ``(B, H, M)``.

    Keys without a query get 0.
    """
    return F.pad(x, (m - x.shape[-1], 0))


def first_kept(c: Tensor, n: int, rows: int) -> list[int]:
    """For each block of ``rows`` queries, how many of the first keys it has forgotten in every sequence and head."""
    brightest = at_queries(c, n)[..., ::rows].contiguous()  # the first query of a block has forgotten the least
    forgotten: list[int] = torch.searchsorted(-c.contiguous(), FAINTEST - brightest).amin((0, 1)).tolist()
    return forgotten
