"""Persistent memory: learned slots beside the keys of the sequence, seen by every query."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PersistentMemory(nn.Module):
    """Learned keys and values for every key head; enough of them make the FFN superfluous (all-attention networks).

    They come before the sequence's own, so that causal queries, aligned with the last key, see all of them.
    """

    def __init__(self, heads: int, slots: int, head_dim: int) -> None:
        super().__init__()
        self.slots = slots
        self.keys = nn.Parameter(torch.empty(heads, slots, head_dim))
        self.values = nn.Parameter(torch.empty(heads, slots, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Keys and values as large as those that the sequence starts with."""
        nn.init.normal_(self.keys)
        nn.init.normal_(self.values)

    def forward(
        self, k: Tensor, v: Tensor, key_mask: Tensor | None, attn_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Put the slots before ``k, v (B, Hk, M, D)`` and let the masks show them."""
        batch = k.shape[0]
        k = torch.cat([self.keys.to(k.dtype).expand(batch, -1, -1, -1), k], dim=2)
        v = torch.cat([self.values.to(v.dtype).expand(batch, -1, -1, -1), v], dim=2)
        return k, v, self.seen(key_mask, k.shape[2]), self.seen(attn_mask, k.shape[2])

    def seen(self, mask: Tensor | None, keys: int) -> Tensor | None:
        """A mask ``(..., M)``, which may broadcast over the keys, with the slots before them, all ``keys`` of both."""
        if mask is None:
            return None
        return F.pad(mask.expand(*mask.shape[:-1], keys - self.slots), (self.slots, 0), value=True)
