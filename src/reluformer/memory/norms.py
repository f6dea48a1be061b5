"""Norms of the output of a memory, applied to the value sum."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.memory.settings import MemorySettings


class RMSNorm(nn.RMSNorm):
    """PyTorch's RMS norm with its gain cast to the dtype of the input: only then is there a fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last dimension."""
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class GatedRMSNorm(nn.Module):
    """ReLA's norm: ``sigmoid(gate * x) * rms_norm(x)``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.gate = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last dimension."""
        normed: Tensor = self.norm(x)
        return torch.sigmoid(self.gate * x) * normed


class HeadRMSNorm(nn.RMSNorm):
    """RMS norm of every head by itself, with a gain for each entry."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """Norm the heads that lie side by side in the last dimension."""
        heads = x.view(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        return F.rms_norm(heads, heads.shape[-1:], None, self.eps).flatten(-2) * self.weight


def output_norm(settings: MemorySettings, width: int, heads: int = 1) -> nn.Module | None:
    """The norm that the settings ask for; None rather than an identity, whose calls add up when decoding."""
    if settings.norm == "layer":
        return nn.LayerNorm(width)
    if settings.norm == "rms":
        return HeadRMSNorm(width, heads)
    return GatedRMSNorm(width) if settings.norm == "gated" else None
