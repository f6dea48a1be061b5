"""Checks of the operator's arguments: each error names the argument, what it takes and what it got."""

import math
from itertools import pairwise
from numbers import Integral, Real

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.weak import WeakTensorKeyDictionary

from reluformer.ops.visibility import UNBOUNDED, Band

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
POWERS = (1, 2, 4, 8)  # reached by repeated squaring: no kernel needs a logarithm

# Boundaries already read, with the tensor version they were read at. Reading waits for the GPU, so the layers of a
# model that share one tensor of boundaries should pay for it only once.
_known_bounds = WeakTensorKeyDictionary()


def shape_of(x: Tensor) -> str:
    """The shape as it is written in messages: ``(2, 8, 100, 64)``."""
    return str(tuple(x.shape))


def check_qkv(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    """Check ranks, dtypes, devices and head counts; ``layout`` is ``"BHND"``, or ``"THD"`` for packed sequences."""
    rank, heads = len(layout), layout.index("H")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dim() != rank:
            raise ValueError(f"{name} must have {rank} dimensions ({', '.join(layout)}), got shape {shape_of(x)}")
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}")
        if x.dtype != q.dtype:
            raise ValueError(f"{name} must have the dtype of q, {q.dtype}, got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
    if k.shape != v.shape:
        raise ValueError(f"v must have the shape of k, {shape_of(k)}, got {shape_of(v)}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k must have the head dimension of q, {q.shape[-1]}, got {k.shape[-1]}")
    if q.shape[-1] == 0:
        raise ValueError(f"q must have a head dimension of at least 1, got shape {shape_of(q)}")
    if layout == "BHND" and q.shape[0] != k.shape[0]:
        raise ValueError(f"k must have the batch size of q, {q.shape[0]}, got {k.shape[0]}")
    if k.shape[heads] == 0 or q.shape[heads] == 0:
        name, x = ("k", k) if k.shape[heads] == 0 else ("q", q)
        raise ValueError(f"{name} must have at least 1 head, got shape {shape_of(x)}")
    if q.shape[heads] % k.shape[heads]:
        raise ValueError(f"q must have a multiple of k's {k.shape[heads]} heads, got {q.shape[heads]}")


def check_return_stats(return_stats: object) -> int:
    """The requested level of statistics: 0 for none, 1 for mass and entropy, 2 for the active keys as well."""
    if not isinstance(return_stats, bool | str) or (isinstance(return_stats, str) and return_stats != "mass_entropy"):
        raise ValueError(f"return_stats must be True, False or 'mass_entropy', got {return_stats!r}")
    return 1 if return_stats == "mass_entropy" else 2 * bool(return_stats)


def check_stats_batch(stats_batch: int | None, q: Tensor, level: int) -> int:
    """The number of sequences for which statistics of this level are requested."""
    batch = q.shape[0]
    if stats_batch is None:
        return batch
    is_int = isinstance(stats_batch, int | torch.SymInt) and not isinstance(stats_batch, bool)
    if not is_int or not 0 < stats_batch <= batch:
        raise ValueError(f"stats_batch must be None or an int from 1 to the batch size, {batch}, got {stats_batch!r}")
    if level == 0:
        raise ValueError(f"stats_batch needs return_stats, got stats_batch={stats_batch} with return_stats=False")
    return stats_batch


def check_per_head(name: str, x: Tensor | None, q: Tensor, heads: int) -> Tensor | None:
    """Check a tensor of one value per query head; return it contiguous, as kernels read it."""
    if x is None:
        return None
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} must be a tensor of shape ({heads},), one value per query head, got {x!r}")
    if tuple(x.shape) != (heads,):
        raise ValueError(f"{name} must have shape ({heads},), one value per query head, got {shape_of(x)}")
    if not x.dtype.is_floating_point:
        raise ValueError(f"{name} must be a floating-point tensor, got {x.dtype}")
    if x.device != q.device:
        raise ValueError(f"{name} must be on the device of q, {q.device}, got {x.device}")
    return x.contiguous()


def split_gamma(gamma: Tensor | float | None, q: Tensor, heads: int) -> tuple[Tensor | None, float]:
    """Split gamma into (a value per head or None, a number for all heads), whose product divides the weights."""
    if gamma is None:
        return None, 1.0
    if isinstance(gamma, Tensor):
        return check_per_head("gamma", gamma, q, heads), 1.0
    if isinstance(gamma, bool) or not isinstance(gamma, Real):
        raise ValueError(f"gamma must be None, a number or a tensor of shape ({heads},), got {gamma!r}")
    if not 0 < gamma < math.inf:
        raise ValueError(f"gamma must be a positive number, got {gamma!r}")
    return None, float(gamma)


