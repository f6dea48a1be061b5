"""Gamma: the divisor of the weights, one positive number per head or one for all heads of a site."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from reluformer.memory.settings import SIGNED, MemorySettings

ROUNDING = 1e-4  # more than rounding leaves of weights that cancel, as centred ones of either sign do


class Gamma(nn.Module):
    """Gamma of every head, stored as its logarithm so that it stays positive; ``forward`` returns it, or None.

    It is a parameter if the settings say ``"learned"``, or ``"shared"`` for one number common to all heads, and a
    buffer if ``"fixed"``; either way it is saved with the model. ``start`` is its initial value, for models that
    initialise their weights again.
    """

    log_gamma: Tensor | None
    start: float = 1.0

    def __init__(self, settings: MemorySettings, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.least = ROUNDING if settings.activation in SIGNED else 0.0  # a live row has a mass above this
        kind = "none" if settings.norm == "mass" else settings.gamma  # division by the mass would cancel it
        start = torch.zeros(1 if kind == "shared" else heads)
        if kind in ("learned", "shared"):
            self.log_gamma = nn.Parameter(start)
        else:
            self.register_buffer("log_gamma", start if kind == "fixed" else None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move with the model, but never to a narrower dtype: in bfloat16 a logarithm of 20 is off by 6 % of gamma."""

        def precisely(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype.itemsize >= x.dtype.itemsize else x.to(moved.device)

        return super()._apply(precisely, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def forward(self) -> Tensor | None:
        """Gamma ``(heads,)``, in float32 or wider; None if there is none."""
        if self.log_gamma is None:
            return None
        # The gamma of a high power overflows float16, though its logarithm does not.
        gamma = self.log_gamma.to(torch.promote_types(self.log_gamma.dtype, torch.float32)).exp()
        return gamma if len(gamma) == self.heads else gamma.repeat(self.heads)  # kernels read them contiguously

    @torch.no_grad()
    def start_at(self, gamma: float) -> None:
        """Set the gamma of all heads, and remember it as the start."""
        self.start = gamma
        if self.log_gamma is not None:
            self.log_gamma.fill_(math.log(gamma))

    @torch.no_grad()
    def take_in(self, mass: Tensor, query_mask: Tensor | None = None) -> None:
        """Multiply gamma by the mean of the masses ``(B, heads, N)`` of live rows, head by head.

        ``query_mask (B, N)`` says which rows count; a head without any keeps its gamma. A shared gamma takes the mean
        over the rows of all heads.
        """
        if self.log_gamma is None:
            return
        counted = mass > self.least
        if query_mask is not None:
            counted = counted & query_mask[:, None, :]
        rows, total = counted.sum((0, 2)), mass.where(counted, 0.0).sum((0, 2))  # (heads,)
        if len(self.log_gamma) != self.heads:
            rows, total = rows.sum(), total.sum()
        mean = total / rows.clamp_min(1)
        self.log_gamma += torch.where(rows > 0, mean, 1.0).log().to(self.log_gamma)
