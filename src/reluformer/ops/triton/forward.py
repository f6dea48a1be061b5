"""Forward pass: one program per block of queries loops over the blocks of keys that it may see.

The loop holds two products, a rectifier and a cast; every scale is applied at the end of the row. Blocks that all
queries of the program see whole have a loop of their own, without masks.
"""

import triton
import triton.language as tl

from reluformer.ops.triton.common import (
    LENGTHS,
    add_stats,
    finish_stats,
    hide,
    over_gamma,
    product,
    raised,
    rectify,
    round_to,
    row_factor,
    segments,
    sequence,
    where_am_i,
)
from reluformer.ops.triton.fading import at_queries, fading, first_key, gates_of, narrowed, remaining, since


@triton.jit
def forward_blocks(
    acc, total, r_log_r, active, q, factor, i, c, c_i, c_first, start, stop,
    k_desc, v_desc, faded_v_desc, batch, head, key_head, key_start, threshold, offset, n, m, left, right,
    key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, EDGE: tl.constexpr,
    BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contributions of the keys ``start:stop`` to the sums of a block of queries."""
    if FORGET:
        since_first = tl.exp(since(c_i, c_first))
        c_next = tl.load(c + tl.minimum(start + BLOCK_N, m) - 1)
    for s in tl.range(start, stop, BLOCK_N):
        k = k_desc.load([batch, key_head, key_start + s, 0]).reshape(BLOCK_N, BLOCK_D)
        x = product(q, k.T, PRECISION)  # (BLOCK_M, BLOCK_N)
        if FORGET and not EDGE:
            v = faded_v_desc.load([batch, head, s, 0]).reshape(BLOCK_N, BLOCK_D)
        else:
            v = v_desc.load([batch, key_head, key_start + s, 0]).reshape(BLOCK_N, BLOCK_D)
        if BIAS:
            x += threshold
        if EDGE:
            j = s + tl.arange(0, BLOCK_N)
            x = hide(
                x, i[:, None], j[None, :], offset, n, m, left, right,
                key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale, LEFT, RIGHT, KEY_MASK, ATTN_MASK,
            )  # fmt: skip
        weight = factor[:, None]
        faded, rest = 0.0, 1.0
        if FORGET:
            c_last = c_next
            c_next = tl.load(c + tl.minimum(s + 2 * BLOCK_N, m) - 1)  # one iteration early, to hide the latency
            if EDGE:
                faded = fading(c_i[:, None], tl.load(c + j, mask=j < m, other=0.0)[None, :], c_last, q.dtype)
                rest = remaining(faded)
            else:
                rest = (since_first * tl.exp(since(c_first, c_last)))[:, None]
            weight = weight * rest if FACTOR else rest
        if STATS:
            total, r_log_r, active = add_stats(total, r_log_r, active, x, faded, rest, BLOCK_M, BLOCK_N, POWER, FORGET)
        acc = product(rectify(x, weight, q.dtype, POWER, FACTOR or FORGET), v, PRECISION, acc)
    return acc, total, r_log_r, active


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    q_desc, k_desc, v_desc, faded_v_desc, out_desc, out, mass, entropy, active_keys,
    gamma, bias, key_mask, attn_mask, count, cu_q, cu_k, c,
    blocks, heads, groups, n, m, d, left, right, divisor, alpha, scale,
    out_stride_h, out_stride_n, key_mask_stride_b,
    mask_stride_b, mask_stride_h, mask_stride_i, mask_stride_j, count_stride_b, count_stride_h,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EVEN: tl.constexpr,
    KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, GAMMA: tl.constexpr, BIAS: tl.constexpr,
    POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and statistics of one block of queries of one head.

    ``FACTOR`` scales the weights inside the loop, for dtypes with a narrow exponent.
    """
    block, head, index = where_am_i(blocks, heads)
    if RIGHT:
        block = blocks - 1 - block  # the longest rows first, lest the GPU wait for them at the end
    rows = n  # rows of the whole tensor: the stride of the statistics
    batch, q_start, key_start, n, m = sequence(cu_q, cu_k, n, m, index, VARLEN)
    first = block * BLOCK_M
    if VARLEN:
        if first >= n:
            return
    key_head = head // groups
    offset = m - n
    i = first + tl.arange(0, BLOCK_M)

    MASKED: tl.constexpr = KEY_MASK or (ATTN_MASK > 0)
    EDGES: tl.constexpr = MASKED or (FORGET and STATS)  # treat every block as one at the edge
    if KEY_MASK:
        key_mask += batch * key_mask_stride_b
    if ATTN_MASK:
        attn_mask += batch.to(tl.int64) * mask_stride_b + head.to(tl.int64) * mask_stride_h
    if MASKED:
        count += batch * count_stride_b + head * count_stride_h
    threshold = 0.0
    if BIAS:
        threshold = tl.load(bias + head).to(tl.float32) / scale
    unit = raised(scale, POWER)
    inverse_gamma = over_gamma(1.0 / divisor, gamma, head, GAMMA)
    factor = row_factor(i, count, offset, n, m, left, right, alpha, inverse_gamma, MASKED, LEFT, RIGHT)

    q = q_desc.load([batch, head, q_start + first, 0]).reshape(BLOCK_M, BLOCK_D)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    total = tl.zeros((BLOCK_M, 8), tl.float32)
    r_log_r = tl.zeros((BLOCK_M, 8), tl.float32)
    active = tl.zeros((BLOCK_M, 8), tl.float32)
    last = tl.minimum(first + BLOCK_M, n) - 1
    bounds = segments(first + offset, last + offset, m, left, right, BLOCK_N, LEFT, RIGHT, EDGES)
    c_i = factor
    c_first = 0.0
    if FORGET:
        c = gates_of(c, batch, head, heads, m)
        position = tl.maximum(first + offset, 0)
        c_i = at_queries(c, i, offset, m)
        c_first = tl.load(c + position)
        bounds = narrowed(bounds, first_key(c, position, BLOCK_N), m)
    FIRST_PART: tl.constexpr = 2 if EDGES else (0 if LEFT else 1)
    LAST_PART: tl.constexpr = 2 if EDGES or RIGHT or not EVEN else 1
    for part in tl.static_range(FIRST_PART, LAST_PART + 1):
        acc, total, r_log_r, active = forward_blocks(
            acc, total, r_log_r, active, q, factor * unit, i, c, c_i, c_first, bounds[part], bounds[part + 1],
            k_desc, v_desc, faded_v_desc, batch, head, key_head, key_start, threshold, offset, n, m, left, right,
            key_mask, attn_mask, mask_stride_i, mask_stride_j, 1.0 / scale,
            BLOCK_M, BLOCK_N, BLOCK_D, LEFT, RIGHT, KEY_MASK, ATTN_MASK, part != 1,
            BIAS, POWER, STATS, FACTOR, FORGET, PRECISION,
        )  # fmt: skip

    if not FACTOR:
        acc = acc * (factor * unit)[:, None]
    if VARLEN:  # the last rows of a block may belong to another sequence
        columns = tl.arange(0, BLOCK_D)
        rows_out = out + head.to(tl.int64) * out_stride_h + (q_start + i).to(tl.int64)[:, None] * out_stride_n
        tl.store(rows_out + columns[None, :], round_to(acc, q.dtype), mask=(i[:, None] < n) & (columns[None, :] < d))
    else:
        out_desc.store([batch, head, first, 0], round_to(acc, q.dtype).reshape(1, 1, BLOCK_M, BLOCK_D))
    if STATS:
        where = (batch * heads + head).to(tl.int64) * rows + q_start + i
        finish_stats(
            tl.sum(total, 1), tl.sum(r_log_r, 1), tl.sum(active, 1), factor * unit, scale,
            where, i < n, mass, entropy, active_keys, POWER,
        )  # fmt: skip
