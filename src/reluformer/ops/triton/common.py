"""What the kernels share: visibility, the rectifier, the factor of a row, the statistics.

Kernels work on ``x = q.k + bias / scale``: the positive scale is applied later, by ``relu(scale * x) = scale *
relu(x)``. Tiles may be transposed, so positions come as ``i`` (queries) and ``j`` (keys), shaped to broadcast against
the tile.
"""

import triton
import triton.language as tl
from triton.knobs import runtime

from reluformer.ops.statistics import TINY as _TINY

TINY = tl.constexpr(_TINY)
INTERPRETED = tl.constexpr(runtime.interpret)  # the interpreter knows neither inline assembly nor TMA reductions
LN2 = tl.constexpr(0.6931471805599453)
BOOL_MASK = tl.constexpr(1)
FLOAT_MASK = tl.constexpr(2)

# Arguments that change with the length. Triton would recompile a kernel, in the middle of a training run, whenever one
# of them becomes or ceases to be 1 or a multiple of 16; all it would gain are wider accesses to single rows.
LENGTHS = (
    "blocks", "n", "m", "parts", "chunk", "line_stride", "dq_rows",
    "key_mask_stride_b", "count_stride_b", "count_stride_h",
)  # fmt: skip


@triton.jit
def sequence(cu_q, cu_k, n, m, index, VARLEN: tl.constexpr):
    """The place of sequence ``index``: (batch, first query, first key, number of queries, number of keys)."""
    if VARLEN:
        q_start = tl.load(cu_q + index)
        k_start = tl.load(cu_k + index)
        return index * 0, q_start, k_start, tl.load(cu_q + index + 1) - q_start, tl.load(cu_k + index + 1) - k_start
    return index, index * 0, index * 0, n, m


@triton.jit
def where_am_i(blocks, heads):
    """This program's (block, head, sequence); blocks vary fastest, so programs that share keys run side by side."""
    pid = tl.program_id(0)
    return pid % blocks, pid // blocks % heads, pid // blocks // heads


