"""Decoding: few queries against a long cache, whose keys are split over the GPU and the partial sums added.

All query heads of a group share one tile, so that keys and values are read once. The parts of a row combine by plain
addition: ReLU attention has no row maximum to agree on.
"""

import triton
import triton.language as tl

from reluformer.ops.triton.common import (
    LENGTHS,
    add_stats,
    finish_stats,
    hide,
    product,
    raised,
    rectify,
    round_to,
    row_factor,
)
from reluformer.ops.triton.fading import FAINTEST, fading, gates_of, remaining, since


@triton.jit
def rows_of(group_rows, key_head, groups, n, ROWS: tl.constexpr):
    """The rows of a tile as (query head, query, whether the row exists); a row is one query of one head."""
    row = group_rows + tl.arange(0, ROWS)
    return key_head * groups + row // n, row % n, row < groups * n


@triton.jit(do_not_specialize=LENGTHS)
def decode_kernel(
    q, k_desc, v_desc, acc_parts, stat_parts, gamma, bias, key_mask, attn_mask, count, c,
    heads, groups, n, m, d, left, right, divisor, alpha, scale, chunk,
    q_stride_b, q_stride_h, q_stride_n, key_mask_stride_b,
    mask_stride_b, mask_stride_h, mask_stride_i, mask_stride_j, count_stride_b, count_stride_h,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, GAMMA: tl.constexpr,
    BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the sums over ``chunk`` keys, for all rows that share them, to this part's place."""
    split = tl.program_id(1)
    key_heads = heads // groups
    key_head = tl.program_id(0) % key_heads
    batch = tl.program_id(0) // key_heads
    head, i, live = rows_of(0, key_head, groups, n, ROWS)
    columns = tl.arange(0, BLOCK_D)
    at = batch.to(tl.int64) * q_stride_b + head.to(tl.int64) * q_stride_h + i.to(tl.int64) * q_stride_n
    queries = tl.load(q + at[:, None] + columns[None, :], mask=live[:, None] & (columns[None, :] < d), other=0.0)
    MASKED: tl.constexpr = KEY_MASK or (ATTN_MASK > 0)
    if KEY_MASK:
        key_mask += batch * key_mask_stride_b
    if ATTN_MASK:
        attn_mask += batch.to(tl.int64) * mask_stride_b + head.to(tl.int64)[:, None] * mask_stride_h
    if MASKED:
        count += batch * count_stride_b + head * count_stride_h
    threshold = tl.zeros((ROWS,), tl.float32)
    if BIAS:
        threshold = tl.load(bias + head, mask=live, other=0.0).to(tl.float32) / scale
    factor = tl.zeros((ROWS,), tl.float32)
    if FACTOR:
        inverse_gamma = tl.zeros((ROWS,), tl.float32) + 1.0 / divisor
        if GAMMA:
            inverse_gamma /= tl.load(gamma + head, mask=live, other=1.0).to(tl.float32)
        factor = row_factor(i, count, m - n, n, m, left, right, alpha, inverse_gamma, MASKED, LEFT, RIGHT)
        factor *= raised(scale, POWER)

    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    total = tl.zeros((ROWS, 8), tl.float32)
    r_log_r = tl.zeros((ROWS, 8), tl.float32)
    active = tl.zeros((ROWS, 8), tl.float32)
    start = split * chunk
    stop = tl.minimum(start + chunk, m)
    if LEFT:
        start = tl.maximum(start, tl.maximum(m - n - left, 0) // BLOCK_N * BLOCK_N)
    if FORGET:
        c = gates_of(c, batch, head, heads, m)  # one pointer per row
        c_i = tl.load(c + m - n + i, mask=live, other=0.0)
        latest = since(c_i, tl.load(c + stop - 1, mask=live, other=0.0))
        if tl.max(tl.where(live, latest, FAINTEST - 1.0), 0) < FAINTEST:
            start = stop  # all rows have forgotten all these keys
    for s in tl.range(start, stop, BLOCK_N):
        k = k_desc.load([batch, key_head, s, 0]).reshape(BLOCK_N, BLOCK_D)
        v = v_desc.load([batch, key_head, s, 0]).reshape(BLOCK_N, BLOCK_D)
        x = product(queries, k.T, PRECISION) + threshold[:, None]  # (ROWS, BLOCK_N)
        j = s + tl.arange(0, BLOCK_N)
        x = hide(
            x, tl.where(live, i, n)[:, None], j[None, :], m - n, n, m, left, right,
            key_mask, attn_mask, mask_stride_i, mask_stride_j, 1.0 / scale, LEFT, RIGHT, KEY_MASK, ATTN_MASK,
        )  # fmt: skip
        weight = factor[:, None]
        faded, rest = 0.0, 1.0
        if FORGET:
            c_j = tl.load(c[:, None] + j[None, :], mask=live[:, None] & (j[None, :] < m), other=0.0)
            faded = fading(c_i[:, None], c_j, c_i[:, None], k.dtype)
            rest = remaining(faded)
            weight = weight * rest if FACTOR else rest
        if STATS:
            total, r_log_r, active = add_stats(total, r_log_r, active, x, faded, rest, ROWS, BLOCK_N, POWER, FORGET)
        acc = product(rectify(x, weight, queries.dtype, POWER, FACTOR or FORGET), v, PRECISION, acc)

    part = (split * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tl.store(acc_parts + part[:, None] * BLOCK_D + columns[None, :], acc)
    if STATS:
        tl.store(stat_parts + part * 4, tl.sum(total, 1))
        tl.store(stat_parts + part * 4 + 1, tl.sum(r_log_r, 1))
        tl.store(stat_parts + part * 4 + 2, tl.sum(active, 1))


@triton.jit(do_not_specialize=LENGTHS)
def combine_kernel(
    acc_parts, stat_parts, out, mass, entropy, active_keys, gamma, count,
    parts, heads, groups, n, m, d, left, right, divisor, alpha, scale,
    out_stride_b, out_stride_h, out_stride_n, count_stride_b, count_stride_h,
    ROWS: tl.constexpr, ROWS_PER_PROGRAM: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, COUNT: tl.constexpr, GAMMA: tl.constexpr,
    POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr,
):  # fmt: skip
    """Add the parts of a few rows, in a fixed order, and write their output and statistics."""
    key_heads = heads // groups
    key_head = tl.program_id(0) % key_heads
    batch = tl.program_id(0) // key_heads
    first = tl.program_id(1) * ROWS_PER_PROGRAM
    head, i, live = rows_of(first, key_head, groups, n, ROWS_PER_PROGRAM)
    columns = tl.arange(0, BLOCK_D)
    if COUNT:
        count += batch * count_stride_b + head * count_stride_h
    inverse_gamma = tl.zeros((ROWS_PER_PROGRAM,), tl.float32) + 1.0 / divisor
    if GAMMA:
        inverse_gamma /= tl.load(gamma + head, mask=live, other=1.0).to(tl.float32)
    factor = row_factor(i, count, m - n, n, m, left, right, alpha, inverse_gamma, COUNT, LEFT, RIGHT)
    factor *= raised(scale, POWER)

    acc = tl.zeros((ROWS_PER_PROGRAM, BLOCK_D), tl.float32)
    sums = tl.zeros((ROWS_PER_PROGRAM, 4), tl.float32)
    for split in tl.range(0, parts):
        part = (split * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * ROWS
        part += first + tl.arange(0, ROWS_PER_PROGRAM)
        acc += tl.load(acc_parts + part[:, None] * BLOCK_D + columns[None, :], mask=live[:, None], other=0.0)
        if STATS:
            sums += tl.load(stat_parts + part[:, None] * 4 + tl.arange(0, 4)[None, :], mask=live[:, None], other=0.0)
    if not FACTOR:
        acc = acc * factor[:, None]
    at = batch.to(tl.int64) * out_stride_b + head.to(tl.int64) * out_stride_h + i.to(tl.int64) * out_stride_n
    inside = live[:, None] & (columns[None, :] < d)
    tl.store(out + at[:, None] + columns[None, :], round_to(acc, out.dtype.element_ty), mask=inside)
    if STATS:
        field = tl.arange(0, 4)[None, :]
        total = tl.sum(tl.where(field == 0, sums, 0.0), 1)
        r_log_r = tl.sum(tl.where(field == 1, sums, 0.0), 1)
        keys = tl.sum(tl.where(field == 2, sums, 0.0), 1)
        where = (batch * heads + head).to(tl.int64) * n + i
        finish_stats(total, r_log_r, keys, factor, scale, where, live, mass, entropy, active_keys, POWER)
