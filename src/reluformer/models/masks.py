"""Masks of padding, and whether they are needed."""

import torch
from torch import Tensor


def needed(mask: Tensor | None, tokens: int | Tensor = 0, name: str = "attention_mask") -> Tensor | None:
    """The mask as booleans, or None where nothing is masked: the kernels without masks are faster.

    To look is to wait for the GPU, so training does not, and what is compiled or recorded cannot. ``tokens`` is how
    many it must at least be for, where that is a number.
    """
    if mask is None:
        return None
    if mask.dim() != 2:
        raise ValueError(f"{name} must have 2 dimensions, batch and tokens, got the shape {tuple(mask.shape)}")
    if not isinstance(tokens, Tensor) and mask.shape[1] < tokens:
        raise ValueError(f"{name} must be for all {tokens} tokens, got the shape {tuple(mask.shape)}")
    mask = mask.bool()
    blind = (
        torch.compiler.is_compiling()
        or mask.is_meta
        or (mask.is_cuda and (torch.is_grad_enabled() or torch.cuda.is_current_stream_capturing()))
    )
    return mask if blind or not bool(mask.all()) else None
