"""Persistent memory: learned slots beside the keys of the sequence, seen by every query."""

import torch
from torch import Tensor, nn

from reluformer.memory.activations import NORMALISED, mean_over_normal, require, weigh
from reluformer.memory.lookup import Lookup, together
from reluformer.memory.settings import MemorySettings


class PersistentMemory(nn.Module):
    """Learned keys and values for every key head; enough of them make the FFN superfluous (all-attention networks).

    Without an ``activation`` they are slots in one row with the keys of the sequence. With one they are a memory of
    their own, in which every head looks as a position does in an FFN: ``activation(scale * q keys^T) values``.

    Attributes:
        settings: Those of the memory of their own, or None.
        spread: Standard deviation with which values start: 1, as those of a sequence have. Weights that a memory of its
            own does not normalise add up over the slots: there it is what gives their sums unit variance.
    """

    def __init__(self, heads: int, slots: int, head_dim: int, activation: str | None = None) -> None:
        super().__init__()
        self.slots = slots
        self.settings = None if activation is None else MemorySettings(activation, alpha=0.0, gamma="none")
        self.spread = 1.0
        if activation is not None:
            require(activation)
            if activation not in NORMALISED:
                self.spread = float(slots * mean_over_normal(lambda z: weigh(z, activation, slots).square())) ** -0.5
        self.keys = nn.Parameter(torch.empty(heads, slots, head_dim))
        self.values = nn.Parameter(torch.empty(heads, slots, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw keys of unit variance, as those of the sequence have at the start of training, and values."""
        nn.init.normal_(self.keys)
        nn.init.normal_(self.values, std=self.spread)

    def forward(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values ``(Hk, S, D)``."""
        return self.keys.to(dtype), self.values.to(dtype)

    def lookup(self, q: Tensor) -> Lookup:
        """The lookup of all queries ``(B, Hq, N, D)`` together in a memory of its own."""
        assert self.settings is not None
        keys, values = self(q.dtype)
        return Lookup(together(q), keys[None], values[None], self.settings)
