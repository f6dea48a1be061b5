"""Backward pass: one program per block of keys, a loop over the blocks of queries that see it; five products.

With ``u = relu(x)`` and the row's factor folded into ``dout' = factor * dout``, the gradient of a score is

    dx_ij = [dout'_i.v_j + slope_i - bend_i * log2(u_ij)] * power * u_ij ** (power - 1)    where x_ij > 0

``slope`` and ``bend`` carry the gradients of mass and entropy. Neither the output nor a row maximum is needed. Nor
does gamma's gradient: out and mass are homogeneous in the scores, so it is ``-sum(dx * x) / (power * gamma)``, which
without bias and mask is ``-sum(q * dq) / (power * gamma)``.
Tiles are transposed, keys first, so that ``u`` and ``dx`` enter the products of ``dv`` and ``dk`` from registers.
"""

import triton
import triton.language as tl

from reluformer.ops.triton.common import (
    INTERPRETED,
    LENGTHS,
    LN2,
    TINY,
    hide,
    log2,
    over_gamma,
    product,
    rectify,
    round_to,
    row_factor,
    segments,
    sequence,
    where_am_i,
)


@triton.jit(do_not_specialize=LENGTHS)
def prepare_kernel(
    dout, dmass, dentropy, mass, entropy, scaled_dout, factors, slopes, bends, dq32,
    gamma, count, cu_q, cu_k, blocks, heads, n, m, d, left, right, divisor, alpha, scale,
    dout_stride_b, dout_stride_h, dout_stride_n, scaled_stride_b, scaled_stride_h, scaled_stride_n,
    count_stride_b, count_stride_h, line_stride, dq_rows, dq_width,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    COUNT: tl.constexpr, GAMMA: tl.constexpr, POWER: tl.constexpr, SCALED: tl.constexpr, FACTOR: tl.constexpr,
    DMASS: tl.constexpr, DENTROPY: tl.constexpr, STATS: tl.constexpr, UNIFORM: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """Per row: the scaled gradient of the output, slope and bend; and zeros for the sums of its gradient."""
    block, head, index = where_am_i(blocks, heads)
    rows = n
    batch, q_start, _, n, m = sequence(cu_q, cu_k, n, m, index, VARLEN)
    first = block * BLOCK_M
    if first >= n:
        return
    i = first + tl.arange(0, BLOCK_M)
    live = i < n
    where = (batch * heads + head).to(tl.int64) * rows + q_start + i
    line = (batch * heads + head).to(tl.int64) * line_stride + q_start + i
    if COUNT:
        count += batch * count_stride_b + head * count_stride_h
    inverse_gamma = over_gamma(1.0 / divisor, gamma, head, GAMMA)
    unit = scale * scale if POWER == 2 else scale
    factor = row_factor(i, count, m - n, n, m, left, right, alpha, inverse_gamma, COUNT, LEFT, RIGHT)

    columns = tl.arange(0, BLOCK_D)
    if ZERO:
        row = ((batch * heads + head).to(tl.int64) * dq_rows + i)[:, None]
        room = (i[:, None] < dq_rows) & (columns[None, :] < dq_width)
        tl.store(dq32 + row * dq_width + columns[None, :], tl.zeros((BLOCK_M, BLOCK_D), tl.float32), mask=room)
    if SCALED:
        inside = live[:, None] & (columns[None, :] < d)
        at = (q_start + i).to(tl.int64)[:, None]
        batch = batch.to(tl.int64)
        rows_dout = dout + batch * dout_stride_b + head.to(tl.int64) * dout_stride_h + at * dout_stride_n
        grad = tl.load(rows_dout + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        rows_scaled = scaled_dout + batch * scaled_stride_b + head.to(tl.int64) * scaled_stride_h + at * scaled_stride_n
        scaled = round_to(grad * (factor * unit)[:, None], scaled_dout.dtype.element_ty)
        tl.store(rows_scaled + columns[None, :], scaled, mask=inside)
    if FACTOR:
        tl.store(factors + line, factor * unit, mask=live)
    if STATS:
        slope = tl.zeros((BLOCK_M,), tl.float32)
        bend = tl.zeros((BLOCK_M,), tl.float32)
        if DMASS:
            slope += factor * unit * tl.load(dmass + where, mask=live, other=0.0)
        if DENTROPY:
            sum_u = tl.load(mass + where, mask=live, other=0.0) / (factor * unit)
            alive = sum_u * unit > TINY
            safe = tl.where(alive, sum_u, 1.0)
            pull = tl.where(alive, tl.load(dentropy + where, mask=live, other=0.0) / safe, 0.0)
            slope += pull * (tl.log2(safe) * LN2 - tl.load(entropy + where, mask=live, other=0.0))
            bend += pull * (POWER * LN2)
        if UNIFORM:
            slope /= factor * unit
            bend /= factor * unit
        tl.store(slopes + line, slope, mask=live)
        tl.store(bends + line, bend, mask=live)


@triton.jit
def score_gradient(x, dp, factor, slope, bend, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr):
    """Gradient of the scores ``x`` from that of the weights ``dp``; rows broadcast against the tile."""
    if FACTOR:
        dp = dp * factor
    if STATS:
        dp = dp + (slope - bend * log2(tl.maximum(x, TINY)))
    if POWER == 2:
        dp = dp * (2.0 * x)
    return tl.where(x > 0, dp, 0.0)


@triton.jit
def gamma_share(dlog, gamma, head, POWER: tl.constexpr):
    """Gamma's gradient from that with respect to the logarithm of the scores' scale."""
    return -dlog / (POWER * tl.load(gamma + head).to(tl.float32))


@triton.jit
def key_blocks(
    dk, dv, dbias, dlog, k, v, j, start, stop, q_desc, dout_desc, dq_desc, dq, factors, slopes, bends,
    batch, head, q_start, threshold, offset, n, m, left, right, dq_width,
    key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, EDGE: tl.constexpr,
    BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr,
    DBIAS: tl.constexpr, DGAMMA: tl.constexpr, DQ: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the queries ``start:stop`` to the gradients of a block of keys, and its share to theirs."""
    for s in tl.range(start, stop, BLOCK_M):
        q = q_desc.load([batch, head, q_start + s, 0]).reshape(BLOCK_M, BLOCK_D)
        dout = dout_desc.load([batch, head, q_start + s, 0]).reshape(BLOCK_M, BLOCK_D)
        i = s + tl.arange(0, BLOCK_M)
        x = product(k, q.T, PRECISION)  # (BLOCK_N, BLOCK_M)
        dp = product(v, dout.T, PRECISION)
        if BIAS:
            x += threshold
        if EDGE:
            x = hide(
                x, i[None, :], j[:, None], offset, n, m, left, right,
                key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale, LEFT, RIGHT, KEY_MASK, ATTN_MASK,
            )  # fmt: skip
        factor, slope, bend = 0.0, 0.0, 0.0
        if FACTOR:
            factor = tl.load(factors + i, mask=i < n, other=0.0)[None, :]
        if STATS:
            slope = tl.load(slopes + i, mask=i < n, other=0.0)[None, :]
            bend = tl.load(bends + i, mask=i < n, other=0.0)[None, :]
        dv = product(rectify(x, factor, k.dtype, POWER, FACTOR), dout, PRECISION, dv)
        dx = score_gradient(x, dp, factor, slope, bend, POWER, STATS, FACTOR)
        if DBIAS:
            dbias += tl.sum(dx, 1)
        if DGAMMA:
            dlog += tl.sum(dx * tl.maximum(x, 0.0), 1)  # not x: it may be -inf
        dx = round_to(dx, k.dtype)
        dk = product(dx, q, PRECISION, dk)
        if DQ:
            part = product(dx.T, k, PRECISION)  # (BLOCK_M, BLOCK_D)
            if INTERPRETED:
                columns = tl.arange(0, BLOCK_D)[None, :]
                tl.atomic_add(
                    dq + (q_start + i)[:, None] * dq_width + columns, part, mask=(i[:, None] < n) & (columns < dq_width)
                )
            else:
                dq_desc.atomic_add([batch, head, q_start + s, 0], part.reshape(1, 1, BLOCK_M, BLOCK_D))
    return dk, dv, dbias, dlog


@triton.jit(do_not_specialize=LENGTHS)
def key_kernel(
    q_desc, k_desc, v_desc, dout_desc, dq_desc, dq, dk, dv, dbias_parts, dgamma_parts, factors, slopes, bends,
    gamma, bias, key_mask, attn_mask, cu_q, cu_k,
    blocks, heads, groups, n, m, d, left, right, uniform, scale,
    dk_stride_b, dk_stride_h, dk_stride_n, dv_stride_b, dv_stride_h, dv_stride_n, key_mask_stride_b,
    mask_stride_b, mask_stride_h, mask_stride_i, mask_stride_j, line_stride, dq_width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EVEN: tl.constexpr,
    KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, GAMMA: tl.constexpr, BIAS: tl.constexpr,
    POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, UNIFORM: tl.constexpr,
    DBIAS: tl.constexpr, DGAMMA: tl.constexpr, DQ: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values; with ``DQ``, its part of the queries' gradients is added to ``dq``."""
    block, key_head, index = where_am_i(blocks, heads // groups)
    rows = n
    batch, q_start, key_start, n, m = sequence(cu_q, cu_k, n, m, index, VARLEN)
    first = block * BLOCK_N
    if VARLEN:
        if first >= m:
            return
    offset = m - n
    j = first + tl.arange(0, BLOCK_N)
    last = tl.minimum(first + BLOCK_N, m) - 1
    if KEY_MASK:
        key_mask += batch * key_mask_stride_b
    if ATTN_MASK:
        attn_mask += batch * mask_stride_b

    MASKED: tl.constexpr = KEY_MASK or (ATTN_MASK > 0)
    start, plain, plain_stop, stop = segments(
        first - offset, last - offset, n, right, left, BLOCK_M, RIGHT, LEFT, MASKED
    )
    if not EVEN:
        if first + BLOCK_N > m:  # the keys past the end are another sequence's, or none: every block needs its mask
            plain = start
            plain_stop = start
    bounds = (start, plain, plain_stop, stop)
    FIRST_PART: tl.constexpr = 2 if MASKED else (0 if RIGHT else 1)
    LAST_PART: tl.constexpr = 2 if MASKED or LEFT or not EVEN else 1

    k = k_desc.load([batch, key_head, key_start + first, 0]).reshape(BLOCK_N, BLOCK_D)
    v = v_desc.load([batch, key_head, key_start + first, 0]).reshape(BLOCK_N, BLOCK_D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for g in tl.range(0, groups):
        head = key_head * groups + g
        dbias = tl.zeros((BLOCK_N,), tl.float32)
        dlog = tl.zeros((BLOCK_N,), tl.float32)  # with respect to the logarithm of the scores' scale
        threshold = 0.0
        if BIAS:
            threshold = tl.load(bias + head).to(tl.float32) / scale
        head_mask = attn_mask
        if ATTN_MASK:
            head_mask += head * mask_stride_h
        row = (batch * heads + head).to(tl.int64) * rows
        line = (batch * heads + head).to(tl.int64) * line_stride + q_start
        for part in tl.static_range(FIRST_PART, LAST_PART + 1):
            dk_acc, dv_acc, dbias, dlog = key_blocks(
                dk_acc, dv_acc, dbias, dlog, k, v, j, bounds[part], bounds[part + 1], q_desc, dout_desc, dq_desc,
                dq + row * dq_width, factors + line, slopes + line, bends + line,
                batch, head, q_start, threshold, offset, n, m, left, right, dq_width,
                key_mask, head_mask, mask_stride_i, mask_stride_j, 1.0 / scale,
                BLOCK_M, BLOCK_N, BLOCK_D, LEFT, RIGHT, KEY_MASK, ATTN_MASK, part != 1,
                BIAS, POWER, STATS, FACTOR, DBIAS, DGAMMA, DQ, PRECISION,
            )  # fmt: skip
        if DBIAS or DGAMMA:
            factor = 1.0
            if UNIFORM:
                factor = over_gamma(uniform, gamma, head, GAMMA)
            slot = (index * heads + head) * blocks + block
            if DBIAS:
                tl.store(dbias_parts + slot, tl.sum(dbias, 0) * factor / scale)
            if DGAMMA:
                tl.store(dgamma_parts + slot, gamma_share(tl.sum(dlog, 0) * factor, gamma, head, POWER))
    if UNIFORM:
        factor = over_gamma(uniform, gamma, key_head * groups, GAMMA)
        dk_acc *= factor
        dv_acc *= factor
    columns = tl.arange(0, BLOCK_D)
    inside = (j[:, None] < m) & (columns[None, :] < d)
    at = (key_start + j).to(tl.int64)[:, None]
    batch = batch.to(tl.int64)
    rows_dk = dk + batch * dk_stride_b + key_head.to(tl.int64) * dk_stride_h + at * dk_stride_n + columns[None, :]
    rows_dv = dv + batch * dv_stride_b + key_head.to(tl.int64) * dv_stride_h + at * dv_stride_n + columns[None, :]
    tl.store(rows_dk, round_to(dk_acc, k.dtype), mask=inside)
    tl.store(rows_dv, round_to(dv_acc, k.dtype), mask=inside)


@triton.jit(do_not_specialize=LENGTHS)
def finish_kernel(
    dq32, dq, q, dgamma_parts, gamma, blocks, heads, n, d, dq_rows, dq_width, uniform,
    dq_stride_b, dq_stride_h, dq_stride_n, q_stride_b, q_stride_h, q_stride_n,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, GAMMA: tl.constexpr, POWER: tl.constexpr, UNIFORM: tl.constexpr,
    DGAMMA: tl.constexpr, PERMUTED: tl.constexpr,
):  # fmt: skip
    """Round the float32 sums of the queries' gradients to their dtype, and get gamma's gradient from them."""
    block, head, batch = where_am_i(blocks, heads)
    wide_batch, wide_head = batch.to(tl.int64), head.to(tl.int64)
    i = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = (i < n) & (columns < d)
    value = tl.load(dq32 + ((wide_batch * heads + head) * dq_rows + i) * dq_width + columns, mask=inside, other=0.0)
    if PERMUTED:  # hopper/backward.py keeps columns eight apart side by side: of 16, bits 2 1 | 3 | 0
        value = value.reshape(BLOCK_M, BLOCK_D // 16, 4, 2, 2).permute(0, 1, 3, 2, 4).reshape(BLOCK_M, BLOCK_D)
    if UNIFORM:
        value *= over_gamma(uniform, gamma, head, GAMMA)
    rows_dq = dq + wide_batch * dq_stride_b + wide_head * dq_stride_h + i * dq_stride_n + columns
    tl.store(rows_dq, round_to(value, dq.dtype.element_ty), mask=inside)
    if DGAMMA:
        rows_q = q + wide_batch * q_stride_b + wide_head * q_stride_h + i * q_stride_n + columns
        dlog = tl.sum(tl.load(rows_q, mask=inside, other=0.0).to(tl.float32) * value)
        tl.store(dgamma_parts + (batch * heads + head) * blocks + block, gamma_share(dlog, gamma, head, POWER))
