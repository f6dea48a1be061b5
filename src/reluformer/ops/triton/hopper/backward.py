"""Backward pass: two warpgroups for the gradients of keys and values, a third for those of the queries.

One program owns a block of keys and visits blocks of queries, as in ``../backward.py``; names and maths are the same.
Each visit takes five products. The first two warpgroups, with half of the keys each, do four of them:

    in flight                  meanwhile
    dp = v dout^T, dv += u dout   nothing: the gate waits for dp
    dv, next x = k q^T         round dx and hand it over through shared memory
    next x, dk += dx q         ask for later queries

They run in step or, as two ``SIDES`` without a common barrier, out of step, so that one computes its logarithms while
the other multiplies; kernel-variants-h200.csv shows which is faster. The third warpgroup takes each ``dx``, computes
``dq = dx^T k`` and adds it to memory: with this off the critical path, the other four products run close to the limit
of the tensor cores. It has few registers, so it computes 64 columns of ``dq`` at a time.

Unless three conditions hold, ptxas serialises all products of a loop: a product whose result is read by ordinary
instructions is waited for in the iteration that began it, nothing is zeroed while a product is in flight, and there are
enough registers. Hence ``x``, ``dp`` and the next ``x`` take turns in the same registers. A product names them as its
accumulator and is told not to add to it by a condition that is never true, but that the compiler cannot see through.

``dq`` is added to float32 scratch with ``red.v4``. A thread holds pairs of columns that are eight apart, so the scratch
keeps its columns in an order that puts two such pairs side by side; ``finish_kernel`` restores their order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from reluformer.ops.triton.common import LENGTHS
from reluformer.ops.triton.hopper.common import clamp, log2, thread_barrier, weigh

BLOCK_M = 64
BLOCK_N = 128
STAGES = 3


def sides(d: int, causal: bool, stats: bool, power: int) -> int:
    """The faster number of sides: 1 if the first two warpgroups run in step, 2 if out of step."""
    return 2 if stats or (d == 128 and (causal or power > 1)) else 1


WARPS = gl.constexpr(8)  # of the first two warpgroups
WORKER_WARPS = gl.constexpr(4)

PIECE = gl.constexpr(64)  # columns of dq computed at a time
CHUNK = gl.constexpr(8)  # heads whose programs are interleaved when causal

_REDUCE = """{{
    .reg .u64 address;
    .reg .u32 chunk;
    and.b32 chunk, $10, 0xff;
    mad.wide.u32 address, chunk, 64, $2;
    red.global.add.v4.f32 [address], {{$12, $13, $16, $17}};
    red.global.add.v4.f32 [address + {eight_rows}], {{$14, $15, $18, $19}};
    mov.u32 $0, 0;
    mov.u32 $1, 0;
}}"""
REDUCE_64 = gl.constexpr(_REDUCE.format(eight_rows=8 * 64 * 4))
REDUCE_128 = gl.constexpr(_REDUCE.format(eight_rows=8 * 128 * 4))


@gluon.jit
def gate(u, dp):
    """``dp`` as bfloat16 where the rectified score ``u`` is positive, else 0.

    It works on packed pairs: adding 0x7fff to a non-negative number sets its top bit unless the number is zero, and
    ``prmt`` spreads that bit into a mask. The scores themselves, twice as wide, need not be kept.
    """
    return gl.inline_asm_elementwise(
        """{
            .reg .b32 mask;
            add.u32 mask, $1, 0x7fff7fff;
            prmt.b32 mask, mask, mask, 0xbb99;
            cvt.rn.bf16x2.f32 $0, $3, $2;
            and.b32 $0, $0, mask;
        }""",
        "=r,r,r,r",
        [u, dp],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


_SLOPE = """{{
    .reg .f32 r, s, square;
    max.f32 r, $1, 0f00000000;
    max.f32 s, $2, 0f00000000;
    {raise_r}
    {raise_s}
    cvt.rn.bf16x2.f32 $0, s, r;
}}"""
SLOPE_2 = gl.constexpr(_SLOPE.format(raise_r="add.f32 r, r, r;", raise_s="add.f32 s, s, s;"))
_CUBE = "mul.f32 square, {0}, {0}; mul.f32 square, square, 0f40800000; mul.f32 {0}, {0}, square;"
SLOPE_4 = gl.constexpr(_SLOPE.format(raise_r=_CUBE.format("r"), raise_s=_CUBE.format("s")))
_SEVENTH = (
    "mul.f32 square, {0}, {0}; mul.f32 {0}, {0}, square; mul.f32 square, square, square; "
    "mul.f32 square, square, 0f41000000; mul.f32 {0}, {0}, square;"
)
SLOPE_8 = gl.constexpr(_SLOPE.format(raise_r=_SEVENTH.format("r"), raise_s=_SEVENTH.format("s")))


@gluon.jit
def slope_of(x, POWER: gl.constexpr):
    """The derivative of ``relu(x) ** POWER`` as bfloat16, for powers above 1; marked impure, as ``clamp`` is."""
    code: gl.constexpr = SLOPE_2 if POWER == 2 else SLOPE_4 if POWER == 4 else SLOPE_8
    return gl.inline_asm_elementwise(code, "=r,r,r", [x], dtype=gl.bfloat16, is_pure=False, pack=2)


@gluon.jit
def times(slope, dp):
    """``slope * dp`` as bfloat16."""
    return gl.inline_asm_elementwise(
        """{
            .reg .b32 low, high;
            .reg .f32 a, b;
            shl.b32 low, $1, 16;
            and.b32 high, $1, 0xffff0000;
            mov.b32 a, low;
            mov.b32 b, high;
            mul.f32 a, a, $2;
            mul.f32 b, b, $3;
            cvt.rn.bf16x2.f32 $0, b, a;
        }""",
        "=r,r,r,r",
        [slope, dp],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def reduce_add(address, chunk, value, D: gl.constexpr):
    """Add a tile of ``dq`` to memory, four neighbours at a time; see the module's docstring for their order."""
    gl.inline_asm_elementwise(
        REDUCE_64 if D == 64 else REDUCE_128,
        "=r,=r,l,l,l,l,l,l,l,l,r,r,r,r,r,r,r,r,r,r",
        [address, chunk, value],
        dtype=gl.int8,
        is_pure=False,
        pack=8,
    )