@triton.jit
def segments(first, last, size, back, ahead, BLOCK: tl.constexpr, BACK: tl.constexpr, AHEAD: tl.constexpr,
             MASKED: tl.constexpr):  # fmt: skip
    """The range of positions, out of ``size``, that the positions ``first ... last`` meet, in blocks of ``BLOCK``.

    A position ``p`` meets ``p - back ... p + ahead``. Returns (start, plain, plain_stop, stop): every position meets
    the blocks in ``plain:plain_stop`` whole, so they need no mask, unlike those before and after. With ``MASKED`` every
    block needs one.
    """
    start = 0
    stop = size
    plain = 0
    plain_stop = size
    if BACK:
        start = tl.maximum(first - back, 0) // BLOCK * BLOCK
        plain = tl.cdiv(tl.maximum(last - back, 0), BLOCK) * BLOCK
    if AHEAD:
        stop = tl.minimum(tl.maximum(last + ahead + 1, 0), size)
        plain_stop = tl.minimum(tl.maximum(first + ahead + 1, 0), size)
    if MASKED:
        return start, start, start, stop
    plain = tl.minimum(plain, tl.maximum(start, stop))
    return start, plain, tl.maximum(plain, plain_stop // BLOCK * BLOCK), stop


@triton.jit
def hide(x, i, j, offset, n, m, left, right, key_mask, attn_mask, stride_i, stride_j, inverse_scale,
         LEFT: tl.constexpr, RIGHT: tl.constexpr, KEY_MASK: tl.constexpr, ATTN_MASK: tl.constexpr):  # fmt: skip
    """Add a float mask to the scores and set those of hidden pairs to zero, where the rectifier gives no weight."""
    seen = (i < n) & (j < m)
    if ATTN_MASK:
        mask = tl.load(attn_mask + i.to(tl.int64) * stride_i + j.to(tl.int64) * stride_j, mask=seen, other=0)
        if ATTN_MASK == FLOAT_MASK:
            x += mask.to(tl.float32) * inverse_scale
        else:
            seen = seen & (mask != 0)
    if LEFT:
        seen = seen & (j >= i + offset - left)
    if RIGHT:
        seen = seen & (j <= i + offset + right)
    if KEY_MASK:
        seen = seen & (tl.load(key_mask + j, mask=j < m, other=0) != 0)
    return tl.where(seen, x, 0.0)


@triton.jit
def row_factor(i, count, offset, n, m, left, right, alpha, inverse_gamma,
               COUNT: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr):  # fmt: skip
    """``1 / (gamma * (n_i / 2) ** alpha)`` of the queries ``i``, where a row without keys counts as having one."""
    if COUNT:
        keys = tl.load(count + i, mask=i < n, other=1.0)
    else:
        start = i * 0
        stop = start + m
        if LEFT:
            start = tl.maximum(i + offset - left, 0)
        if RIGHT:
            stop = tl.minimum(i + offset + right + 1, m)
        keys = (stop - start).to(tl.float32)
    return inverse_gamma * tl.exp2(-alpha * tl.log2(tl.maximum(keys, 1.0) * 0.5))


@triton.jit
def over_gamma(value, gamma, head, GAMMA: tl.constexpr):
    """``value / gamma`` if each head has its own gamma, else ``value``."""
    if GAMMA:
        return value / tl.load(gamma + head).to(tl.float32)
    return value


@triton.jit
def product(a, b, PRECISION: tl.constexpr, acc=None):
    """Matrix product, accumulated in float32."""
    if INTERPRETED:  # numpy has no bfloat16: the interpreter would multiply the bits as integers
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """Cast float32 to the nearest number of ``dtype``."""
    if INTERPRETED:
        if dtype == tl.bfloat16:  # the interpreter truncates where a GPU rounds to nearest even
            bits = x.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
            x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def log2(x):
    """Base-2 logarithm of positive numbers, in one instruction."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def raised(u, POWER: tl.constexpr):
    """``u ** POWER`` by repeated squaring, for the powers 1, 2, 4 and 8."""
    if POWER >= 2:
        u = u * u
    if POWER >= 4:
        u = u * u
    if POWER == 8:
        u = u * u
    return u


@triton.jit
def rectify(x, factor, dtype: tl.constexpr, POWER: tl.constexpr, FACTOR: tl.constexpr):
    """``relu(x) ** POWER``, times ``factor`` if ``FACTOR``, as an operand of the next product."""
    if POWER == 1 and dtype == tl.bfloat16 and not INTERPRETED:
        if FACTOR:
            x = x * factor
        # One instruction rectifies, rounds and packs two scores.
        return tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    u = raised(tl.maximum(x, 0.0), POWER)
    if FACTOR:
        u = u * factor
    return round_to(u, dtype)


@triton.jit
def fold(x, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Sum columns that are eight apart: one thread holds them all in a product's result, so nothing is exchanged."""
    return tl.sum(tl.reshape(x, (ROWS, COLS // 8, 8)), 1)


@triton.jit
def add_stats(total, r_log_r, active, x, faded, rest, ROWS: tl.constexpr, COLS: tl.constexpr, POWER: tl.constexpr,
              FORGET: tl.constexpr):  # fmt: skip
    """Add a tile of scores to the sums of ``u``, ``u log2 relu(x)`` and ``x > 0``, with ``u = relu(x) ** POWER``.

    With ``FORGET``, ``u = relu(x) ** POWER * rest`` and the logarithm is that of ``u ** (1 / POWER)``.
    """
    safe = tl.maximum(x, TINY)  # keeps logarithms finite
    u = raised(safe, POWER)
    log2_root = log2(safe)
    seen = x > 0
    if FORGET:
        u = u * rest
        log2_root += faded * (1.0 / (LN2 * POWER))
        seen = seen & (rest > 0)
    total += fold(u, ROWS, COLS)
    r_log_r += fold(u * log2_root, ROWS, COLS)
    active += fold(tl.where(seen, 1.0, 0.0), ROWS, COLS)
    return total, r_log_r, active


@triton.jit
def finish_stats(total, r_log_r, keys, factor, scale, where, live, mass, entropy, active, POWER: tl.constexpr):
    """Write the statistics of rows, computed from the sums of ``add_stats``.

    The entropy does not depend on the scale of a row, so ``u`` serves as well as the weights.
    """
    unit = raised(scale, POWER)
    total = tl.where(keys > 0, total, 0.0)  # scores without weight left a trace of TINY
    alive = total * unit > TINY
    safe = tl.where(alive, total, 1.0)
    nats = LN2 * (tl.log2(safe) - POWER * r_log_r / safe)
    tl.store(mass + where, total * factor, mask=live)
    tl.store(entropy + where, tl.where(alive & (keys > 1), nats, 0.0), mask=live)  # exactly 0 for a single key
    tl.store(active + where, keys, mask=live)