def check_numbers(alpha: float, power: int, scale: float | None, head_dim: int) -> float:
    """Check alpha, power and scale; return the scale, by default ``1 / sqrt(D)``."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 <= alpha < math.inf:
        raise ValueError(f"alpha must be a number >= 0, got {alpha!r}")
    if isinstance(power, bool) or not isinstance(power, Integral) or power not in POWERS:
        raise ValueError(f"power must be one of {', '.join(map(str, POWERS))}, got {power!r}")
    if scale is None:
        return head_dim**-0.5
    if isinstance(scale, bool) or not isinstance(scale, Real) or not 0 < scale < math.inf:
        raise ValueError(f"scale must be None or a positive number, got {scale!r}")
    return float(scale)


def make_band(causal: bool, window: int | tuple[int, int] | None) -> Band:
    """The band that ``causal`` and ``window`` describe; a window of ``w`` reaches ``w - 1`` keys to either side."""
    if not isinstance(causal, bool):
        raise ValueError(f"causal must be True or False, got {causal!r}")
    left = right = UNBOUNDED
    if isinstance(window, int) and not isinstance(window, bool) and window >= 1:
        left = right = window - 1
    elif (
        isinstance(window, tuple | list)
        and len(window) == 2
        and all(isinstance(w, int) and not isinstance(w, bool) and w >= UNBOUNDED for w in window)
    ):
        left, right = window
    elif window is not None:
        raise ValueError(
            f"window must be None, an int >= 1 or a pair (left, right) of ints >= 0, -1 for no bound, got {window!r}"
        )
    return Band(left, 0 if causal else right)


def check_key_mask(mask: Tensor | None, q: Tensor, m: int) -> Tensor | None:
    """Check a key padding mask: boolean, ``(B, M)``; return it contiguous, as kernels read it."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"key_padding_mask must be a boolean tensor, True = may be seen, got {got}")
    if tuple(mask.shape) != (q.shape[0], m):
        raise ValueError(f"key_padding_mask must have shape (B, M) = ({q.shape[0]}, {m}), got {shape_of(mask)}")
    if mask.device != q.device:
        raise ValueError(f"key_padding_mask must be on the device of q, {q.device}, got {mask.device}")
    return mask.contiguous()


def check_attn_mask(mask: Tensor | None, q: Tensor, m: int) -> Tensor | None:
    """Check a mask that broadcasts to ``(B, Hq, N, M)``; return it as ``(B|1, Hq|1, N, M)``."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise ValueError(f"attn_mask must be a tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise ValueError(f"attn_mask must be boolean or floating point, got {mask.dtype}")
    if mask.device != q.device:
        raise ValueError(f"attn_mask must be on the device of q, {q.device}, got {mask.device}")
    b, h, n, _ = q.shape
    wide = mask[(None,) * (4 - mask.dim())] if mask.dim() < 4 else mask
    if wide.dim() != 4 or any(size not in (1, full) for size, full in zip(wide.shape, (b, h, n, m), strict=True)):
        raise ValueError(
            f"attn_mask must broadcast to (B, Hq, N, M) = ({b}, {h}, {n}, {m}), got shape {shape_of(mask)}"
        )
    return wide.expand(-1, -1, n, m)


def check_log_forget(log_forget: Tensor | None, q: Tensor, m: int, band: Band) -> None:
    """Check the logarithms of forget gates: ``(B, Hq, M)``, in float32 or the inputs' float64, for causal attention."""
    if log_forget is None:
        return
    shape = (*q.shape[:2], m)
    if not isinstance(log_forget, Tensor):
        raise ValueError(f"log_forget must be a tensor of shape (B, Hq, M) = {shape}, got {type(log_forget).__name__}")
    if tuple(log_forget.shape) != shape:
        raise ValueError(f"log_forget must have shape (B, Hq, M) = {shape}, got {shape_of(log_forget)}")
    wide = torch.promote_types(q.dtype, torch.float32)
    if log_forget.dtype != wide:  # half precision could not hold sums over thousands of gates
        raise ValueError(f"log_forget must be {wide} where q is {q.dtype}, got {log_forget.dtype}")
    if log_forget.device != q.device:
        raise ValueError(f"log_forget must be on the device of q, {q.device}, got {log_forget.device}")
    if band.right != 0:
        raise ValueError("log_forget needs causal=True: a weight fades on its way to later queries, got causal=False")


def check_cu_seqlens(name: str, cu: Tensor, packed: Tensor, max_seqlen: int, max_name: str) -> Tensor:
    """Check sequence boundaries ``[0, ..., T]``: one dimension, int32, not decreasing, covering the packed tensor.

    Returns:
        The boundaries, contiguous, as kernels read them.
    """
    if not isinstance(cu, Tensor) or cu.dtype != torch.int32 or cu.dim() != 1 or cu.numel() < 2:
        got = f"{cu.dtype} of shape {shape_of(cu)}" if isinstance(cu, Tensor) else type(cu).__name__
        raise ValueError(f"{name} must be an int32 tensor of shape (sequences + 1,), got {got}")
    if cu.device != packed.device:
        raise ValueError(f"{name} must be on the device of q, {packed.device}, got {cu.device}")
    if isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int | torch.SymInt) or max_seqlen < 0:
        raise ValueError(f"{max_name} must be an int >= 0, got {max_seqlen!r}")
    if torch.compiler.is_compiling() or cu.is_meta:  # there are no values to read
        return cu.contiguous()
    bounds = _read_bounds(cu)
    lengths = [stop - start for start, stop in pairwise(bounds)]
    if bounds[0] != 0 or bounds[-1] != packed.shape[0] or min(lengths) < 0:
        raise ValueError(f"{name} must rise from 0 to {packed.shape[0]}, the packed length, got {bounds}")
    if max(lengths) > max_seqlen:
        raise ValueError(f"{max_name} must be at least the longest sequence, {max(lengths)}, got {max_seqlen}")
    return cu.contiguous()


def check_no_tangent(backend: str, *tensors: Tensor | None) -> None:
    """Refuse forward-mode differentiation: PyTorch silently drops tangents where an operator has no rule for them."""
    if forward_ad._current_level < 0:
        return
    tangents = (forward_ad.unpack_dual(x).tangent for x in tensors if x is not None)  # type: ignore[no-untyped-call]
    if any(tangent is not None for tangent in tangents):
        raise RuntimeError(f"backend {backend!r} has no forward-mode derivative; backend 'reference' has")


def _read_bounds(cu: Tensor) -> list[int]:
    if cu.is_inference():  # inference tensors have no version
        return list(cu.tolist())
    version, bounds = _known_bounds.get(cu, (None, []))  # type: ignore[no-untyped-call]
    if version != cu._version:
        bounds = cu.tolist()
        _known_bounds[cu] = (cu._version, bounds)
    return list(bounds)