@gluon.jit
def fetch(
    q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready, visit, batch, head, heads, row, n,
    STAGES: gl.constexpr, STATS: gl.constexpr,
):  # fmt: skip
    """Start to load the queries, gradients and statistics of a visit; ``ready`` tells when they have arrived."""
    slot = visit % STAGES
    wanted = row < n
    barrier = ready.index(slot)
    BYTES: gl.constexpr = q_desc.block_type.nbytes + dout_desc.block_type.nbytes
    STATS_BYTES: gl.constexpr = lines_desc.block_type.nbytes if STATS else 0
    mbarrier.expect(barrier, BYTES + STATS_BYTES, wanted)
    tma.async_copy_global_to_shared(q_desc, [batch, head, row, 0], barrier, q_smem.index(slot), wanted)
    tma.async_copy_global_to_shared(dout_desc, [batch, head, row, 0], barrier, dout_smem.index(slot), wanted)
    if STATS:
        line = batch * heads + head
        tma.async_copy_global_to_shared(lines_desc, [line, 0, row], barrier, lines_smem.index(slot), wanted)


@gluon.jit
def visit_queries(
    q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
    ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start,
    v_smem, dk_desc, dv_desc, dgamma_parts, gamma, first, ahead, part, uniform,
    BLOCK_M: gl.constexpr, KEYS: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
    SIDES: gl.constexpr, RIGHT: gl.constexpr, STATS: gl.constexpr,
    GAMMA: gl.constexpr, POWER: gl.constexpr, UNIFORM: gl.constexpr, DGAMMA: gl.constexpr, SIDE: gl.constexpr,
):  # fmt: skip
    """The first two warpgroups, or one of them: compute the gradients of keys and values, hand over each ``dx``."""
    x_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS // SIDES, 1], [16, BLOCK_M, 16])  # keys x queries
    dk_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS // SIDES, 1], [16, D, 16])  # keys x D
    operand: gl.constexpr = gl.DotOperandLayout(0, dk_mma, 2)
    dtype: gl.constexpr = q_smem.dtype
    ASKS: gl.constexpr = SIDES == 1 and not STATS  # load queries here; else the third warpgroup has more time for it
    mine = first + SIDE * KEYS
    plain = mine + KEYS - 1 - ahead  # from this query on, every query sees all these keys
    k, v = k_smem.index(SIDE), v_smem.index(SIDE)
    no_x = gl.zeros([KEYS, BLOCK_M], gl.float32, x_mma)
    dk = gl.zeros([KEYS, D], gl.float32, dk_mma)
    dv = gl.zeros([KEYS, D], gl.float32, dk_mma)
    i = ahead + gl.arange(0, BLOCK_M, gl.SliceLayout(0, x_mma))
    j = mine + gl.arange(0, KEYS, gl.SliceLayout(1, x_mma))
    lines = lines_smem._reinterpret(gl.float32, [STAGES * 2, BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [0]))

    never = n < 0
    visit = 0
    mbarrier.wait(keys_ready, 0)
    for head in range(key_head * groups, key_head * groups + groups):
        if start < n:
            if ASKS:
                for early in gl.static_range(STAGES):
                    fetch(
                        q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready,
                        visit + early, batch, head, heads, start + early * BLOCK_M, n, STAGES, STATS,
                    )  # fmt: skip
            mbarrier.wait(ready.index(visit % STAGES), visit // STAGES & 1)
            x = warpgroup_mma(k, q_smem.index(visit % STAGES).permute((1, 0)), no_x, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(0, [x])
            dk = warpgroup_mma_init(dk)
            for row in range(start, n, BLOCK_M):
                slot = visit % STAGES
                dout = dout_smem.index(slot)
                if RIGHT:
                    if row < plain:
                        x = gl.where(j[:, None] <= i[None, :] + row, x, 0.0)
                u = weigh(x, POWER)
                if POWER > 1:
                    du = slope_of(x, POWER)
                if STATS:  # whether dv or dp first is faster depends on D, see kernel-variants-h200.csv
                    r = clamp(x)
                    if D == 64:
                        dv = warpgroup_mma(gl.convert_layout(u, operand), dout, dv, is_async=True)
                    slope = lines.index(slot * 2).load(gl.SliceLayout(0, x_mma))
                    bend = lines.index(slot * 2 + 1).load(gl.SliceLayout(0, x_mma))
                    lift = slope[None, :] - bend[None, :] * log2(r)
                    dp = warpgroup_mma(v, dout.permute((1, 0)), lift, is_async=True)
                    if D == 64:
                        dk, dp, dv = warpgroup_mma_wait(0, [dk, dp, dv])
                    else:
                        dv = warpgroup_mma(gl.convert_layout(u, operand), dout, dv, is_async=True)
                        dk, dp = warpgroup_mma_wait(1, [dk, dp])
                else:
                    dp = warpgroup_mma(v, dout.permute((1, 0)), x, use_acc=never, is_async=True)
                    dv = warpgroup_mma(gl.convert_layout(u, operand), dout, dv, is_async=True)
                    dk, dp = warpgroup_mma_wait(1, [dk, dp])
                if POWER > 1:
                    dx = times(du, dp)
                else:
                    dx = gate(u, dp)
                handed = visit % 2 * SIDES + SIDE
                dx_now = dx_smem.index(handed)
                next_q = q_smem.index((visit + 1) % STAGES).permute((1, 0))
                if D == 64:
                    mbarrier.wait(ready.index((visit + 1) % STAGES), (visit + 1) // STAGES & 1, row + BLOCK_M < n)
                    x = warpgroup_mma(k, next_q, dp, use_acc=never, is_async=True)
                mbarrier.wait(dx_free.index(visit % 2), visit // 2 & 1 ^ 1)
                dx_now.store(dx)
                fence_async_shared()
                if D == 128:  # no registers for the next scores before dx is stored, nor for dx itself after that
                    mbarrier.wait(ready.index((visit + 1) % STAGES), (visit + 1) // STAGES & 1, row + BLOCK_M < n)
                    x = warpgroup_mma(k, next_q, dp, use_acc=never, is_async=True)
                mbarrier.arrive(dx_ready.index(handed), count=1)
                if D == 128 or SIDES == 2:
                    dk = warpgroup_mma(dx_now, q_smem.index(slot), dk, is_async=True)
                else:
                    dk = warpgroup_mma(gl.convert_layout(dx, operand), q_smem.index(slot), dk, is_async=True)
                if ASKS:
                    if row > start:  # all warps are past the products of the last visit: its slot is free
                        fetch(
                            q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready,
                            visit - 1 + STAGES, batch, head, heads, row + (STAGES - 1) * BLOCK_M, n, STAGES, STATS,
                        )  # fmt: skip
                dv, x = warpgroup_mma_wait(1, [dv, x])
                visit += 1
            dk = warpgroup_mma_wait(0, [dk])
            if ASKS:
                thread_barrier()
            else:
                mbarrier.arrive(head_done, count=1)

    if UNIFORM:  # a factor of the whole head is applied only here
        factor = uniform
        if GAMMA:
            factor = uniform / gl.load(gamma + key_head * groups).to(gl.float32)
        dk *= factor
        dv *= factor
    if DGAMMA:  # the sum of k.dk equals that of q.dq, and k and dk are at hand; see gamma_share in ../backward.py
        dlog = gl.sum(gl.sum(k.load(dk_mma).to(gl.float32) * dk, 1), 0)
        gl.store(dgamma_parts + part * SIDES + SIDE, -dlog / (POWER * gl.load(gamma + key_head).to(gl.float32)))
    if visit > 0:  # the third warpgroup has read the keys for the last time
        mbarrier.wait(dx_free.index((visit - 1) % 2), (visit - 1) // 2 & 1)
    thread_barrier()
    k.store(dk.to(dtype))
    v.store(dv.to(dtype))
    fence_async_shared()
    thread_barrier()
    tma.async_copy_shared_to_global(dk_desc, [batch, key_head, mine, 0], k)
    tma.async_copy_shared_to_global(dv_desc, [batch, key_head, mine, 0], v)
    tma.store_wait(0)


@gluon.jit
def add_to_queries(
    q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
    ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start, dq,
    BLOCK_M: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, STATS: gl.constexpr,
):  # fmt: skip
    """The third warpgroup: load queries, unless the others do, and add ``dx^T k`` of every visit to memory."""
    ASKS: gl.constexpr = SIDES == 2 or STATS
    dq_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WORKER_WARPS, 1], [16, PIECE, 16])
    no_dq = gl.zeros([BLOCK_M, PIECE], gl.float32, dq_mma)
    # The place of a thread's part of dq: an address that all its registers share, and the chunk of 16 columns.
    row_dq = gl.arange(0, BLOCK_M, gl.SliceLayout(1, dq_mma))
    column = gl.arange(0, PIECE, gl.SliceLayout(0, dq_mma))
    mine = (row_dq & (BLOCK_M - 1 - 8))[:, None] * D + ((column & 6) * 2)[None, :]
    chunk = (gl.zeros([BLOCK_M, PIECE], gl.int32, dq_mma) + (column >> 4)[None, :]).to(gl.int8)
    rows = gl.cdiv(n, BLOCK_M) * BLOCK_M  # the scratch consists of whole blocks, so no mask is needed

    never = n < 0
    visit = 0
    heads_done = 0
    for head in range(key_head * groups, key_head * groups + groups):
        if ASKS:
            if start < n:
                if heads_done > 0:
                    mbarrier.wait(head_done, heads_done - 1 & 1)
                for early in gl.static_range(STAGES):
                    fetch(
                        q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready,
                        visit + early, batch, head, heads, start + early * BLOCK_M, n, STAGES, STATS,
                    )  # fmt: skip
                heads_done += 1
        base = dq + (batch * heads + head).to(gl.int64) * rows * D + mine
        base = base.to(gl.int64, bitcast=True)
        mbarrier.wait(keys_ready, 0)
        for row in range(start, n, BLOCK_M):
            here = base + row * (D * 4)
            buffer = visit % 2 * SIDES
            for side in gl.static_range(SIDES):
                mbarrier.wait(dx_ready.index(buffer + side), visit // 2 & 1)
            part = no_dq
            for side in gl.static_range(SIDES):
                dx, k = dx_smem.index(buffer + side).permute((1, 0)), k_smem.index(side).slice(0, PIECE, 1)
                part = warpgroup_mma(dx, k, part, use_acc=side > 0, is_async=True)
            if ASKS:
                if row > start:  # the others are past the products of the last visit: its slot is free
                    fetch(
                        q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready,
                        visit - 1 + STAGES, batch, head, heads, row + (STAGES - 1) * BLOCK_M, n, STAGES, STATS,
                    )  # fmt: skip
            for piece in gl.static_range(1, D // PIECE):
                part = warpgroup_mma_wait(0, [part])
                reduce_add(here, chunk, part, D)
                here += PIECE * 4
                for side in gl.static_range(SIDES):
                    dx = dx_smem.index(buffer + side).permute((1, 0))
                    k = k_smem.index(side).slice(piece * PIECE, PIECE, 1)
                    if side == 0:
                        part = warpgroup_mma(dx, k, part, use_acc=never, is_async=True)
                    else:
                        part = warpgroup_mma(dx, k, part, is_async=True)
            part = warpgroup_mma_wait(0, [part])
            mbarrier.arrive(dx_free.index(visit % 2), count=1)
            reduce_add(here, chunk, part, D)
            visit += 1


@gluon.jit(do_not_specialize=LENGTHS)
def hopper_key_kernel(
    q_desc, k_desc, v_desc, dout_desc, lines_desc, dk_desc, dv_desc, dq, dgamma_parts, gamma,
    blocks, heads, groups, n, m, right, uniform,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr,
    RIGHT: gl.constexpr, STATS: gl.constexpr, GAMMA: gl.constexpr, POWER: gl.constexpr, UNIFORM: gl.constexpr,
    DGAMMA: gl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values, and its part of the queries' gradients."""
    dtype: gl.constexpr = q_desc.dtype
    KEYS: gl.constexpr = BLOCK_N // SIDES

    pid = gl.program_id(0)
    key_heads = heads // groups
    block = pid % blocks
    pair = pid // blocks  # of batch and key head
    if RIGHT:  # the longest columns of a few heads first: the last programs are short, and programs share caches
        chunk = pid // (blocks * CHUNK) * CHUNK
        size = gl.minimum(gl.num_programs(0) // blocks - chunk, CHUNK)
        block = pid % (blocks * CHUNK) // size
        pair = chunk + pid % (blocks * CHUNK) % size
    key_head = pair % key_heads
    batch = pair // key_heads
    first = block * BLOCK_N
    ahead = m - n + right  # query i sees the keys up to i + ahead
    start = 0
    if RIGHT:
        start = gl.maximum(first - ahead, 0) // BLOCK_M * BLOCK_M

    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, D], dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, D], dtype)
    dx_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, BLOCK_M], dtype)
    line_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    k_smem = gl.allocate_shared_memory(dtype, [SIDES, KEYS, D], k_layout)
    v_smem = gl.allocate_shared_memory(dtype, [SIDES, KEYS, D], k_layout)
    q_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, D], q_layout)
    dout_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, D], q_layout)
    dx_smem = gl.allocate_shared_memory(dtype, [2 * SIDES, KEYS, BLOCK_M], dx_layout)  # one is read, one written
    lines_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 2, BLOCK_M], line_layout)
    keys_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    dx_ready = gl.allocate_shared_memory(gl.int64, [2 * SIDES, 1], mbarrier.MBarrierLayout())
    dx_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    head_done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(keys_ready, count=1)
    mbarrier.init(head_done, count=SIDES)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    for buffer in gl.static_range(2):
        mbarrier.init(dx_free.index(buffer), count=1)
    for buffer in gl.static_range(2 * SIDES):
        mbarrier.init(dx_ready.index(buffer), count=1)
    fence_async_shared()
    thread_barrier()
    mbarrier.expect(keys_ready, SIDES * (k_desc.block_type.nbytes + v_desc.block_type.nbytes))
    for side in gl.static_range(SIDES):
        at = first + side * KEYS
        tma.async_copy_global_to_shared(k_desc, [batch, key_head, at, 0], keys_ready, k_smem.index(side))
        tma.async_copy_global_to_shared(v_desc, [batch, key_head, at, 0], keys_ready, v_smem.index(side))

    part = pair * blocks + block
    # Written out in full: Gluon unpacks no tuples, and a tuple in a variable loses its compile-time constants.
    if SIDES == 1:
        gl.warp_specialize(
            [
                (
                    visit_queries,
                    (
                        q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
                        ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start,
                        v_smem, dk_desc, dv_desc, dgamma_parts, gamma, first, ahead, part, uniform,
                        BLOCK_M, KEYS, D, STAGES, SIDES, RIGHT, STATS, GAMMA, POWER, UNIFORM, DGAMMA, 0,
                    ),
                ),
                (
                    add_to_queries,
                    (
                        q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
                        ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start,
                        dq, BLOCK_M, D, STAGES, SIDES, STATS,
                    ),
                ),
            ],
            [WORKER_WARPS],
            [72 if D == 64 else 88],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    visit_queries,
                    (
                        q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
                        ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start,
                        v_smem, dk_desc, dv_desc, dgamma_parts, gamma, first, ahead, part, uniform,
                        BLOCK_M, KEYS, D, STAGES, SIDES, RIGHT, STATS, GAMMA, POWER, UNIFORM, DGAMMA, 0,
                    ),
                ),
                (
                    visit_queries,
                    (
                        q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
                        ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start,
                        v_smem, dk_desc, dv_desc, dgamma_parts, gamma, first, ahead, part, uniform,
                        BLOCK_M, KEYS, D, STAGES, SIDES, RIGHT, STATS, GAMMA, POWER, UNIFORM, DGAMMA, 1,
                    ),
                ),
                (
                    add_to_queries,
                    (
                        q_desc, dout_desc, lines_desc, k_smem, q_smem, dout_smem, lines_smem, dx_smem,
                        ready, keys_ready, dx_ready, dx_free, head_done, batch, key_head, heads, groups, n, start,
                        dq, BLOCK_M, D, STAGES, SIDES, STATS,
                    ),
                ),
            ],
            [WARPS // 2, WORKER_WARPS],
            [208 if D == 64 else 216, 88 if D == 64 else 72],
        )  # fmt: skip
