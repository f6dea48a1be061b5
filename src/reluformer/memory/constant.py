"""A channel that is the same everywhere: room for what the operator has no place for.

Where the first channel of every key is 1, that of a query is added to all its scores: its bias. The bias's gradient
comes with that of the query, and scores stay homogeneous in the query, which is what the fastest kernels ask for. Where
the first channel of every value is 1 as well, that of a sum is the mass of its row, which costs nothing either.
"""

import torch
from torch import Tensor


def with_constant(x: Tensor) -> Tensor:
    """Keys or values ``(..., D)`` with 1 in their first channel."""
    return with_first(x, torch.ones_like(x[..., :1]))


def with_bias(q: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Queries ``(B, H, N, D)`` whose scores with keys that have their constant have the bias ``(H,)`` in them."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return with_first(q, (bias.to(wide) / scale)[:, None, None].expand(*q.shape[:-1], 1))


def with_first(x: Tensor, first: Tensor) -> Tensor:
    """``x (..., D)`` with ``first (..., 1)`` as its first channel."""
    return torch.cat([first.to(x.dtype), x[..., 1:]], dim=-1)
