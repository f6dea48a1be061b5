"""Gradient of the queries, one program per block of them: what the deterministic backward pass uses.

The fused backward kernel adds each block's part of ``dq`` to memory in whatever order the GPU runs them, and float
addition is not associative. This kernel sums in a fixed order, at the price of computing the scores again.
"""

import triton
import triton.language as tl

from reluformer.ops.triton.backward import gamma_share, score_gradient
from reluformer.ops.triton.common import LENGTHS, hide, over_gamma, product, round_to, segments, sequence, where_am_i


@triton.jit
def query_blocks(
    dq, q, dout, i, factor, slope, bend, start, stop, k_desc, v_desc, batch, key_head, key_start, threshold,
    offset, n, m, left, right, key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, EDGE: tl.constexpr,
    BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys ``start:stop`` to the gradient of a block of queries."""
    for s in tl.range(start, stop, BLOCK_N):
        k = k_desc.load([batch, key_head, key_start + s, 0]).reshape(BLOCK_N, BLOCK_D)
        v = v_desc.load([batch, key_head, key_start + s, 0]).reshape(BLOCK_N, BLOCK_D)
        x = product(q, k.T, PRECISION)  # (BLOCK_M, BLOCK_N)
        dp = product(dout, v.T, PRECISION)
        if BIAS:
            x += threshold
        if EDGE:
            j = s + tl.arange(0, BLOCK_N)
            x = hide(
                x, i[:, None], j[None, :], offset, n, m, left, right,
                key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale, LEFT, RIGHT, KEY_MASK, ATTN_MASK,
            )  # fmt: skip
        dx = score_gradient(x, dp, factor[:, None], slope[:, None], bend[:, None], POWER, STATS, FACTOR)
        dq = product(round_to(dx, k.dtype), k, PRECISION, dq)
    return dq


@triton.jit(do_not_specialize=LENGTHS)
def query_kernel(
    q_desc, k_desc, v_desc, dout_desc, dq, dgamma_parts, factors, slopes, bends,
    gamma, bias, key_mask, attn_mask, cu_q, cu_k,
    blocks, heads, groups, n, m, d, left, right, uniform, scale,
    dq_stride_b, dq_stride_h, dq_stride_n, key_mask_stride_b,
    mask_stride_b, mask_stride_h, mask_stride_i, mask_stride_j, line_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EVEN: tl.constexpr,
    KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, GAMMA: tl.constexpr, BIAS: tl.constexpr, POWER: tl.constexpr,
    STATS: tl.constexpr, FACTOR: tl.constexpr, UNIFORM: tl.constexpr, DGAMMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries of one head."""
    block, head, index = where_am_i(blocks, heads)
    if RIGHT:
        block = blocks - 1 - block
    batch, q_start, key_start, n, m = sequence(cu_q, cu_k, n, m, index, VARLEN)
    first = block * BLOCK_M
    if VARLEN:
        if first >= n:
            return
    offset = m - n
    i = first + tl.arange(0, BLOCK_M)
    last = tl.minimum(first + BLOCK_M, n) - 1
    if KEY_MASK:
        key_mask += batch * key_mask_stride_b
    if ATTN_MASK:
        attn_mask += batch * mask_stride_b + head * mask_stride_h
    threshold = 0.0
    if BIAS:
        threshold = tl.load(bias + head).to(tl.float32) / scale
    line = (batch * heads + head).to(tl.int64) * line_stride + q_start + i
    factor = tl.zeros((BLOCK_M,), tl.float32)
    slope = tl.zeros((BLOCK_M,), tl.float32)
    bend = tl.zeros((BLOCK_M,), tl.float32)
    if FACTOR:
        factor = tl.load(factors + line, mask=i < n, other=0.0)
    if STATS:
        slope = tl.load(slopes + line, mask=i < n, other=0.0)
        bend = tl.load(bends + line, mask=i < n, other=0.0)

    MASKED: tl.constexpr = KEY_MASK or (ATTN_MASK > 0)
    bounds = segments(first + offset, last + offset, m, left, right, BLOCK_N, LEFT, RIGHT, MASKED)
    FIRST_PART: tl.constexpr = 2 if MASKED else (0 if LEFT else 1)
    LAST_PART: tl.constexpr = 2 if MASKED or RIGHT or not EVEN else 1
    q = q_desc.load([batch, head, q_start + first, 0]).reshape(BLOCK_M, BLOCK_D)
    dout = dout_desc.load([batch, head, q_start + first, 0]).reshape(BLOCK_M, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for part in tl.static_range(FIRST_PART, LAST_PART + 1):
        acc = query_blocks(
            acc, q, dout, i, factor, slope, bend, bounds[part], bounds[part + 1],
            k_desc, v_desc, batch, head // groups, key_start, threshold, offset, n, m, left, right,
            key_mask, attn_mask, mask_stride_i, mask_stride_j, 1.0 / scale,
            BLOCK_N, BLOCK_D, LEFT, RIGHT, KEY_MASK, ATTN_MASK, part != 1, BIAS, POWER, STATS, FACTOR, PRECISION,
        )  # fmt: skip

    if UNIFORM:
        acc *= over_gamma(uniform, gamma, head, GAMMA)
    if DGAMMA:
        dlog = tl.sum(tl.where((i < n)[:, None], acc * q.to(tl.float32), 0.0))
        tl.store(dgamma_parts + (index * heads + head) * blocks + block, gamma_share(dlog, gamma, head, POWER))
    columns = tl.arange(0, BLOCK_D)
    rows_dq = dq + batch.to(tl.int64) * dq_stride_b + head.to(tl.int64) * dq_stride_h
    rows_dq += (q_start + i).to(tl.int64)[:, None] * dq_stride_n + columns[None, :]
    tl.store(rows_dq, round_to(acc, q.dtype), mask=(i[:, None] < n) & (columns[None, :] < d))
