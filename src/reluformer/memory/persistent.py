"""Persistent memory: learned slots beside the keys of the sequence, seen by every query."""

import torch
from torch import Tensor, nn


class PersistentMemory(nn.Module):
    """Learned keys and values for every key head; enough of them make the FFN superfluous (all-attention networks)."""

    def __init__(self, heads: int, slots: int, head_dim: int) -> None:
        super().__init__()
        self.slots = slots
        self.keys = nn.Parameter(torch.empty(heads, slots, head_dim))
        self.values = nn.Parameter(torch.empty(heads, slots, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw keys and values of unit variance, as those of the sequence have at the start of training."""
        nn.init.normal_(self.keys)
        nn.init.normal_(self.values)

    def forward(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values ``(Hk, S, D)``."""
        return self.keys.to(dtype), self.values.to(dtype)
