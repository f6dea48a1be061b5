"""Gamma: one positive number per head, or for all heads of a site, that divides the weights."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from reluformer.memory.settings import SIGNED, MemorySettings

ROUNDING = 1e-4  # more than is left of weights that cancel each other, as centred ones of either sign do


class Gamma(nn.Module):
    """Gamma of every head, kept as its logarithm so that it stays positive; ``forward`` gives it or None.

    A parameter if the settings say ``"learned"``, or ``"shared"`` for one number that is every head's; a buffer if
    ``"fixed"``: stored with the model either way. ``start`` is where it was told to start, for who makes the weights
    anew.
    """

    log_gamma: Tensor | None
    start: float = 1.0

    def __init__(self, settings: MemorySettings, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.least = ROUNDING if settings.activation in SIGNED else 0.0  # what the mass of a live row is above
        kind = "none" if settings.norm == "mass" else settings.gamma  # which it would cancel
        start = torch.zeros(1 if kind == "shared" else heads)
        if kind in ("learned", "shared"):
            self.log_gamma = nn.Parameter(start)
        else:
            self.register_buffer("log_gamma", start if kind == "fixed" else None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move it where the model goes, but not to half precision: that rounds a logarithm of 20 to 6 % of gamma."""

        def precisely(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype.itemsize >= x.dtype.itemsize else x.to(moved.device)

        return super()._apply(precisely, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forward(self) -> Tensor | None:
        """Gamma ``(heads,)``, in float32 or wider, or None where there is none."""
        if self.log_gamma is None:
            return None
        # That of a high power is beyond what float16 can hold, though its logarithm is not.
        gamma = self.log_gamma.to(torch.promote_types(self.log_gamma.dtype, torch.float32)).exp()
        return gamma if len(gamma) == self.heads else gamma.repeat(self.heads)  # kernels read them side by side

    @torch.no_grad()
    def start_at(self, gamma: float) -> None:
        """Set it, for all heads."""
        self.start = gamma
        if self.log_gamma is not None:
            self.log_gamma.fill_(math.log(gamma))

    @torch.no_grad()
    def take_in(self, mass: Tensor, query_mask: Tensor | None = None) -> None:
        """Divide the weights by the mean of these masses ``(B, heads, N)`` too, over rows that are alive.

        ``query_mask (B, N)`` says which rows count; a head without any keeps its gamma. A shared one takes the mean of
        all heads' rows.
        """
        if self.log_gamma is None:
            return
        counted = mass > self.least
        if query_mask is not None:
            counted = counted & query_mask[:, None, :]
        rows, total = counted.sum((0, 2)), mass.where(counted, 0.0).sum((0, 2))  # (heads,)
        if len(self.log_gamma) != self.heads:
            rows, total = rows.sum(0, keepdim=True), total.sum(0, keepdim=True)
        mean = total / rows.clamp_min(1)
        self.log_gamma += torch.where(rows > 0, mean, 1.0).log().to(self.log_gamma)
