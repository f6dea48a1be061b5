"""The public functions of ReLU attention: they check the arguments and choose the back end."""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from reluformer.ops import arguments, operators, reference
from reluformer.ops.forgetting import accumulate
from reluformer.ops.padding import hide_keys, rescale
from reluformer.ops.problem import Problem
from reluformer.ops.statistics import AttentionStats
from reluformer.ops.visibility import count_visible

Backend = Literal["auto", "reference", "chunked", "triton"]
BACKENDS = ("auto", "reference", "chunked", "triton")
Stats = tuple[Tensor, AttentionStats]
ReturnStats = bool | Literal["mass_entropy"]
FEW_QUERIES = 16  # up to this many, the cache of keys is read once, with its mask, rather than copied with zeros


class _PackedOptions(TypedDict, total=False):
    """Keyword arguments of :func:`relu_attention_varlen`, for type checkers."""

    gamma: Tensor | float | None
    alpha: float
    power: int
    bias: Tensor | None
    scale: float | None
    causal: bool
    window: int | tuple[int, int] | None
    backend: Backend


class _Options(_PackedOptions, total=False):
    """Keyword arguments of :func:`relu_attention`, for type checkers."""

    key_padding_mask: Tensor | None
    attn_mask: Tensor | None
    log_forget: Tensor | None
    stats_batch: int | None


@overload
def relu_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_stats: Literal[False] = False, **options: Unpack[_Options]
) -> Tensor: ...
@overload
def relu_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_stats: Literal[True, "mass_entropy"], **options: Unpack[_Options]
) -> Stats: ...
@overload
def relu_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_stats: ReturnStats, **options: Unpack[_Options]
) -> Tensor | Stats: ...
def relu_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Tensor | float | None = None,
    alpha: float = 0.5,
    power: int = 1,
    bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    window: int | tuple[int, int] | None = None,
    log_forget: Tensor | None = None,
    return_stats: ReturnStats = False,
    stats_batch: int | None = None,
    backend: Backend = "auto",
) -> Tensor | Stats:
    r"""Attention whose weights are rectified scores.

    .. math::
        h_i = \sum_j w_{ij} v_j \qquad
        w_{ij} = \frac{\mathrm{relu}(s\, q_i \cdot k_j + b_h)^p}{\gamma_h\, (n_i / 2)^\alpha}

    where :math:`n_i` counts the keys that query ``i`` may see. A row that may see none gives zeros.

    Args:
        q: Queries ``(B, Hq, N, D)``; float16, bfloat16, float32 or float64. Under autocast all three are cast.
        k: Keys ``(B, Hk, M, D)``; ``Hq`` is a multiple of ``Hk``, and each key head serves ``Hq / Hk`` query heads.
        v: Values ``(B, Hk, M, D)``.
        gamma: Divides the weights: None for 1, a positive number, or a tensor ``(Hq,)``, differentiable, whose entries
            must be positive (they are not read, hence not checked).
        alpha: Exponent of the length, at least 0: 1/2 keeps the output's variance independent of it, 1 the
            row's mass.
        power: 1, 2, 4 or 8. No temperature can sharpen rectified scores; a power and a threshold (a negative bias) can.
        bias: Added to the score, None or a tensor ``(Hq,)``, differentiable.
        scale: Multiplies the score, positive; None for ``1 / sqrt(D)``.
        causal: Hide later keys. The last query is aligned with the last key, whatever N and M.
        key_padding_mask: Boolean ``(B, M)``, True = may be seen: the opposite of ``nn.MultiheadAttention``'s.
        attn_mask: Broadcasts to ``(B, Hq, N, M)``. Boolean, True = may be seen; or floating point, added to the score
            and differentiable, ``-inf`` = may not be seen.
        window: ``w`` lets a query see its own position and ``w - 1`` keys to either side (with ``causal``, to the
            left); a pair ``(left, right)`` sets both sides, -1 for no bound.
        log_forget: Logarithms of forget gates ``(B, Hq, M)``, one at each key, differentiable; float32, or float64 for
            float64 inputs. The weight of key ``j`` at the position ``i`` of a query is multiplied by
            ``exp(sum(log_forget[j + 1 : i + 1]))``. Needs ``causal``. The entries must be finite and at most 0 (they
            are not read, hence not checked).
        return_stats: Also return the :class:`AttentionStats` of the rows, computed in the same pass. With
            ``"mass_entropy"`` the number of active keys is left out (empty): all that a regulariser needs, and faster.
        stats_batch: Statistics of the first so many sequences of the batch only, from 1 to B; None for all. Each is
            then ``(stats_batch, Hq, N)``, and the other sequences are computed as they are without statistics.
        backend: ``"reference"`` is the specification, ``"chunked"`` runs anywhere in linear memory, ``"triton"`` is
            fused for NVIDIA GPUs; ``"auto"`` takes Triton where it can run and chunked elsewhere. All compute the
            same function. Triton hands masks that need a gradient to chunked.

    Returns:
        The output ``(B, Hq, N, D)``, or a pair of it and the statistics.

    Example:
        >>> q, k, v = torch.randn(3, 2, 8, 100, 64)
        >>> out, stats = relu_attention(q, k, v, causal=True, return_stats=True)
        >>> out.shape, stats.mass.shape
        (torch.Size([2, 8, 100, 64]), torch.Size([2, 8, 100]))
    """
    q, k, v = _autocast(q, k, v)
    arguments.check_qkv(q, k, v, "BHND")
    n, m = q.shape[2], k.shape[2]
    heads = q.shape[1]
    per_head, divisor = arguments.split_gamma(gamma, q, heads)
    bias = arguments.check_per_head("bias", bias, q, heads)
    scale = arguments.check_numbers(alpha, power, scale, q.shape[-1])
    band = arguments.make_band(causal, window)
    key_padding_mask = arguments.check_key_mask(key_padding_mask, q, m)
    attn_mask = arguments.check_attn_mask(attn_mask, q, m)
    arguments.check_log_forget(log_forget, q, m, band)
    level = arguments.check_return_stats(return_stats)
    measured = arguments.check_stats_batch(stats_batch, q, level)
    backend = _choose(backend, q, attn_mask)

    if backend == "reference":
        out, stats = reference.attention(
            q,
            k,
            v,
            gamma=divisor if per_head is None else per_head,
            alpha=alpha,
            power=power,
            bias=bias,
            scale=scale,
            band=band,
            key_mask=key_padding_mask,
            attn_mask=attn_mask,
            log_forget=log_forget,
        )
        return (out, AttentionStats(*(x[:measured] for x in _kept(stats, level)))) if level else out

    arguments.check_no_tangent(backend, q, k, v, per_head, bias, attn_mask, log_forget)
    padding = None
    if backend == "triton" and attn_mask is None and bias is None and (torch.is_grad_enabled() or n > FEW_QUERIES):
        padding, key_padding_mask = key_padding_mask, None
        k = k if padding is None else hide_keys(k, padding)
    count = None
    if key_padding_mask is not None or attn_mask is not None:
        count = count_visible(band, n, m, key_padding_mask, attn_mask, q.device)
    faded = None if log_forget is None else accumulate(log_forget).contiguous()
    problem = Problem(
        q, k, v, per_head, bias, key_padding_mask, attn_mask, count, None, None, faded, n, m,
        divisor, float(alpha), power, scale, band, level, measured,
    )  # fmt: skip
    out, stats = operators.attend(problem, backend)
    if padding is not None:
        out, stats = rescale(out, stats, padding, band, float(alpha))
    return (out, stats) if level else out


