"""Gradient of the queries for the deterministic backward pass, one program per block of queries.

The fused backward kernel adds each block's part of ``dq`` to memory in whatever order the GPU runs the blocks, and
floating-point addition is not associative. This kernel sums in a fixed order, at the price of computing the scores
again.
"""

import triton
import triton.language as tl

from reluformer.ops.triton.backward import gamma_share, score_gradient
from reluformer.ops.triton.common import (
    LENGTHS,
    LN2,
    hide,
    over_gamma,
    product,
    round_to,
    segments,
    sequence,
    where_am_i,
)
from reluformer.ops.triton.fading import at_queries, fading, first_key, gates_of, narrowed, remaining


@triton.jit
def query_blocks(
    dq, dlog, q, dout, i, c, c_i, factor, slope, bend, start, stop,
    k_desc, v_desc, batch, key_head, key_start, threshold,
    offset, n, m, left, right, key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, EDGE: tl.constexpr,
    BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr,
    DLOG: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contributions of the keys ``start:stop`` to the gradient of a block of queries."""
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
        shift = slope[:, None]
        if FORGET:
            c_last = tl.load(c + tl.minimum(s + BLOCK_N, m) - 1)
            faded = fading(c_i[:, None], tl.load(c + j, mask=j < m, other=0.0)[None, :], c_last, k.dtype)
            shift = shift - bend[:, None] * faded * (1.0 / (LN2 * POWER))
        dx = score_gradient(x, dp, factor[:, None], shift, bend[:, None], POWER, STATS, FACTOR)
        if FORGET:
            dx *= remaining(faded)
        if DLOG:
            dlog += tl.sum(dx * tl.maximum(x, 0.0), 1)  # not x: it may be -inf
        dq = product(round_to(dx, k.dtype), k, PRECISION, dq)
    return dq, dlog


@triton.jit(do_not_specialize=LENGTHS)
def query_kernel(
    q_desc, k_desc, v_desc, dout_desc, dq, dgamma_parts, dlog_rows, factors, slopes, bends,
    gamma, bias, key_mask, attn_mask, cu_q, cu_k, c,
    blocks, heads, groups, n, m, d, left, right, uniform, scale,
    dq_stride_b, dq_stride_h, dq_stride_n, key_mask_stride_b,
    mask_stride_b, mask_stride_h, mask_stride_i, mask_stride_j, line_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EVEN: tl.constexpr,
    KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, GAMMA: tl.constexpr, BIAS: tl.constexpr, POWER: tl.constexpr,
    STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr, UNIFORM: tl.constexpr, DGAMMA: tl.constexpr,
    DFADED: tl.constexpr, IN_LOOP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries of one head."""
    block, head, index = where_am_i(blocks, heads)
    if RIGHT:
        block = blocks - 1 - block
    rows = n
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
        attn_mask += batch.to(tl.int64) * mask_stride_b + head.to(tl.int64) * mask_stride_h
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

    EDGES: tl.constexpr = KEY_MASK or (ATTN_MASK > 0) or FORGET  # treat every block as one at the edge
    bounds = segments(first + offset, last + offset, m, left, right, BLOCK_N, LEFT, RIGHT, EDGES)
    c_i = factor
    if FORGET:
        c = gates_of(c, batch, head, heads, m)
        c_i = at_queries(c, i, offset, m)
        bounds = narrowed(bounds, first_key(c, tl.maximum(first + offset, 0), BLOCK_N), m)
    FIRST_PART: tl.constexpr = 2 if EDGES else (0 if LEFT else 1)
    LAST_PART: tl.constexpr = 2 if EDGES or RIGHT or not EVEN else 1
    q = q_desc.load([batch, head, q_start + first, 0]).reshape(BLOCK_M, BLOCK_D)
    dout = dout_desc.load([batch, head, q_start + first, 0]).reshape(BLOCK_M, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    dlog = tl.zeros((BLOCK_M,), tl.float32)  # gradient with respect to the logarithm of the scores' scale
    for part in tl.static_range(FIRST_PART, LAST_PART + 1):
        acc, dlog = query_blocks(
            acc, dlog, q, dout, i, c, c_i, factor, slope, bend, bounds[part], bounds[part + 1],
            k_desc, v_desc, batch, head // groups, key_start, threshold, offset, n, m, left, right,
            key_mask, attn_mask, mask_stride_i, mask_stride_j, 1.0 / scale,
            BLOCK_N, BLOCK_D, LEFT, RIGHT, KEY_MASK, ATTN_MASK, part != 1, BIAS, POWER, STATS, FACTOR, FORGET,
            DFADED and IN_LOOP, PRECISION,
        )  # fmt: skip

    if UNIFORM:
        acc *= over_gamma(uniform, gamma, head, GAMMA)
    if DGAMMA or (DFADED and not IN_LOOP):
        dlog = tl.sum(tl.where((i < n)[:, None], acc * q.to(tl.float32), 0.0), 1)
    if DGAMMA:
        share = gamma_share(tl.sum(dlog, 0), gamma, head, POWER)
        tl.store(dgamma_parts + (index * heads + head) * blocks + block, share)
    if DFADED:
        tl.store(dlog_rows + (batch * heads + head).to(tl.int64) * rows + i, dlog, mask=i < n)
    columns = tl.arange(0, BLOCK_D)
    rows_dq = dq + batch.to(tl.int64) * dq_stride_b + head.to(tl.int64) * dq_stride_h
    rows_dq += (q_start + i).to(tl.int64)[:, None] * dq_stride_n + columns[None, :]
    tl.store(rows_dq, round_to(acc, q.dtype), mask=(i[:, None] < n) & (columns[None, :] < d))
