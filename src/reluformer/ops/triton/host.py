"""What every launch needs: tensor maps, strides, and the options on which kernels are specialised."""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from reluformer.ops.problem import Problem
from reluformer.ops.triton.common import BOOL_MASK, FLOAT_MASK
from reluformer.ops.visibility import UNBOUNDED

# Gluon is experimental: its names change between releases. The kernels were run with 3.6 and compiled with 3.7.
GLUON_VERSIONS = ("3.6.", "3.7.")


def cdiv(x: int, y: int) -> int:
    """The number of blocks of ``y`` that cover ``x``.

    Triton's own ``cdiv``, like its ``next_power_of_2``, takes microseconds at every launch.
    """
    return -(-x // y)


def power_of_two(x: int) -> int:
    """The smallest power of two that is not below ``x``."""
    return 1 << (x - 1).bit_length()


def fit_for_tma(x: Tensor) -> Tensor:
    """The tensor, or a copy, with contiguous rows that all start on 16-byte boundaries, as tensor maps demand."""
    item = x.element_size()
    if x.is_contiguous() and x.shape[-1] * item % 16 == 0 and x.data_ptr() % 16 == 0:
        return x
    strides = (s for s, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1)
    if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(s > 0 and s * item % 16 == 0 for s in strides):
        return x
    padded = cdiv(x.shape[-1] * item, 16) * 16 // item
    copy: Tensor = x.new_empty((*x.shape[:-1], padded))[..., : x.shape[-1]]
    return copy.copy_(x)


def tensor_map(x: Tensor, rows: int, block_d: int) -> TensorDescriptor:
    """A tensor map of ``x (B, H, T, D)`` that loads ``rows`` rows of one head."""
    return _map(x, (1, 1, rows, block_d), None)


@functools.cache
def has_hopper_gluon(device: torch.device) -> bool:
    """Whether this is a Hopper GPU and the installed Triton has the Gluon that the Hopper kernels were written for."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    return bool(triton.__version__.startswith(GLUON_VERSIONS))


def hopper_takes(p: Problem) -> bool:
    """Whether the kernels written for Hopper take this problem: the common case of training, on such a GPU."""
    return (
        has_hopper_gluon(p.q.device)
        and p.q.dtype == torch.bfloat16
        and p.q.shape[-1] in (64, 128)
        and (p.power == 1 or not p.stats)
        and p.cu_q is None
        and p.visible is None
        and p.bias is None
        and p.faded is None
        and p.band.left == UNBOUNDED
    )


def rows_map(x: Tensor, rows: int) -> Any:
    """A tensor map for Gluon kernels, of ``x (B, H, T, D)``, that loads ``rows`` rows of one head."""
    return gluon_map(x, (1, 1, rows, x.shape[-1]))


def gluon_map(x: Tensor, block: tuple[int, ...], swizzle: int = 128) -> Any:
    """A tensor map for Gluon kernels, which specify the layout of a block in shared memory."""
    return _map(x, block, swizzle)


_MAPS: dict[tuple[Any, ...], Any] = {}
MOST_MAPS = 1000


def _map(x: Tensor, block: tuple[int, ...], swizzle: int | None) -> Any:
    """A tensor map, cached by shape and layout: the checks when one is made take microseconds."""
    key = (x.shape, x.stride(), x.dtype, block, swizzle)
    known = _MAPS.get(key)
    if known is None:
        if len(_MAPS) >= MOST_MAPS:
            _MAPS.clear()
        known = _MAPS[key] = _make_map(x, block, swizzle)
        known.base = None  # keep no tensor alive
    made = object.__new__(type(known))  # a copy, without the detours of copy.copy
    made.__dict__.update(known.__dict__, base=x)
    return made


def _make_map(x: Tensor, block: tuple[int, ...], swizzle: int | None) -> Any:
    # The stride of a dimension of size 1 means nothing, but must be a multiple of 16 bytes too.
    strides = [*(s if size > 1 else 16 for s, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)), 1]
    if swizzle is None:
        return TensorDescriptor(x, list(x.shape), strides, list(block))
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    layout = NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=x.element_size() * 8, rank=x.dim())
    return GluonDescriptor(x, list(x.shape), strides, list(block), layout)


def unit_columns(x: Tensor) -> Tensor:
    """The tensor, or a copy, whose last dimension is contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def on_device(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which the tensor's device is the current one, on which Triton launches."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def as_bytes(mask: Tensor | None) -> Tensor | None:
    """A boolean mask as bytes; anything else unchanged."""
    return mask.view(torch.uint8) if mask is not None and mask.dtype == torch.bool else mask


def broadcast_strides(x: Tensor | None, count: int) -> tuple[int, ...]:
    """The first ``count`` strides, 0 where a dimension is broadcast."""
    if x is None:
        return (0,) * count
    return tuple(0 if size == 1 else s for s, size in zip(x.stride()[:count], x.shape[:count], strict=True))


def sequences(p: Problem) -> int:
    """The number of sequences, padded or packed."""
    return p.q.shape[0] if p.cu_q is None else p.cu_q.shape[0] - 1


def head_block(p: Problem) -> int:
    """Head dimension of the tiles: the next power of two, at least 16; columns past the end are read as zeros."""
    return max(16, power_of_two(p.q.shape[-1]))


def is_narrow(p: Problem) -> bool:
    """Whether unscaled scores may overflow the operands' dtype, so that they must be scaled before they are rounded."""
    return p.q.dtype == torch.float16


def is_even(p: Problem, size: int, block: int) -> bool:
    """Whether whole blocks cover every sequence, with no remainder."""
    return p.cu_q is None and size % block == 0


def has_float_mask(p: Problem) -> bool:
    """Whether a mask is added to the scores."""
    return p.attn_mask is not None and p.attn_mask.dtype != torch.bool


def meaning(p: Problem) -> dict[str, Any]:
    """The options on which kernels are specialised, by the names of their compile-time arguments."""
    mask_kind = 0 if p.attn_mask is None else (FLOAT_MASK if has_float_mask(p) else BOOL_MASK).value
    precise = p.q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return {
        "VARLEN": p.cu_q is not None,
        "LEFT": p.band.left != UNBOUNDED,
        "RIGHT": p.band.right != UNBOUNDED,
        "KEY_MASK": p.key_mask is not None,
        "ATTN_MASK": mask_kind,
        "GAMMA": p.gamma is not None,
        "BIAS": p.bias is not None,
        "POWER": p.power,
        "FACTOR": is_narrow(p),
        "FORGET": p.faded is not None,
        "PRECISION": "ieee" if precise else "tf32",
    }


def only(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """The options with these names, for kernels that do not take all."""
    return {name: options[name] for name in names}
