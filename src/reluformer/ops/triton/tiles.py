"""Tile shapes, tuned once on an H200 and shipped: no search at run time."""

from typing import NamedTuple

import torch


class Tile(NamedTuple):
    """How a kernel divides its problem: queries and keys per block, warps per program, loads in flight."""

    m: int
    n: int
    warps: int
    stages: int


def forward_tile(dtype: torch.dtype, head_dim: int, length: int, forget: bool = False) -> Tile:
    """Tile of the forward kernel for ``length`` keys: short rows want many small programs, long ones few large tiles.

    With forget gates, large tiles run out of registers, and their products would wait for each other.
    """
    if dtype == torch.float32:  # products run on the plain cores: larger tiles would spill registers
        return Tile(32, 32, 8, 1) if head_dim <= 128 else Tile(16, 16, 4, 1)
    if head_dim <= 64:
        return Tile(64, 64, 4, 3) if length < 2048 or forget else Tile(128, 64, 4, 3)
    if head_dim <= 128:
        return Tile(64, 64, 4, 3) if length <= 4096 or forget else Tile(128, 64, 8, 3)
    return Tile(64, 64, 8, 2)


def backward_tile(dtype: torch.dtype, head_dim: int) -> Tile:
    """Tile of the portable backward kernel, whose programs own blocks of keys."""
    if dtype == torch.float32:
        return Tile(16, 16, 4, 1)
    if head_dim <= 64:
        return Tile(64, 64, 4, 2)
    if head_dim <= 128:
        return Tile(64, 64, 8, 2)
    return Tile(32, 64, 8, 1)


def query_tile(dtype: torch.dtype, head_dim: int) -> Tile:
    """Tile of the deterministic kernel for the gradient of the queries."""
    if dtype == torch.float32:
        return Tile(16, 16, 4, 1)
    if head_dim <= 128:
        return Tile(128, 64, 8, 2)
    return Tile(64, 32, 8, 1)


def decode_tile(dtype: torch.dtype, head_dim: int) -> Tile:
    """Tile of the decode kernel, where ``m`` is the least number of rows: more may share a key."""
    if dtype == torch.float32:
        return Tile(16, 32, 4, 2)
    return Tile(16, max(32, 8192 // max(head_dim, 64)), 4, 4)  # 16 KiB of keys at a time
