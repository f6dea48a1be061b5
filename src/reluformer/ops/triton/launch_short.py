"""Launches for short rows: one kernel per pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from reluformer.ops.problem import Gradients, Problem
from reluformer.ops.triton import host
from reluformer.ops.triton.short import short_backward_kernel, short_forward_kernel

LONGEST = 64  # most queries, and most keys
WIDEST = 128  # largest head dimension: wider ones leave no registers


def takes(p: Problem) -> bool:
    """Whether the short kernels take this problem: heads that fit into one tile, in half precision, not packed.

    A band and a mask of keys may hide keys; an attention mask and forget gates are not supported.
    """
    return (
        max(p.max_q, p.max_k) <= LONGEST
        and p.q.shape[-1] <= WIDEST
        and p.q.dtype in (torch.bfloat16, torch.float16)
        and p.cu_q is None
        and p.attn_mask is None
        and p.faded is None
    )


def forward(p: Problem, out: Tensor, stats: tuple[Tensor, ...]) -> None:
    """Fill the output and, if requested, the statistics."""
    b, heads, n, d = p.q.shape
    q, k, v = (host.unit_columns(x) for x in p[:3])
    short_forward_kernel[(b * heads,)](
        q, k, v, out, *stats, p.gamma, p.bias, host.as_bytes(p.key_mask), p.visible,
        heads, p.groups, n, p.k.shape[2], d, *p.band, p.divisor, p.alpha, p.scale,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        *host.broadcast_strides(p.key_mask, 1), *host.broadcast_strides(p.visible, 2),
        **_tile(p), STATS=p.stats > 0, **_meaning(p), FACTOR=host.is_narrow(p),
    )  # fmt: skip


def backward(
    p: Problem,
    targets: Sequence[Tensor],
    grad_out: Tensor,
    grad_mass: Tensor | None,
    grad_entropy: Tensor | None,
    mass: Tensor | None,
    entropy: Tensor | None,
    need_gamma: bool,
    need_bias: bool,
) -> Gradients:
    """Fill the gradients of q, k and v; return the others."""
    b, heads, n, d = p.q.shape
    q, k, v, grad_out = (host.unit_columns(x) for x in (*p[:3], grad_out))
    grad_mass, grad_entropy = (None if x is None else x.contiguous() for x in (grad_mass, grad_entropy))
    dq, dk, dv = targets
    nothing = p.q.new_empty(0)
    parts = [
        p.q.new_empty((b, heads), dtype=torch.float32) if needed else nothing for needed in (need_gamma, need_bias)
    ]
    short_backward_kernel[(b * k.shape[1],)](
        q, k, v, grad_out, grad_mass, grad_entropy, mass, entropy, dq, dk, dv, *parts,
        p.gamma, p.bias, host.as_bytes(p.key_mask), p.visible,
        heads, p.groups, n, k.shape[2], d, *p.band, p.divisor, p.alpha, p.scale,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *grad_out.stride()[:3],
        *dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
        *host.broadcast_strides(p.key_mask, 1), *host.broadcast_strides(p.visible, 2),
        **_tile(p), DMASS=grad_mass is not None, DENTROPY=grad_entropy is not None,
        DGAMMA=need_gamma, DBIAS=need_bias, **_meaning(p),
    )  # fmt: skip
    dgamma, dbias = (
        part.sum(0).to(x.dtype) if needed and x is not None else nothing
        for part, x, needed in zip(parts, (p.gamma, p.bias), (need_gamma, need_bias), strict=True)
    )
    return Gradients(dgamma, dbias, nothing, nothing)


def _tile(p: Problem) -> dict[str, int]:
    block = max(32, host.power_of_two(max(p.max_q, p.max_k)))
    return {"BLOCK": block, "BLOCK_D": host.head_block(p), "num_warps": 4, "num_stages": 1}


def _meaning(p: Problem) -> dict[str, object]:
    return host.only(host.meaning(p), "LEFT", "RIGHT", "KEY_MASK", "GAMMA", "BIAS", "POWER", "PRECISION")
