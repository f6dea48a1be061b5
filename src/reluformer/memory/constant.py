"""A constant channel, which carries the bias and the mass through the operator.

Where the first channel of every key is 1, the first channel of a query is added to all its scores: its bias. The
gradient of the bias comes with that of the query, and scores stay homogeneous in the query, as the fastest kernels
require. Where the first channel of every value is 1 as well, that of a sum is the mass of its row, at no extra cost.
"""

import torch
from torch import Tensor


def with_constant(x: Tensor) -> Tensor:
    """Keys or values ``(..., D)`` with 1 in their first channel."""
    return with_first(x, torch.ones_like(x[..., :1]))


def with_bias(q: Tensor, bias: Tensor, scale: float) -> Tensor:
    """Queries ``(B, H, N, D)`` whose scores with keys that have their constant include the bias ``(H,)``."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return with_first(q, (bias.to(wide) / scale)[:, None, None].expand(*q.shape[:-1], 1))


def with_first(x: Tensor, first: Tensor) -> Tensor:
    """``x (..., D)`` with ``first (..., 1)`` as its first channel."""
    return torch.cat([first.to(x.dtype), x[..., 1:]], dim=-1)
