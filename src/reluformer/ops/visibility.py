"""Which keys a query may see, and how many.

Query ``i`` of ``N`` stands at position ``p = i + M - N`` among the ``M`` keys (bottom-right alignment) and sees the
keys ``p - left <= j <= p + right``: causal is ``right = 0``, a window bounds both sides. Masks hide further keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

UNBOUNDED = -1


class Band(NamedTuple):
    """How many keys a query sees to its left and right; ``UNBOUNDED`` means all of them."""

    left: int = UNBOUNDED
    right: int = UNBOUNDED

    @property
    def full(self) -> bool:
        """Whether every query sees every key."""
        return self.left == UNBOUNDED and self.right == UNBOUNDED

    def key_range(self, first: int, last: int, n: int, m: int) -> tuple[int, int]:
        """Keys ``start:stop`` that at least one of the queries ``first ... last`` may see."""
        start = 0 if self.left == UNBOUNDED else min(max(first + m - n - self.left, 0), m)
        stop = m if self.right == UNBOUNDED else min(max(last + m - n + self.right + 1, 0), m)
        return start, max(start, stop)

    def covers(self, rows: slice, keys: slice, n: int, m: int) -> bool:
        """Whether each of these queries may see each of these keys."""
        return (self.right == UNBOUNDED or keys.stop - 1 <= rows.start + m - n + self.right) and (
            self.left == UNBOUNDED or keys.start >= rows.stop - 1 + m - n - self.left
        )


def row_limits(band: Band, n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First key and one past the last key of each query's band, both ``(N,)``."""
    position = torch.arange(n, device=device) + (m - n)
    start = torch.zeros_like(position) if band.left == UNBOUNDED else (position - band.left).clamp(0, m)
    stop = torch.full_like(position, m) if band.right == UNBOUNDED else (position + band.right + 1).clamp(0, m)
    return start, torch.maximum(start, stop)


def band_mask(
    band: Band, n: int, m: int, device: torch.device, rows: slice = slice(None), keys: slice = slice(None)
) -> Tensor:
    """The band as a boolean mask ``(N, M)``, or the part of it that ``rows`` and ``keys`` select."""
    start, stop = row_limits(band, n, m, device)
    j = torch.arange(m, device=device)[keys]
    return (j >= start[rows, None]) & (j < stop[rows, None])


def count_visible(
    band: Band, n: int, m: int, key_mask: Tensor | None, attn_mask: Tensor | None, device: torch.device
) -> Tensor:
    """``n_i``, the number of keys that each query may see: float32, broadcasts against ``(B, Hq, N)``."""
    if attn_mask is not None:
        visible = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -torch.inf  # (B|1, Hq|1, N, M)
        if not band.full:
            visible = visible & band_mask(band, n, m, device)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        return visible.sum(-1, dtype=torch.float32)
    if band.full:
        if key_mask is None:
            return torch.full((1, 1, n), m, dtype=torch.float32, device=device)
        return key_mask.sum(-1, dtype=torch.float32)[:, None, None].expand(-1, 1, n).contiguous()
    start, stop = row_limits(band, n, m, device)
    if key_mask is None:
        return (stop - start).to(torch.float32)[None, None]
    seen = torch.nn.functional.pad(key_mask.to(torch.int64).cumsum(-1), (1, 0))  # (B, M + 1): visible keys before j
    return (seen[:, stop] - seen[:, start]).to(torch.float32)[:, None]
