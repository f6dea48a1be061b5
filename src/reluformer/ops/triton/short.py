"""Short rows, such as those of sentences: all queries and keys of a head fit into one tile.

A pass is then one launch, with one program per head (backward: per key head), and without loops over blocks, tensor
maps or sums in memory. In small models launches take more time than arithmetic, and these are the fewest possible.
"""

import triton
import triton.language as tl

from reluformer.ops.triton.backward import gamma_share, score_gradient, slope_and_bend
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
)


@triton.jit
def rows_of(x, batch, head, i, columns, stride_b, stride_h, stride_n):
    """Pointers to the rows ``i`` of a head."""
    return x + batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h + i[:, None] * stride_n + columns[None, :]


@triton.jit(do_not_specialize=LENGTHS)
def short_forward_kernel(
    q, k, v, out, mass, entropy, active_keys, gamma, bias, key_mask, count,
    heads, groups, n, m, d, left, right, divisor, alpha, scale,
    q_stride_b, q_stride_h, q_stride_n, k_stride_b, k_stride_h, k_stride_n, v_stride_b, v_stride_h, v_stride_n,
    out_stride_b, out_stride_h, out_stride_n, key_mask_stride_b, count_stride_b, count_stride_h,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr,
    GAMMA: tl.constexpr, BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and statistics of all queries of one head; ``FACTOR`` scales the weights before they are rounded."""
    head = tl.program_id(0) % heads
    batch = tl.program_id(0) // heads
    i = tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK_D)
    queries = (i[:, None] < n) & (columns[None, :] < d)
    keys = (i[:, None] < m) & (columns[None, :] < d)
    key_head = head // groups
    q = tl.load(rows_of(q, batch, head, i, columns, q_stride_b, q_stride_h, q_stride_n), mask=queries, other=0.0)
    k = tl.load(rows_of(k, batch, key_head, i, columns, k_stride_b, k_stride_h, k_stride_n), mask=keys, other=0.0)
    v = tl.load(rows_of(v, batch, key_head, i, columns, v_stride_b, v_stride_h, v_stride_n), mask=keys, other=0.0)
    if KEY_MASK:
        key_mask += batch * key_mask_stride_b
        count += batch * count_stride_b + head * count_stride_h
    unit = raised(scale, POWER)
    inverse_gamma = over_gamma(1.0 / divisor, gamma, head, GAMMA)
    factor = unit * row_factor(i, count, m - n, n, m, left, right, alpha, inverse_gamma, KEY_MASK, LEFT, RIGHT)
    x = product(q, k.T, PRECISION)  # (queries, keys)
    if BIAS:
        x += tl.load(bias + head).to(tl.float32) / scale
    x = hide(
        x, i[:, None], i[None, :], m - n, n, m, left, right, key_mask, key_mask, 0, 0, 1.0, LEFT, RIGHT, KEY_MASK, 0
    )
    sums = product(rectify(x, factor[:, None], q.dtype, POWER, FACTOR), v, PRECISION)
    if not FACTOR:
        sums = sums * factor[:, None]
    place = rows_of(out, batch, head, i, columns, out_stride_b, out_stride_h, out_stride_n)
    tl.store(place, round_to(sums, q.dtype), mask=queries)
    if STATS:
        none = tl.zeros((BLOCK, 8), tl.float32)
        total, r_log_r, active = add_stats(none, none, none, x, 0.0, 1.0, BLOCK, BLOCK, POWER, False)
        where = (batch * heads + head).to(tl.int64) * n + i
        finish_stats(
            tl.sum(total, 1), tl.sum(r_log_r, 1), tl.sum(active, 1), factor, scale,
            where, i < n, mass, entropy, active_keys, POWER,
        )  # fmt: skip


@triton.jit(do_not_specialize=LENGTHS)
def short_backward_kernel(
    q, k, v, dout, dmass, dentropy, mass, entropy, dq, dk, dv, dgamma_parts, dbias_parts, gamma, bias, key_mask, count,
    heads, groups, n, m, d, left, right, divisor, alpha, scale,
    q_stride_b, q_stride_h, q_stride_n, k_stride_b, k_stride_h, k_stride_n, v_stride_b, v_stride_h, v_stride_n,
    dout_stride_b, dout_stride_h, dout_stride_n, dq_stride_b, dq_stride_h, dq_stride_n,
    dk_stride_b, dk_stride_h, dk_stride_n, dv_stride_b, dv_stride_h, dv_stride_n,
    key_mask_stride_b, count_stride_b, count_stride_h,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr,
    GAMMA: tl.constexpr, BIAS: tl.constexpr, POWER: tl.constexpr, DMASS: tl.constexpr, DENTROPY: tl.constexpr,
    DGAMMA: tl.constexpr, DBIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients of one key head; the maths is that of backward.py, and tiles have keys first, as there."""
    key_heads = heads // groups
    key_head = tl.program_id(0) % key_heads
    batch = tl.program_id(0) // key_heads
    i = tl.arange(0, BLOCK)
    columns = tl.arange(0, BLOCK_D)
    queries = (i[:, None] < n) & (columns[None, :] < d)
    keys = (i[:, None] < m) & (columns[None, :] < d)
    k = tl.load(rows_of(k, batch, key_head, i, columns, k_stride_b, k_stride_h, k_stride_n), mask=keys, other=0.0)
    v = tl.load(rows_of(v, batch, key_head, i, columns, v_stride_b, v_stride_h, v_stride_n), mask=keys, other=0.0)
    if KEY_MASK:
        key_mask += batch * key_mask_stride_b
        count += batch * count_stride_b
    unit = raised(scale, POWER)
    dk_sum = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    dv_sum = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for g in tl.range(0, groups):
        head = key_head * groups + g
        rows_q = rows_of(q, batch, head, i, columns, q_stride_b, q_stride_h, q_stride_n)
        rows_dout = rows_of(dout, batch, head, i, columns, dout_stride_b, dout_stride_h, dout_stride_n)
        q_tile = tl.load(rows_q, mask=queries, other=0.0)
        dout_tile = tl.load(rows_dout, mask=queries, other=0.0)
        inverse_gamma = over_gamma(1.0 / divisor, gamma, head, GAMMA)
        counts = count
        if KEY_MASK:
            counts += head * count_stride_h
        factor = unit * row_factor(i, counts, m - n, n, m, left, right, alpha, inverse_gamma, KEY_MASK, LEFT, RIGHT)
        x = product(k, q_tile.T, PRECISION)  # (keys, queries)
        dp = product(v, dout_tile.T, PRECISION)
        if BIAS:
            x += tl.load(bias + head).to(tl.float32) / scale
        x = hide(
            x, i[None, :], i[:, None], m - n, n, m, left, right, key_mask, key_mask, 0, 0, 1.0, LEFT, RIGHT, KEY_MASK, 0
        )  # fmt: skip
        dv_sum = product(rectify(x, factor[None, :], k.dtype, POWER, True), dout_tile, PRECISION, dv_sum)
        slope, bend = 0.0, 0.0
        if DMASS or DENTROPY:
            where = (batch * heads + head).to(tl.int64) * n + i
            slope, bend = slope_and_bend(
                factor, unit, where, i < n, dmass, dentropy, mass, entropy, POWER, DMASS, DENTROPY
            )  # fmt: skip
            slope, bend = slope[None, :], bend[None, :]
        dx = score_gradient(x, dp, factor[None, :], slope, bend, POWER, DMASS or DENTROPY, True)
        part = batch * heads + head
        if DBIAS:
            tl.store(dbias_parts + part, tl.sum(tl.sum(dx, 1), 0) / scale)
        if DGAMMA:
            dlog = tl.sum(tl.sum(dx * tl.maximum(x, 0.0), 1), 0)
            tl.store(dgamma_parts + part, gamma_share(dlog, gamma, head, POWER))
        dx = round_to(dx, k.dtype)
        dk_sum = product(dx, q_tile, PRECISION, dk_sum)
        place = rows_of(dq, batch, head, i, columns, dq_stride_b, dq_stride_h, dq_stride_n)
        tl.store(place, round_to(product(dx.T, k, PRECISION), k.dtype), mask=queries)
    place = rows_of(dk, batch, key_head, i, columns, dk_stride_b, dk_stride_h, dk_stride_n)
    tl.store(place, round_to(dk_sum, k.dtype), mask=keys)
    place = rows_of(dv, batch, key_head, i, columns, dv_stride_b, dv_stride_h, dv_stride_n)
    tl.store(place, round_to(dv_sum, k.dtype), mask=keys)
