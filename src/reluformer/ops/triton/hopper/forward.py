"""Forward pass: the tensor cores work on the current values and the next keys while the statistics are summed.

One program owns a block of queries, as in ``../forward.py``; names and maths are the same. It is a single warpgroup:
two to four programs share a multiprocessor, and the products of one fill the gaps of the others. For each block of
keys:

    in flight                  meanwhile
    next x = q k^T, acc += u v    add the current scores to the statistics

Both products are waited for before the iteration ends: ``u`` is read from registers that the next one overwrites.
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
from reluformer.ops.triton.hopper.common import TINY, clamp, log2, raised, thread_barrier, weigh

BLOCK_M = 64
BLOCK_N = 64
KEY_STAGES = 2  # fewer than for values: keys are finished with one block earlier
VALUE_STAGES = 3
WARPS = 4
MOST_COUNTED = 2048 * BLOCK_N  # most keys that are counted exactly: the counts are in half precision

LN2 = gl.constexpr(0.6931471805599453)


@gluon.jit
def fold(x, ROWS: gl.constexpr, COLS: gl.constexpr):
    """Sum columns that are eight apart: one thread holds them all in a product's result, so nothing is exchanged."""
    return gl.sum(gl.reshape(x, (ROWS, COLS // 8, 8)), 1)


@gluon.jit
def count_active(count, u):
    """``count + (u > 0)`` on packed pairs; ``u`` may be compared as float16, since zero has the same bits there."""
    return gl.inline_asm_elementwise(
        """{
            .reg .b32 zero, active;
            mov.b32 zero, 0;
            set.gt.f16x2.f16x2 active, $2, zero;
            add.rn.f16x2 $0, $1, active;
        }""",
        "=r,r,r",
        [count, u],
        dtype=gl.float16,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    """The next slot of a ring buffer, and the phase of its barrier."""
    slot += 1
    if slot == STAGES:
        slot = 0
        phase ^= 1
    return slot, phase


@gluon.jit(do_not_specialize=LENGTHS)
def hopper_forward_kernel(
    q_desc, k_desc, v_desc, out_desc, mass, entropy, active_keys, gamma,
    blocks, heads, groups, n, m, right, divisor, alpha, scale,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, D: gl.constexpr,
    KEY_STAGES: gl.constexpr, VALUE_STAGES: gl.constexpr,
    RIGHT: gl.constexpr, STATS: gl.constexpr, COUNT: gl.constexpr, GAMMA: gl.constexpr, POWER: gl.constexpr,
):  # fmt: skip
    """Output and statistics of one block of queries of one head."""
    x_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_N, 16])
    acc_mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, acc_mma, 2)
    dtype: gl.constexpr = q_desc.dtype
    BYTES: gl.constexpr = k_desc.block_type.nbytes

    pid = gl.program_id(0)
    block = pid % blocks
    if RIGHT:
        block = blocks - 1 - block  # the longest rows first, lest the GPU wait for them at the end
    head = pid // blocks % heads
    batch = pid // blocks // heads
    key_head = head // groups
    first = block * BLOCK_M
    stop = m
    plain = m
    if RIGHT:
        ahead = m - n + right  # query i sees the keys up to i + ahead
        stop = gl.minimum(first + BLOCK_M + ahead, m)
        plain = first + ahead + 1  # all queries of the block see the keys below this one

    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, D], dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    q_smem = gl.allocate_shared_memory(dtype, [BLOCK_M, D], q_layout)
    k_smem = gl.allocate_shared_memory(dtype, [KEY_STAGES, BLOCK_N, D], k_layout)
    v_smem = gl.allocate_shared_memory(dtype, [VALUE_STAGES, BLOCK_N, D], k_layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [KEY_STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [VALUE_STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for slot in gl.static_range(KEY_STAGES):
        mbarrier.init(k_ready.index(slot), count=1)
    for slot in gl.static_range(VALUE_STAGES):
        mbarrier.init(v_ready.index(slot), count=1)
    fence_async_shared()
    mbarrier.expect(q_ready, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [batch, head, first, 0], q_ready, q_smem)
    for slot in gl.static_range(KEY_STAGES):
        wanted = slot * BLOCK_N < stop
        mbarrier.expect(k_ready.index(slot), BYTES, wanted)
        tma.async_copy_global_to_shared(
            k_desc, [batch, key_head, slot * BLOCK_N, 0], k_ready.index(slot), k_smem.index(slot), wanted
        )
    for slot in gl.static_range(VALUE_STAGES):
        wanted = slot * BLOCK_N < stop
        mbarrier.expect(v_ready.index(slot), BYTES, wanted)
        tma.async_copy_global_to_shared(
            v_desc, [batch, key_head, slot * BLOCK_N, 0], v_ready.index(slot), v_smem.index(slot), wanted
        )

    acc = gl.zeros([BLOCK_M, D], gl.float32, acc_mma)
    no_x = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, x_mma)
    total = fold(no_x, BLOCK_M, BLOCK_N)
    r_log_r = total
    count = gl.zeros([BLOCK_M, BLOCK_N], gl.float16, x_mma)
    i = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, x_mma))
    j = gl.arange(0, BLOCK_N, gl.SliceLayout(0, x_mma))

    mbarrier.wait(q_ready, 0)
    if stop > 0:
        mbarrier.wait(k_ready.index(0), 0)
        x = warpgroup_mma(q_smem, k_smem.index(0).permute((1, 0)), no_x, use_acc=False, is_async=True)
        x = warpgroup_mma_wait(0, [x])
        thread_barrier()
        mbarrier.expect(k_ready.index(0), BYTES, KEY_STAGES * BLOCK_N < stop)
        tma.async_copy_global_to_shared(
            k_desc, [batch, key_head, KEY_STAGES * BLOCK_N, 0], k_ready.index(0), k_smem.index(0),
            KEY_STAGES * BLOCK_N < stop,
        )  # fmt: skip
        k_slot, k_phase = 1 % KEY_STAGES, 1 // KEY_STAGES  # of the next keys
        v_slot, v_phase = 0, 0  # of the current values
        for key in range(0, stop, BLOCK_N):
            if RIGHT:
                if key + BLOCK_N > plain:
                    x = gl.where((key + j)[None, :] <= i[:, None] + ahead, x, 0.0)
            u = weigh(x, POWER)
            if STATS:
                r = clamp(x)
            acc = warpgroup_mma_init(acc)
            mbarrier.wait(k_ready.index(k_slot), k_phase, key + BLOCK_N < stop)
            x = warpgroup_mma(q_smem, k_smem.index(k_slot).permute((1, 0)), no_x, use_acc=False, is_async=True)
            mbarrier.wait(v_ready.index(v_slot), v_phase)
            acc = warpgroup_mma(gl.convert_layout(u, operand), v_smem.index(v_slot), acc, is_async=True)
            if STATS:
                total += fold(r, BLOCK_M, BLOCK_N)
                r_log_r += fold(r * log2(r), BLOCK_M, BLOCK_N)
                if COUNT:
                    count = count_active(count, u)
            x, acc = warpgroup_mma_wait(0, [x, acc])
            thread_barrier()  # all warps are done with the next keys and the current values: ask for later ones
            k_next = key + (KEY_STAGES + 1) * BLOCK_N
            v_next = key + VALUE_STAGES * BLOCK_N
            mbarrier.expect(k_ready.index(k_slot), BYTES, k_next < stop)
            mbarrier.expect(v_ready.index(v_slot), BYTES, v_next < stop)
            tma.async_copy_global_to_shared(
                k_desc, [batch, key_head, k_next, 0], k_ready.index(k_slot), k_smem.index(k_slot), k_next < stop
            )
            tma.async_copy_global_to_shared(
                v_desc, [batch, key_head, v_next, 0], v_ready.index(v_slot), v_smem.index(v_slot), v_next < stop
            )
            k_slot, k_phase = advance(k_slot, k_phase, KEY_STAGES)
            v_slot, v_phase = advance(v_slot, v_phase, VALUE_STAGES)

    # Factors of the rows, see row_factor in ../common.py.
    row = first + gl.arange(0, BLOCK_M, gl.SliceLayout(1, acc_mma))
    keys = row * 0 + m
    if RIGHT:
        keys = gl.minimum(row + ahead + 1, m)
    factor = raised(scale, POWER) / divisor * gl.exp2(-alpha * gl.log2(gl.maximum(keys, 1).to(gl.float32) * 0.5))
    if GAMMA:
        factor = factor / gl.load(gamma + head).to(gl.float32)

    q_smem.store((acc * factor[:, None]).to(dtype))
    fence_async_shared()
    thread_barrier()
    tma.async_copy_shared_to_global(out_desc, [batch, head, first, 0], q_smem)
    if STATS:
        total = gl.convert_layout(gl.sum(total, 1), row.type.layout)
        r_log_r = gl.convert_layout(gl.sum(r_log_r, 1), row.type.layout)
        total = gl.where(total > (m + BLOCK_N) * (2 * TINY), total, 0.0)  # scores without weight left a trace of TINY
        alive = total * scale > TINY
        safe = gl.where(alive, total, 1.0)
        nats = LN2 * (log2(safe) - r_log_r / safe)
        where = (batch * heads + head).to(gl.int64) * n + row
        gl.store(mass + where, total * factor, mask=row < n)
        gl.store(entropy + where, gl.where(alive, gl.maximum(nats, 0.0), 0.0), mask=row < n)
        if COUNT:
            active = gl.convert_layout(gl.sum(fold(count.to(gl.float32), BLOCK_M, BLOCK_N), 1), row.type.layout)
            gl.store(active_keys + where, active, mask=row < n)
    tma.store_wait(0)
