"""Padding masks, and whether they are needed."""

from collections.abc import Sequence

import torch
from torch import Tensor


def needed(mask: Tensor | None, shape: Sequence[int | Tensor] = (), name: str = "attention_mask") -> Tensor | None:
    """The mask as booleans, or None if nothing is masked, since kernels without masks are faster.

    Looking into the mask waits for the GPU, so training does not look, and compiled or recorded code cannot. ``shape``
    is the number of sequences and tokens that the mask must have.
    """
    if mask is None:
        return None
    if mask.dim() != 2:
        raise ValueError(f"{name} must have 2 dimensions, batch and tokens, got the shape {tuple(mask.shape)}")
    mask = mask.bool()
    blind = (
        torch.compiler.is_compiling()
        or mask.is_meta
        or (mask.is_cuda and (torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing()))
    )
    for what, size, got in zip(("sequences", "tokens"), shape, mask.shape, strict=False):
        if not (blind and isinstance(size, Tensor)) and got != size:
            raise ValueError(f"{name} must be for all {int(size)} {what}, got the shape {tuple(mask.shape)}")
    return mask if blind or not bool(mask.all()) else None
