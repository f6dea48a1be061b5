"""Positions of tokens: added to their embeddings, or applied to queries and keys as rotations."""

import torch
from torch import Tensor, nn

from reluformer.memory.attention import Rotation

BASE = 10000.0


def positions_of(mask: Tensor | None, past: int | Tensor, n: int, device: torch.device) -> Tensor:
    """Positions of the last ``n`` tokens, ``(B, N)`` or ``(1, N)``; padding on either side is not counted."""
    if mask is None:
        return (torch.arange(n, device=device) + past)[None]
    return (mask.long().cumsum(-1) - 1).clamp_min(0)[:, -n:]


def angles(position: Tensor, width: int) -> Tensor:
    """Positions ``(B, N)`` times a geometric series of frequencies: ``(B, N, width / 2)``, in float32."""
    half = torch.arange(0, width, 2, device=position.device, dtype=torch.float32)
    return position[..., None].float() * BASE ** (-half / width)


class Positions(nn.Module):
    """Adds embeddings of positions to those of tokens; rotary positions have none to add."""

    def __init__(self, kind: str, width: int, length: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.learned = nn.Embedding(length, width) if kind == "learned" else None

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Add the positions ``(B, N)`` to ``x (B, N, width)``."""
        if self.learned is not None:
            if (
                not torch.compiler.is_compiling()
                and position.numel()
                and int(position.max()) >= len(self.learned.weight)
            ):
                raise ValueError(
                    f"the input is longer than the {len(self.learned.weight)} positions that were learned "
                    "(max_position_embeddings)"
                )
            added: Tensor = self.learned(position)
            return x + added
        if self.kind == "sinusoidal":
            turn = angles(position, self.width)
            return x + torch.cat([turn.sin(), turn.cos()], dim=-1)[..., : self.width].to(x.dtype)
        return x


def turns(position: Tensor, head_dim: int) -> Tensor:
    """Angles ``(..., D / 2)`` by which rotary positions ``(...)`` rotate pairs of channels, one from either half.

    The first channel turns slowest: a memory with a constant channel overwrites it after the rotation, which leaves the
    channel that it is paired with alone, and hardly matters where both hardly turn.
    """
    return angles(position, head_dim).flip(-1)


def rotation(position: Tensor, head_dim: int) -> Rotation:
    """Rotation of queries and keys by their positions ``(B, N)``, so that products depend on distances alone."""
    turn = turns(position, head_dim)[:, None]  # (B, 1, N, D / 2)
    cos, sin = turn.cos(), turn.sin()

    def rotate(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)

    return lambda q, k: (rotate(q), rotate(k))
