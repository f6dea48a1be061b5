"""Token shift: every token mixes its keys and values with those of the token before, in a share that it computes.

    k_t = a_t k~_{t-1} + (1 - a_t) k~_t        a_t = sigmoid(w_h.x_t)

Values are mixed alike, with a share of their own; zeros precede the first token.
"""

import torch
from torch import Tensor, nn


class TokenShift(nn.Module):
    """Shifts the keys and values of every key head."""

    def __init__(self, width: int, key_heads: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, key_heads, bias=False)
        self.value = nn.Linear(width, key_heads, bias=False)

    def forward(self, x: Tensor, kv: Tensor, previous: Tensor | None = None) -> Tensor:
        """Shift ``kv (B, Hk, N, 2 D)``, the concatenated keys and values of the tokens ``x (B, N, width)``.

        ``previous (B, Hk, 1, 2 D)`` holds those of the token before the first, not yet shifted; None for zeros.
        """
        previous = torch.zeros_like(kv[:, :, :1]) if previous is None else previous
        before = torch.cat([previous, kv[:, :, :-1]], dim=2)
        shares = torch.stack([self.key(x), self.value(x)], dim=-1).sigmoid().transpose(1, 2)  # (B, Hk, N, 2)
        shares = shares.repeat_interleave(kv.shape[-1] // 2, dim=-1).to(kv.dtype)
        return shares * before + (1 - shares) * kv
