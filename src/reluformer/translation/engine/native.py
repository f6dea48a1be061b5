"""Bindings of step.c for tensors: a lookup in one call, where PyTorch takes a dozen small ones.

The library is built when the package is installed, if there is a C compiler. Without it :func:`library` returns None,
and the engine does the same with PyTorch.
"""

import ctypes
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

from reluformer.ops.statistics import TINY

VERSION = 1  # of the signatures, the same as step_version in step.c
KINDS = {torch.float32: 0, torch.bfloat16: 1}  # of keys and values, as numbered in step.c
_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_SIGNATURES = {
    "sum_values": [_INT] * 4 + [_POINTER] * 6,
    "look_up": [_INT] * 11 + [_FLOAT] * 4 + [_LONG] + [_POINTER] * 8,
    "best_tokens": [_INT] * 5 + [_POINTER] * 3,
    "keep": [_INT] * 10 + [_FLOAT] + [_POINTER] * 7,
}


@lru_cache
def library() -> ctypes.CDLL | None:
    """Return the library, or None if there is none that can be loaded."""
    spec = find_spec("reluformer.translation.engine._step")
    if spec is None or spec.origin is None:
        return None
    try:
        found = ctypes.CDLL(spec.origin)
        version = ctypes.c_int.in_dll(found, "step_version").value
    except (OSError, ValueError):  # for another machine, or a PyTorch without OpenMP to share, or not ours
        return None
    if version != VERSION:  # built from an earlier step.c
        return None
    for name, arguments in _SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    return found


def _loaded() -> ctypes.CDLL:
    found = library()
    assert found is not None, "step.c was not built here: ask library() first"
    return found


def _floats(*shape: int) -> Tensor:
    """Allocate float32 on the CPU, whatever PyTorch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def sum_values(weights: Tensor, values: Tensor, scale: Tensor, bias: Tensor, stream: Tensor) -> Tensor:
    """Return ``stream + weights @ (values * scale) + bias``; values whose weight is zero are not read.

    Args:
        weights: ``(rows, slots)``, float32 like all others but the values.
        values: ``(slots, width)``, int8.
        scale: ``(width,)``.
        bias: ``(width,)``.
        stream: ``(rows, width)``.
    """
    weights, stream = weights.contiguous(), stream.contiguous()
    out = torch.empty_like(stream)
    _loaded().sum_values(
        torch.get_num_threads(), *weights.shape, stream.shape[1],
        weights.data_ptr(), values.data_ptr(), scale.data_ptr(), bias.data_ptr(), stream.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


def look_up(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    used: int,
    *,
    power: int,
    scale: float,
    factor: float = 1.0,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    eps: float = 0.0,
    mask: Tensor | None = None,
    counted: bool = False,
) -> Tensor:
    """Return sums ``(S * beam, width)`` of values weighted by ``relu(factor * (scale * q.k + bias)) ** power``.

    Args:
        q: Queries ``(S, beam, H, D)``, the heads of a row contiguous.
        k: Keys ``(S, H, room, D)``, contiguous.
        v: Values ``(S, H, room, D)``, contiguous.
        used: Number of keys in use.
        power: Power of ReLU; 0 for softmax.
        scale: Factor on the products of queries and keys.
        factor: Factor on scores, bias included.
        bias: Bias of scores ``(H,)``.
        gain: Gain ``(D,)`` of an RMS norm of queries; None for no norm.
        eps: Epsilon of that norm.
        mask: ``(S, beam | 1, room)`` in the dtype of keys, 0 for hidden keys.
        counted: Whether values begin with a 1, so that sums begin with the mass, by which they are divided.
    """
    sources, beam, heads, dim = q.shape
    scratch, out = _floats(sources * heads * (beam + 1) * used), _floats(sources * beam, heads * dim)
    _loaded().look_up(
        torch.get_num_threads(), sources, beam, heads, used, k.shape[2], dim, KINDS[k.dtype], power, counted,
        1 if mask is None else mask.shape[1], scale, factor, eps, TINY, q.stride(0 if beam == 1 else 1),
        q.data_ptr(), _place(gain), _place(bias), k.data_ptr(), v.data_ptr(), _place(mask),
        scratch.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    return out


def keep(
    made: Tensor,
    k: Tensor,
    v: Tensor,
    place: int,
    *,
    gains: Tensor | None,
    eps: float,
    turn: Tensor | None,
    first: Tensor | None,
    folded: bool,
    sums: Tensor | None,
    count: int,
) -> None:
    """Norm and turn queries and keys, complete queries, and store keys and values, as ``OwnAttention`` does.

    Args:
        made: Queries, keys and values ``(S, beam, 3, H, D)``; queries and keys are changed in place.
        k: Stored keys ``(S, H, room, D)``, written to.
        v: Stored values ``(S, H, room, D)``, written to.
        place: Position in the room for the first beam; the others follow.
        gains: Gains ``(2, D)`` of the RMS norms of queries and keys; None for no norms.
        eps: Epsilon of the norms.
        turn: Complex numbers ``(D / 2,)`` by which queries and keys are turned; None if they are not.
        first: What the bias adds to a query's first channel ``(H,)``; None if keys have no constant first channel.
        folded: Whether the first channels are 0 in queries and 1 in keys already.
        sums: Sums ``(S, beam, H, D)`` of a beam's keys, updated; None where scores are not centred.
        count: Number of a beam's keys, this one included.
    """
    sources, beam, _, heads, dim = made.shape
    _loaded().keep(
        sources, beam, heads, k.shape[2], dim, KINDS[k.dtype], place, first is not None, folded, count, eps,
        made.data_ptr(), _place(gains), _place(turn), _place(first), _place(sums), k.data_ptr(), v.data_ptr(),
    )  # fmt: skip


def best_tokens(logits: Tensor, many: int, never: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the logarithms of the largest probabilities ``(rows, many)``, best first, and their tokens.

    Args:
        logits: Logits ``(rows, V)``.
        many: Number of tokens per row.
        never: Token that is never returned, though it keeps its share of the probability.
    """
    logits = logits.contiguous()
    best = _floats(len(logits), many)
    tokens = torch.empty_like(best, dtype=torch.long)
    _loaded().best_tokens(
        torch.get_num_threads(), *logits.shape, many, -1 if never is None else never,
        logits.data_ptr(), best.data_ptr(), tokens.data_ptr(),
    )  # fmt: skip
    return best, tokens


def _place(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