@overload
def relu_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_stats: Literal[False] = False,
    **options: Unpack[_PackedOptions],
) -> Tensor: ...
@overload
def relu_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_stats: Literal[True, "mass_entropy"],
    **options: Unpack[_PackedOptions],
) -> Stats: ...
@overload
def relu_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_stats: ReturnStats,
    **options: Unpack[_PackedOptions],
) -> Tensor | Stats: ...
def relu_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    gamma: Tensor | float | None = None,
    alpha: float = 0.5,
    power: int = 1,
    bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | tuple[int, int] | None = None,
    return_stats: ReturnStats = False,
    backend: Backend = "auto",
) -> Tensor | Stats:
    """ReLU attention over sequences of different lengths, packed one after another without padding.

    Sequence ``s`` holds the queries ``cu_seqlens_q[s]:cu_seqlens_q[s + 1]`` and the keys
    ``cu_seqlens_k[s]:cu_seqlens_k[s + 1]``; its queries see only its own keys.

    Args:
        q: Queries ``(Tq, Hq, D)``.
        k: Keys ``(Tk, Hk, D)``.
        v: Values ``(Tk, Hk, D)``.
        cu_seqlens_q: Boundaries of the queries ``[0, ..., Tq]``, int32, ``(sequences + 1,)``.
        cu_seqlens_k: Boundaries of the keys ``[0, ..., Tk]``, int32, ``(sequences + 1,)``.
        max_seqlen_q: Length of the longest sequence of queries, or more.
        max_seqlen_k: Length of the longest sequence of keys, or more.
        gamma: As in :func:`relu_attention`.
        alpha: As in :func:`relu_attention`.
        power: As in :func:`relu_attention`.
        bias: As in :func:`relu_attention`.
        scale: As in :func:`relu_attention`.
        causal: As in :func:`relu_attention`.
        window: As in :func:`relu_attention`.
        return_stats: As in :func:`relu_attention`; each statistic is ``(Tq, Hq)``.
        backend: As in :func:`relu_attention`.

    Returns:
        The output ``(Tq, Hq, D)``, or a pair of it and the statistics.
    """
    q, k, v = _autocast(q, k, v)
    arguments.check_qkv(q, k, v, "THD")
    heads = q.shape[1]
    cu_seqlens_q = arguments.check_cu_seqlens("cu_seqlens_q", cu_seqlens_q, q, max_seqlen_q, "max_seqlen_q")
    cu_seqlens_k = arguments.check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, k, max_seqlen_k, "max_seqlen_k")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            f"cu_seqlens_k must have the length of cu_seqlens_q, {cu_seqlens_q.shape[0]}, got {cu_seqlens_k.shape[0]}"
        )
    per_head, divisor = arguments.split_gamma(gamma, q, heads)
    bias = arguments.check_per_head("bias", bias, q, heads)
    scale = arguments.check_numbers(alpha, power, scale, q.shape[-1])
    band = arguments.make_band(causal, window)
    level = arguments.check_return_stats(return_stats)
    backend = _choose(backend, q, None)

    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))  # (1, H, T, D): packed sequences are a batch of one
    if backend == "reference":
        out, stats = _reference_varlen(
            q,
            k,
            v,
            cu_seqlens_q,
            cu_seqlens_k,
            gamma=divisor if per_head is None else per_head,
            alpha=alpha,
            power=power,
            bias=bias,
            scale=scale,
            band=band,
        )
        stats = _kept(stats, level)
    else:
        arguments.check_no_tangent(backend, q, k, v, per_head, bias)
        problem = Problem(
            q, k, v, per_head, bias, None, None, None, cu_seqlens_q, cu_seqlens_k, None, max_seqlen_q, max_seqlen_k,
            divisor, float(alpha), power, scale, band, level, 1,
        )  # fmt: skip
        out, stats = operators.attend(problem, backend)
    out = out[0].transpose(0, 1)  # (T, H, D)
    if not level:
        return out
    return out, AttentionStats(*(x[0].transpose(0, 1) if x.dim() == 3 else x for x in stats))


