"""Backward pass: one program per block of keys loops over the blocks of queries that see it, five products for each.

With ``u = relu(x)`` and the row's factor folded into ``dout' = factor * dout``, the gradient of a score is

    dx_ij = [dout'_i.v_j + slope_i - bend_i * log2(u_ij)] * power * u_ij ** (power - 1)    where x_ij > 0

``slope`` and ``bend`` carry the gradients of mass and entropy. Neither the output nor a row maximum is needed, not even
for the gradient of gamma: output and mass are homogeneous in the scores, so it is ``-sum(dx * x) / (power * gamma)``,
which without bias and float mask is ``-sum(q * dq) / (power * gamma)``.

With forget gates ``u`` and ``dx`` fade, see fading.py. The gradient of the sums ``c`` is then ``q.dq / power`` at the
position of each query, less ``k.dk / power`` at every key, for the same reason.

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
    raised,
    rectify,
    round_to,
    row_factor,
    segments,
    sequence,
    where_am_i,
)
from reluformer.ops.triton.fading import at_queries, fading, gates_of, narrowed, remaining, since, stop_query


@triton.jit
def slope_and_bend(factor, unit, where, live, dmass, dentropy, mass, entropy, POWER: tl.constexpr,
                   DMASS: tl.constexpr, DENTROPY: tl.constexpr):  # fmt: skip
    """Slope and bend, from the gradients of mass and entropy, of rows with weights ``factor * relu(x) ** POWER``."""
    slope = factor * 0.0
    bend = factor * 0.0
    if DMASS:
        slope += factor * tl.load(dmass + where, mask=live, other=0.0)
    if DENTROPY:
        sum_u = tl.load(mass + where, mask=live, other=0.0) / factor
        alive = sum_u * unit > TINY
        safe = tl.where(alive, sum_u, 1.0)
        pull = tl.where(alive, tl.load(dentropy + where, mask=live, other=0.0) / safe, 0.0)
        slope += pull * (tl.log2(safe) * LN2 - tl.load(entropy + where, mask=live, other=0.0))
        bend += pull * (POWER * LN2)
    return slope, bend


@triton.jit(do_not_specialize=LENGTHS)
def prepare_kernel(
    dout, dmass, dentropy, mass, entropy, scaled_dout, faded_dout, factors, slopes, bends, dq32,
    gamma, count, cu_q, cu_k, c, blocks, heads, n, m, d, left, right, divisor, alpha, scale,
    dout_stride_b, dout_stride_h, dout_stride_n, scaled_stride_b, scaled_stride_h, scaled_stride_n,
    count_stride_b, count_stride_h, line_stride, dq_rows, dq_width,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    COUNT: tl.constexpr, GAMMA: tl.constexpr, POWER: tl.constexpr, SCALED: tl.constexpr, FACTOR: tl.constexpr,
    DMASS: tl.constexpr, DENTROPY: tl.constexpr, STATS: tl.constexpr, UNIFORM: tl.constexpr, ZERO: tl.constexpr,
    FADED: tl.constexpr,
):  # fmt: skip
    """Write, for each row, the scaled gradient of the output, the slope and the bend, and zeros where dq is summed.

    If not 0, ``FADED`` is a number of rows: the scaled gradient is also written with the decay from the first query of
    each block of that many rows multiplied in.
    """
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
    unit = raised(scale, POWER)
    factor = row_factor(i, count, m - n, n, m, left, right, alpha, inverse_gamma, COUNT, LEFT, RIGHT)

    columns = tl.arange(0, BLOCK_D)
    if ZERO:
        row = ((batch * heads + head).to(tl.int64) * dq_rows + i)[:, None]
        room = (i[:, None] < dq_rows) & (columns[None, :] < dq_width)
        tl.store(dq32 + row * dq_width + columns[None, :], tl.zeros((BLOCK_M, BLOCK_D), tl.float32), mask=room)
    if SCALED or FADED:
        inside = live[:, None] & (columns[None, :] < d)
        at = (q_start + i).to(tl.int64)[:, None]
        batch = batch.to(tl.int64)
        rows_dout = dout + batch * dout_stride_b + head.to(tl.int64) * dout_stride_h + at * dout_stride_n
        grad = tl.load(rows_dout + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        place = batch * scaled_stride_b + head.to(tl.int64) * scaled_stride_h + at * scaled_stride_n + columns[None, :]
        if SCALED:
            grad *= (factor * unit)[:, None]
            tl.store(scaled_dout + place, round_to(grad, scaled_dout.dtype.element_ty), mask=inside)
        if FADED:
            c = gates_of(c, batch, head, heads, m)
            c_first = at_queries(c, i // FADED * FADED, m - n, m)
            grad *= tl.exp(since(at_queries(c, i, m - n, m), c_first))[:, None]
            tl.store(faded_dout + place, round_to(grad, faded_dout.dtype.element_ty), mask=inside)
    if FACTOR:
        tl.store(factors + line, factor * unit, mask=live)
    if STATS:
        slope, bend = slope_and_bend(
            factor * unit, unit, where, live, dmass, dentropy, mass, entropy, POWER, DMASS, DENTROPY
        )  # fmt: skip
        if UNIFORM:
            slope /= factor * unit
            bend /= factor * unit
        tl.store(slopes + line, slope, mask=live)
        tl.store(bends + line, bend, mask=live)


@triton.jit
def score_gradient(x, dp, factor, slope, bend, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr):
    """Gradient of the scores ``x``, given that of the weights ``dp``; rows broadcast against the tile."""
    if FACTOR:
        dp = dp * factor
    if STATS:
        dp = dp + (slope - bend * log2(tl.maximum(x, TINY)))
    if POWER > 1:
        dp = dp * (POWER * x)
    if POWER >= 4:
        dp = dp * (x * x)
    if POWER == 8:
        square = x * x
        dp = dp * (square * square)
    return tl.where(x > 0, dp, 0.0)


@triton.jit
def gamma_share(dlog, gamma, head, POWER: tl.constexpr):
    """Gamma's gradient, given the gradient with respect to the logarithm of the scores' scale."""
    return -dlog / (POWER * tl.load(gamma + head).to(tl.float32))


@triton.jit
def key_blocks(
    dk, dv, dbias, dlog, k, v, j, c, c_j, c_last, start, stop,
    q_desc, dout_desc, faded_dout_desc, dq_desc, dq, dlog_rows, factors, slopes, bends,
    batch, head, q_start, threshold, offset, n, m, left, right, dq_width,
    key_mask, attn_mask, mask_stride_i, mask_stride_j, inverse_scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, EDGE: tl.constexpr,
    BIAS: tl.constexpr, POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr,
    DBIAS: tl.constexpr, DLOG: tl.constexpr, DLOG_ROWS: tl.constexpr, DQ: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add what the queries ``start:stop`` contribute to the gradients of a block of keys and, if ``DQ``, vice versa."""
    if FORGET:
        until_last = tl.exp(since(c_last, c_j))
        c_next = at_queries(c, start, offset, m)
    for s in tl.range(start, stop, BLOCK_M):
        q = q_desc.load([batch, head, q_start + s, 0]).reshape(BLOCK_M, BLOCK_D)
        if FORGET and not EDGE:
            dout = faded_dout_desc.load([batch, head, s, 0]).reshape(BLOCK_M, BLOCK_D)
        else:
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
        weight = factor
        if FORGET:
            if EDGE:
                faded = fading(at_queries(c, i, offset, m)[None, :], c_j[:, None], c_last, k.dtype)
                rest = remaining(faded)
                slope -= bend * faded * (1.0 / (LN2 * POWER))
            else:
                rest = (until_last * tl.exp(since(c_next, c_last)))[:, None]
                c_next = at_queries(c, s + BLOCK_M, offset, m)  # one iteration early, to hide the latency
            weight = rest * factor if FACTOR else rest
        dv = product(rectify(x, weight, k.dtype, POWER, FACTOR or FORGET), dout, PRECISION, dv)
        dx = score_gradient(x, dp, factor, slope, bend, POWER, STATS, FACTOR)
        if FORGET:
            dx *= rest
        if DBIAS:
            dbias += tl.sum(dx, 1)
        if DLOG:
            dlog_ij = dx * tl.maximum(x, 0.0)  # not x: it may be -inf
            dlog += tl.sum(dlog_ij, 1)
            if DLOG_ROWS:
                tl.atomic_add(dlog_rows + i, tl.sum(dlog_ij, 0), mask=i < n)
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
    q_desc, k_desc, v_desc, dout_desc, faded_dout_desc, dq_desc, dq, dk, dv, dbias_parts, dgamma_parts,
    dlog_rows, dlog_keys, factors, slopes, bends, gamma, bias, key_mask, attn_mask, cu_q, cu_k, c,
    blocks, heads, groups, n, m, d, left, right, uniform, scale,
    dk_stride_b, dk_stride_h, dk_stride_n, dv_stride_b, dv_stride_h, dv_stride_n, key_mask_stride_b,
    mask_stride_b, mask_stride_h, mask_stride_i, mask_stride_j, line_stride, dq_width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    VARLEN: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, EVEN: tl.constexpr,
    KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr, GAMMA: tl.constexpr, BIAS: tl.constexpr,
    POWER: tl.constexpr, STATS: tl.constexpr, FACTOR: tl.constexpr, FORGET: tl.constexpr, UNIFORM: tl.constexpr,
    DBIAS: tl.constexpr, DGAMMA: tl.constexpr, DFADED: tl.constexpr, IN_LOOP: tl.constexpr, DQ: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values; with ``DQ``, add its part of the queries' gradients to ``dq``."""
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
        attn_mask += batch.to(tl.int64) * mask_stride_b

    EDGES: tl.constexpr = KEY_MASK or (ATTN_MASK > 0) or (FORGET and STATS)  # treat every block as one at the edge
    start, plain, plain_stop, stop = segments(
        first - offset, last - offset, n, right, left, BLOCK_M, RIGHT, LEFT, EDGES
    )
    if not EVEN:
        if first + BLOCK_N > m:  # keys past the end are another sequence's, or do not exist: every block needs a mask
            plain = start
            plain_stop = start
    bounds = (start, plain, plain_stop, stop)
    FIRST_PART: tl.constexpr = 2 if EDGES else (0 if RIGHT else 1)
    LAST_PART: tl.constexpr = 2 if EDGES or LEFT or not EVEN else 1

    k = k_desc.load([batch, key_head, key_start + first, 0]).reshape(BLOCK_N, BLOCK_D)
    v = v_desc.load([batch, key_head, key_start + first, 0]).reshape(BLOCK_N, BLOCK_D)
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    k_dot_dk = tl.zeros((BLOCK_N,), tl.float32)
    for g in tl.range(0, groups):
        head = key_head * groups + g
        dbias = tl.zeros((BLOCK_N,), tl.float32)
        dlog = tl.zeros((BLOCK_N,), tl.float32)  # gradient with respect to the logarithm of the scores' scale
        threshold = 0.0
        if BIAS:
            threshold = tl.load(bias + head).to(tl.float32) / scale
        head_mask = attn_mask
        if ATTN_MASK:
            head_mask += head.to(tl.int64) * mask_stride_h
        gates = c
        c_j = dlog
        c_last = 0.0
        visited = bounds
        if FORGET:
            gates = gates_of(c, batch, head, heads, m)
            c_j = tl.load(gates + j, mask=j < m, other=0.0)
            c_last = tl.load(gates + last)
            visited = narrowed(bounds, 0, stop_query(gates, last, offset, n, BLOCK_M))
        row = (batch * heads + head).to(tl.int64) * rows
        line = (batch * heads + head).to(tl.int64) * line_stride + q_start
        for part in tl.static_range(FIRST_PART, LAST_PART + 1):
            dk_acc, dv_acc, dbias, dlog = key_blocks(
                dk_acc, dv_acc, dbias, dlog, k, v, j, gates, c_j, c_last, visited[part], visited[part + 1],
                q_desc, dout_desc, faded_dout_desc, dq_desc, dq + row * dq_width, dlog_rows + row,
                factors + line, slopes + line, bends + line,
                batch, head, q_start, threshold, offset, n, m, left, right, dq_width,
                key_mask, head_mask, mask_stride_i, mask_stride_j, 1.0 / scale,
                BLOCK_M, BLOCK_N, BLOCK_D, LEFT, RIGHT, KEY_MASK, ATTN_MASK, part != 1,
                BIAS, POWER, STATS, FACTOR, FORGET, DBIAS, IN_LOOP, DFADED and DQ, DQ, PRECISION,
            )  # fmt: skip
        if DFADED:
            if not IN_LOOP:
                before = k_dot_dk
                k_dot_dk = tl.sum(dk_acc * k.to(tl.float32), 1)
                dlog = k_dot_dk - before
            tl.store(gates_of(dlog_keys, batch, head, heads, m) + j, dlog, mask=j < m)
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
    dq32, dq, q, dgamma_parts, dlog_rows, gamma, blocks, heads, n, d, dq_rows, dq_width, uniform,
    dq_stride_b, dq_stride_h, dq_stride_n, q_stride_b, q_stride_h, q_stride_n,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, GAMMA: tl.constexpr, POWER: tl.constexpr, UNIFORM: tl.constexpr,
    DGAMMA: tl.constexpr, DFADED: tl.constexpr, PERMUTED: tl.constexpr,
):  # fmt: skip
    """Round the float32 sums of the queries' gradients to their dtype; derive those of gamma and gates from them."""
    block, head, batch = where_am_i(blocks, heads)
    wide_batch, wide_head = batch.to(tl.int64), head.to(tl.int64)
    i = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = (i < n) & (columns < d)
    value = tl.load(dq32 + ((wide_batch * heads + head) * dq_rows + i) * dq_width + columns, mask=inside, other=0.0)
    if PERMUTED:  # hopper/backward.py stores columns eight apart side by side: in each 16, index bits 2 1 | 3 | 0
        value = value.reshape(BLOCK_M, BLOCK_D // 16, 4, 2, 2).permute(0, 1, 3, 2, 4).reshape(BLOCK_M, BLOCK_D)
    if UNIFORM:
        value *= over_gamma(uniform, gamma, head, GAMMA)
    rows_dq = dq + wide_batch * dq_stride_b + wide_head * dq_stride_h + i * dq_stride_n + columns
    tl.store(rows_dq, round_to(value, dq.dtype.element_ty), mask=inside)
    if DGAMMA or DFADED:
        rows_q = q + wide_batch * q_stride_b + wide_head * q_stride_h + i * q_stride_n + columns
        dlog = tl.sum(tl.load(rows_q, mask=inside, other=0.0).to(tl.float32) * value, 1, keep_dims=True)
        if DFADED:
            tl.store(dlog_rows + (wide_batch * heads + head) * n + i, dlog, mask=i < n)
        if DGAMMA:
            share = gamma_share(tl.sum(dlog), gamma, head, POWER)
            tl.store(dgamma_parts + (batch * heads + head) * blocks + block, share)
