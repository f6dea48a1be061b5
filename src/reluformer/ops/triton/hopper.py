"""The backward pass for Hopper GPUs, in Gluon: the schedule is written out, so that the tensor cores never wait.

One program owns a block of keys and visits blocks of queries, as in ``backward.py``; names and maths are the same. Per
visit there are five products, and each stretch of other work runs while products are in flight:

    in flight                  meanwhile
    dp = v dout^T              rectify the scores
    dv += u dout, next x       gate and round dx, hand it to the other warpgroup through shared memory
    dq = dx^T k, dk += dx q    ask for the next queries; add dq to memory

Products whose results ordinary instructions read (``dp``, ``dq``, the next scores) are waited for in the iteration that
began them: ptxas serialises all products of a loop that carries such a result, unfinished, over its back edge.

``dq`` is added to float32 scratch with ``red.v4``. A thread holds pairs of columns eight apart, so the scratch keeps
its columns in an order that puts two such pairs side by side; ``finish_kernel`` reads them back in order.
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

from reluformer.ops.statistics import TINY as _TINY

TINY = gl.constexpr(_TINY)
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # Triton 3.6, and since 3.7

BLOCK_M = 64
BLOCK_N = 128
STAGES = 3
WARPS = 8

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
def rectify(x):
    """``relu(x)`` as bfloat16: one instruction rectifies, rounds and packs two scores."""
    return gl.inline_asm_elementwise(
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def log2(x):
    """Base-2 logarithm of positive numbers, in one instruction."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def gate(u, dp):
    """``dp`` as bfloat16 where the rectified score ``u`` is positive, else 0.

    On packed pairs: adding 0x7fff to a non-negative number sets its top bit unless it is zero, and ``prmt`` spreads
    that bit into a mask. The scores themselves, twice as wide, need not be kept.
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
    """Ask for the queries, gradients and statistics of a visit; ``ready`` tells when they are there."""
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
def hopper_key_kernel(
    q_desc, k_desc, v_desc, dout_desc, lines_desc, dk_desc, dv_desc, dq, gamma,
    blocks, heads, groups, n, m, right, uniform,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr,
    RIGHT: gl.constexpr, STATS: gl.constexpr, GAMMA: gl.constexpr, UNIFORM: gl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values, and its part of the queries' gradients."""
    WARPS: gl.constexpr = gl.num_warps()
    x_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK_M, 16])  # keys x queries
    dk_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, D, 16])  # keys x D
    ROW_WARPS: gl.constexpr = BLOCK_M // 16
    COLUMNS: gl.constexpr = D * ROW_WARPS // WARPS  # each warpgroup has all rows of dq and a share of its columns
    dq_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [ROW_WARPS, WARPS // ROW_WARPS], [16, COLUMNS, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, dk_mma, 2)
    dtype: gl.constexpr = q_desc.dtype

    pid = gl.program_id(0)
    key_heads = heads // groups
    key_head = pid // blocks % key_heads
    batch = pid // blocks // key_heads
    first = pid % blocks * BLOCK_N
    offset = m - n
    start = 0
    plain = 0
    if RIGHT:
        start = gl.maximum(first - offset - right, 0) // BLOCK_M * BLOCK_M
        plain = first + BLOCK_N - 1 - offset - right  # from this query on, all see the whole block

    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, D], dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    dx_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, BLOCK_M], dtype)
    line_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2)
    k_smem = gl.allocate_shared_memory(dtype, [BLOCK_N, D], k_layout)
    v_smem = gl.allocate_shared_memory(dtype, [BLOCK_N, D], k_layout)
    q_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, D], q_layout)
    dout_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, D], q_layout)
    dx_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_N, BLOCK_M], dx_layout)  # one is read while one is written
    lines_smem = gl.allocate_shared_memory(gl.float32, [STAGES, 2, BLOCK_M], line_layout)
    lines = lines_smem._reinterpret(gl.float32, [STAGES * 2, BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    keys_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(keys_ready, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()
    mbarrier.expect(keys_ready, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(k_desc, [batch, key_head, first, 0], keys_ready, k_smem)
    tma.async_copy_global_to_shared(v_desc, [batch, key_head, first, 0], keys_ready, v_smem)

    dk = gl.zeros([BLOCK_N, D], gl.float32, dk_mma)
    dv = gl.zeros([BLOCK_N, D], gl.float32, dk_mma)
    no_x = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, x_mma)
    no_dq = gl.zeros([BLOCK_M, D], gl.float32, dq_mma)
    i = gl.arange(0, BLOCK_M, gl.SliceLayout(0, x_mma))
    j = first + gl.arange(0, BLOCK_N, gl.SliceLayout(1, x_mma))
    # Where a thread's part of dq goes: an address that all its registers share, and the chunk of 16 columns.
    row_dq = gl.arange(0, BLOCK_M, gl.SliceLayout(1, dq_mma))
    column = gl.arange(0, D, gl.SliceLayout(0, dq_mma))
    mine = (row_dq & (BLOCK_M - 1 - 8))[:, None] * D + (((column & 6) * 2) | (column & (D - COLUMNS)))[None, :]
    chunk = (gl.zeros([BLOCK_M, D], gl.int32, dq_mma) + ((column & (COLUMNS - 1)) >> 4)[None, :]).to(gl.int8)
    rows = gl.cdiv(n, BLOCK_M) * BLOCK_M  # the scratch is whole blocks: no mask

    mbarrier.wait(keys_ready, 0)
    visit = 0
    for head in range(key_head * groups, key_head * groups + groups):
        if start < n:
            base = dq + (batch * heads + head).to(gl.int64) * rows * D + mine
            base = base.to(gl.int64, bitcast=True)
            for ahead in gl.static_range(STAGES):
                fetch(
                    q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready,
                    visit + ahead, batch, head, heads, start + ahead * BLOCK_M, n, STAGES, STATS,
                )  # fmt: skip
            mbarrier.wait(ready.index(visit % STAGES), visit // STAGES & 1)
            x = warpgroup_mma(k_smem, q_smem.index(visit % STAGES).permute((1, 0)), no_x, use_acc=False, is_async=True)
            x = warpgroup_mma_wait(0, [x])
            dk = warpgroup_mma_init(dk)
            for row in range(start, n, BLOCK_M):
                slot = visit % STAGES
                next_slot = (visit + 1) % STAGES
                dout = dout_smem.index(slot)
                dp = warpgroup_mma(v_smem, dout.permute((1, 0)), no_x, use_acc=False, is_async=True)
                if RIGHT:
                    if row < plain:
                        x = gl.where(j[:, None] <= i[None, :] + (row + offset + right), x, 0.0)
                u = rectify(x)
                dv = warpgroup_mma(gl.convert_layout(u, operand), dout, dv, is_async=True)
                if STATS:
                    slope = lines.index(slot * 2).load(gl.SliceLayout(0, x_mma))
                    bend = lines.index(slot * 2 + 1).load(gl.SliceLayout(0, x_mma))
                    lift = slope[None, :] - bend[None, :] * log2(gl.maximum(x, TINY))
                mbarrier.wait(ready.index(next_slot), (visit + 1) // STAGES & 1, row + BLOCK_M < n)
                x = warpgroup_mma(k_smem, q_smem.index(next_slot).permute((1, 0)), no_x, use_acc=False, is_async=True)
                dk, dp = warpgroup_mma_wait(2, [dk, dp])
                if STATS:
                    dp = dp + lift
                dx = gate(u, dp)
                dx_now = dx_smem.index(visit % 2)
                dx_now.store(dx)
                fence_async_shared()
                thread_barrier()
                part = warpgroup_mma(dx_now.permute((1, 0)), k_smem, no_dq, use_acc=False, is_async=True)
                dk = warpgroup_mma(gl.convert_layout(dx, operand), q_smem.index(slot), dk, is_async=True)
                if row > start:  # all warps are past the products of the last visit: its slot is free
                    fetch(
                        q_desc, dout_desc, lines_desc, q_smem, dout_smem, lines_smem, ready,
                        visit - 1 + STAGES, batch, head, heads, row + (STAGES - 1) * BLOCK_M, n, STAGES, STATS,
                    )  # fmt: skip
                if D == 128:
                    thread_barrier()  # measured: 5 to 8 % faster with the warpgroups in step; at D = 64 2 % slower
                part, dv, x = warpgroup_mma_wait(1, [part, dv, x])
                reduce_add(base + row * (D * 4), chunk, part, D)
                visit += 1
            dk = warpgroup_mma_wait(0, [dk])
            thread_barrier()

    if UNIFORM:  # one factor for the whole head waits until here
        factor = uniform
        if GAMMA:
            factor = uniform / gl.load(gamma + key_head * groups).to(gl.float32)
        dk *= factor
        dv *= factor
    k_smem.store(dk.to(dtype))
    v_smem.store(dv.to(dtype))
    fence_async_shared()
    thread_barrier()
    tma.async_copy_shared_to_global(dk_desc, [batch, key_head, first, 0], k_smem)
    tma.async_copy_shared_to_global(dv_desc, [batch, key_head, first, 0], v_smem)
    tma.store_wait(0)