def _kept(stats: AttentionStats, level: int) -> AttentionStats:
    """The statistics that belong to a level; for the levels see :class:`Problem`."""
    return stats if level == 2 else AttentionStats(*stats[:2], stats.active.new_empty(0))


def _reference_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, **options: Any
) -> tuple[Tensor, AttentionStats]:
    """Run the reference on one sequence after another and concatenate the results."""
    outs, stats = [], []
    for q_start, q_stop, k_start, k_stop in zip(*(c.tolist() for c in (cu_q, cu_q[1:], cu_k, cu_k[1:])), strict=False):
        out, stat = reference.attention(
            q[:, :, q_start:q_stop],
            k[:, :, k_start:k_stop],
            v[:, :, k_start:k_stop],
            key_mask=None,
            attn_mask=None,
            log_forget=None,
            **options,
        )
        outs.append(out)
        stats.append(stat)
    return torch.cat(outs, 2), AttentionStats(*(torch.cat(parts, 2) for parts in zip(*stats, strict=True)))


def _autocast(*tensors: Tensor) -> Sequence[Tensor]:
    """Cast float32 tensors to the autocast dtype where autocast is on, as ``scaled_dot_product_attention`` does."""
    device = getattr(tensors[0], "device", torch.device("cpu")).type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x for x in tensors]


def _choose(backend: str, q: Tensor, attn_mask: Tensor | None) -> Literal["reference", "chunked", "triton"]:
    """Resolve ``auto`` to the back end that will run, and refuse an impossible choice."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    obstacle = _triton_obstacle(q)
    if backend == "triton" and obstacle:
        raise RuntimeError(f"backend 'triton' cannot run: {obstacle}; use 'auto' or 'chunked'")
    mask_needs_grad = attn_mask is not None and attn_mask.requires_grad and torch.is_grad_enabled()
    if backend == "triton" or (backend == "auto" and q.is_cuda and not obstacle):
        return "chunked" if mask_needs_grad else "triton"
    return "reference" if backend == "reference" else "chunked"


def _triton_obstacle(q: Tensor) -> str | None:
    """The reason why Triton cannot take these tensors, or None."""
    if not _HAS_TRITON:
        return "Triton is not installed"
    if not q.is_cuda and not _interpreted():
        return f"it needs tensors on an NVIDIA GPU, q is on {q.device}"
    if q.is_cuda and torch.version.cuda is None:
        return "it needs an NVIDIA GPU"
    if q.dtype == torch.float64:
        return "it has no float64 kernels"
    if q.shape[-1] > 256:
        return f"its head dimensions end at 256, q has {q.shape[-1]}"
    return None


_HAS_TRITON = importlib.util.find_spec("triton") is not None


def _interpreted() -> bool:
    """Whether Triton runs in its interpreter, where kernels take CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0", "false", "off")
