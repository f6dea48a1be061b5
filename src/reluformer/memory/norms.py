"""Norms of a memory's output, on the value sum."""

import torch
from torch import Tensor, nn

from reluformer.memory.settings import MemorySettings


class GatedRMSNorm(nn.Module):
    """ReLA's norm: ``sigmoid(gate * x) * rms_norm(x)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last dimension."""
        normed: Tensor = self.norm(x)
        return torch.sigmoid(self.gate * x) * normed


def output_norm(settings: MemorySettings, width: int) -> nn.Module | None:
    """The norm that the settings ask for; None rather than an identity, whose calls add up when decoding."""
    if settings.norm == "layer":
        return nn.LayerNorm(width)
    return GatedRMSNorm(width) if settings.norm == "gated" else None
