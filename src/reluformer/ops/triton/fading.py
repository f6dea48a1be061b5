"""The forget gate in the kernels: weights that fade by ``exp(c_i - c_j)`` from key ``j`` to the query at ``i``.

ReLU is positively homogeneous, so where all keys of a tile are older than all its queries, no score needs a decay of
its own. With ``e`` the last key of the tile and ``s`` its first query

    exp(c_i - c_j) = exp(c_i - c_s) * exp(c_s - c_e) * exp(c_e - c_j)

and every factor is at most 1: one per query, one per tile, one per key. The factors of a tile's rows are combined with
that of the tile. Those of its columns are multiplied into the other operand of the product before the kernel starts:
into the values in the forward pass, into the gradient of the output in the backward pass, whose tiles are transposed.
Only tiles at the edge of the band take an exponential per score, and so do statistics, whose logarithms need single
weights.

The sums ``c`` are float64 and never rise from key to key, so the forgotten keys are a prefix, and loops start after it.
"""

import triton
import triton.language as tl

from reluformer.ops.forgetting import FAINTEST as _FAINTEST
from reluformer.ops.triton.common import LENGTHS, round_to, where_am_i

FAINTEST = tl.constexpr(_FAINTEST)


@triton.jit
def gates_of(c, batch, head, heads, m):
    """Where the sums of one head of one sequence begin."""
    return c + (batch * heads + head).to(tl.int64) * m


@triton.jit
def first_below(c, level, low, high, STEP: tl.constexpr):
    """The first block in ``low ... high - 1`` with ``c[block * STEP] <= level``, or ``high`` if there is none."""
    while low < high:
        middle = (low + high) // 2
        below = tl.load(c + middle * STEP) <= level
        low = tl.where(below, low, middle + 1)
        high = tl.where(below, middle, high)
    return low


@triton.jit
def first_key(c, position, BLOCK_N: tl.constexpr):
    """The start of the first block of keys that the query at ``position`` has not wholly forgotten."""
    level = tl.load(c + position) - FAINTEST
    return first_below(c + BLOCK_N - 1, level, position * 0, position // BLOCK_N, BLOCK_N) * BLOCK_N


@triton.jit
def stop_query(c, key, offset, n, BLOCK_M: tl.constexpr):
    """The end of the last block of queries that have not all forgotten ``key``."""
    level = tl.load(c + key) + FAINTEST
    later = tl.maximum(key - offset + BLOCK_M, 0) // BLOCK_M  # the first block whose queries all come after the key
    return first_below(c + offset, level, later, tl.cdiv(n, BLOCK_M), BLOCK_M) * BLOCK_M


@triton.jit
def narrowed(bounds, start, stop):
    """The segments of a loop, cut to the blocks between ``start`` and ``stop``."""
    first = tl.minimum(tl.maximum(bounds[0], start), bounds[3])
    last = tl.maximum(tl.minimum(bounds[3], stop), first)
    plain = tl.minimum(tl.maximum(bounds[1], first), last)
    return first, plain, tl.minimum(tl.maximum(bounds[2], plain), last), last


@triton.jit
def since(c_i, c_j):
    """``c_i - c_j`` as float32: the logarithm of the decay from ``j`` to ``i``."""
    return (c_i - c_j).to(tl.float32)


@triton.jit
def at_queries(c, i, offset, m):
    """``c`` at the positions of the queries, which are clamped to those of the keys."""
    return tl.load(c + tl.minimum(tl.maximum(i + offset, 0), m - 1))


@triton.jit
def fading(c_i, c_j, c_between, dtype: tl.constexpr):
    """``c_i - c_j`` of a tile, clamped to at most 0, since hidden keys may be later than the query.

    For operands in half precision it is the sum of two float32 differences from a nearby time, to save registers.
    """
    if dtype == tl.float32:
        return tl.minimum(since(c_i, c_j), 0.0)
    return tl.minimum(since(c_i, c_between) + since(c_between, c_j), 0.0)


@triton.jit
def remaining(faded):
    """The decay ``exp(faded)`` of weights; 0 for those that are forgotten."""
    return tl.where(faded < FAINTEST, 0.0, tl.exp(faded))


@triton.jit(do_not_specialize=LENGTHS)
def fade_kernel(
    v, c, faded_v, blocks, heads, groups, m, d, v_stride_b, v_stride_h, v_stride_n,
    faded_stride_b, faded_stride_h, faded_stride_n, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Write the values, faded to the last key of their block, for each query head."""
    block, head, batch = where_am_i(blocks, heads)
    j = block * BLOCK_N + tl.arange(0, BLOCK_N)
    c = gates_of(c, batch, head, heads, m)
    end = tl.load(c + tl.minimum(block * BLOCK_N + BLOCK_N, m) - 1)
    factor = tl.exp(since(end, tl.load(c + j, mask=j < m, other=0.0)))
    columns = tl.arange(0, BLOCK_D)[None, :]
    inside = (j[:, None] < m) & (columns < d)
    batch, head, at = batch.to(tl.int64), head.to(tl.int64), j.to(tl.int64)[:, None]
    rows = v + batch * v_stride_b + head // groups * v_stride_h + at * v_stride_n
    value = tl.load(rows + columns, mask=inside, other=0.0).to(tl.float32) * factor[:, None]
    target = faded_v + batch * faded_stride_b + head * faded_stride_h + at * faded_stride_n
    tl.store(target + columns, round_to(value, faded_v.dtype.element_ty), mask=inside)
