"""Forgetting: the weight of a key fades with every token after it, by a gate that this token computes.

    f_t = sigmoid(w_h.x_t + b_h)        D_ij = sum_{l=j+1..i} log f_l <= 0

For an activation that normalises a row, ``D`` is added to the scores; for any other, the weights are multiplied by
``exp(D)``. For softmax the two are the same. The gate is that of the Forgetting Transformer, arXiv 2503.02130.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALIGNED = 8  # a cached key grows by a multiple of this many channels: kernels read 16 bytes at a time


class ForgetGate(nn.Module):
    """Computes the logarithm of one gate per head and token; ``start`` is the initial value of its bias."""

    def __init__(self, width: int, heads: int, start: float) -> None:
        super().__init__()
        self.project = nn.Linear(width, heads)
        nn.init.constant_(self.project.bias, start)
        self.project.start_bias = start  # type: ignore[assignment]  # for models that initialise weights again

    def forward(self, x: Tensor) -> Tensor:
        """``log f (B, heads, N)`` of ``x (B, N, width)``, in float32 or wider, since many of them are summed."""
        logits: Tensor = self.project(x)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return F.logsigmoid(logits.to(wide)).transpose(1, 2)


def decay(log_forget: Tensor, n: int, places: Tensor | None = None) -> Tensor:
    """``D (B, H, N, M)`` of the last ``n`` of ``M`` tokens, from ``log f (B, H, M)``; 0 for keys after a query.

    ``places (N,)`` are the positions of the queries among the keys; None for the last ``n``.
    """
    if n == 1 and places is None:  # summed backwards: the sums that matter, of recent keys, then have the fewest terms
        return (log_forget.flip(-1).cumsum(-1).flip(-1) - log_forget)[:, :, None]
    total = log_forget.cumsum(-1)
    at = total[..., total.shape[-1] - n :] if places is None else total[..., places]  # (B, H, N)
    return (at[..., :, None] - total[..., None, :]).clamp_max(0.0)


def pack(k: Tensor, log_forget: Tensor) -> Tensor:
    """Append to keys ``(B, Hk, M, D)`` the gates ``(B, Hq, M)`` of their heads, for a cache to keep as one tensor.

    The gates are kept, rather than their running sum, which would lose its digits in 16 bits.
    """
    b, key_heads, m, _ = k.shape
    groups = log_forget.shape[1] // key_heads
    gates = log_forget.reshape(b, key_heads, groups, m).transpose(2, 3).to(k.dtype)  # (B, Hk, M, groups)
    return torch.cat([k, F.pad(gates, (0, -groups % ALIGNED))], dim=-1)


def unpack(packed: Tensor, head_dim: int, heads: int) -> tuple[Tensor, Tensor]:
    """Keys ``(B, Hk, M, D)`` and gates ``(B, Hq, M)`` of what :func:`pack` returned."""
    groups = heads // packed.shape[1]
    k, gates = packed[..., :head_dim], packed[..., head_dim : head_dim + groups]
    wide = torch.promote_types(k.dtype, torch.float32)
    return k, gates.transpose(2, 3).flatten(1, 2).to(wide)  # (B, Hk, groups, M) -> (B, Hq, M)
