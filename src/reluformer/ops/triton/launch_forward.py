"""Launches of the forward pass: one kernel for many queries, two for decoding."""

import torch
from torch import Tensor

from reluformer.ops.problem import Problem
from reluformer.ops.statistics import AttentionStats
from reluformer.ops.triton import host, tiles
from reluformer.ops.triton import launch_short as short
from reluformer.ops.triton.decode import combine_kernel, decode_kernel
from reluformer.ops.triton.fading import fade_kernel
from reluformer.ops.triton.forward import forward_kernel

DECODE_QUERIES = 16  # the decode kernel takes at most this many queries,
DECODE_ROWS = 64  # this many in all heads that share a key head,
DECODE_KEYS = 256  # and at least this many keys: for fewer, one program per head is as good
COMBINED_ROWS = 4  # rows per program of the kernel that adds the parts


def forward(p: Problem, out: Tensor) -> AttentionStats:
    """Write the output into ``out (B, Hq, N, D)``; return the statistics, empty if not requested."""
    shape = p.q.shape[:3] if p.stats else (0,)
    stats = tuple(p.q.new_empty(shape, dtype=torch.float32) for _ in range(3))
    if 0 in p.q.shape:
        return _kept(p, stats)
    if 0 in p.k.shape:  # there are no keys to see
        out.zero_()
        return _kept(p, tuple(x.zero_() for x in stats))
    is_short = short.takes(p)
    target = host.unit_columns(out) if is_short else host.fit_for_tma(out)
    rows = p.max_q * p.groups
    decoding = p.cu_q is None and p.max_q <= DECODE_QUERIES and rows <= DECODE_ROWS and p.max_k >= DECODE_KEYS
    with host.on_device(p.q):
        if is_short:
            launch = short.forward
        elif decoding:
            launch = _decode
        else:
            launch = _attend_on_hopper if host.hopper_takes(p) else _attend
        launch(p, target, stats)
    if target is not out:
        out.copy_(target)
    return _kept(p, stats)


def _kept(p: Problem, stats: tuple[Tensor, ...]) -> AttentionStats:
    mass, entropy, active = stats
    return AttentionStats(mass, entropy, active if p.stats == 2 else active.new_empty(0))


def _attend(p: Problem, out: Tensor, stats: tuple[Tensor, ...]) -> None:
    _, heads, n, d = p.q.shape
    tile = tiles.forward_tile(p.q.dtype, d, p.max_k, forget=p.faded is not None)
    blocks = host.cdiv(p.max_q, tile.m)
    block_d = host.head_block(p)
    values, faded_map = host.fit_for_tma(p.v), None
    if p.faded is not None and not p.stats:  # with statistics every weight has its own decay
        faded_map = host.tensor_map(_fade(p, values, tile.n, block_d), tile.n, block_d)
    forward_kernel[(blocks * host.sequences(p) * heads,)](
        host.tensor_map(host.fit_for_tma(p.q), tile.m, block_d),
        host.tensor_map(host.fit_for_tma(p.k), tile.n, block_d),
        host.tensor_map(values, tile.n, block_d), faded_map, host.tensor_map(out, tile.m, block_d), out, *stats,
        p.gamma, p.bias, host.as_bytes(p.key_mask), host.as_bytes(p.attn_mask), p.visible, p.cu_q, p.cu_k, p.faded,
        blocks, heads, p.groups, n, p.k.shape[2], d, *p.band, p.divisor, p.alpha, p.scale,
        *out.stride()[1:3], *host.broadcast_strides(p.key_mask, 1), *host.broadcast_strides(p.attn_mask, 4),
        *host.broadcast_strides(p.visible, 2),
        BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_D=block_d, EVEN=host.is_even(p, p.max_k, tile.n), STATS=p.stats > 0,
        **host.meaning(p), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _fade(p: Problem, v: Tensor, rows: int, block_d: int) -> Tensor:
    """Values of every query head, faded to the last key of their block of ``rows``."""
    b, heads, _, d = p.q.shape
    m = v.shape[2]
    faded = host.fit_for_tma(v.new_empty((b, heads, m, d)))
    blocks = host.cdiv(m, rows)
    fade_kernel[(blocks * b * heads,)](
        v, p.faded, faded, blocks, heads, p.groups, m, d, *v.stride()[:3], *faded.stride()[:3],
        BLOCK_N=rows, BLOCK_D=block_d, num_warps=4,
    )  # fmt: skip
    return faded


def _attend_on_hopper(p: Problem, out: Tensor, stats: tuple[Tensor, ...]) -> None:
    from reluformer.ops.triton.hopper import forward as hopper  # Gluon is not in every Triton

    b, heads, n, d = p.q.shape
    m = p.k.shape[2]
    if p.stats == 2 and m > hopper.MOST_COUNTED:
        return _attend(p, out, stats)
    blocks = host.cdiv(n, hopper.BLOCK_M)
    hopper.hopper_forward_kernel[(blocks * b * heads,)](
        host.rows_map(host.fit_for_tma(p.q), hopper.BLOCK_M), host.rows_map(host.fit_for_tma(p.k), hopper.BLOCK_N),
        host.rows_map(host.fit_for_tma(p.v), hopper.BLOCK_N), host.rows_map(out, hopper.BLOCK_M), *stats, p.gamma,
        blocks, heads, p.groups, n, m, p.band.right, p.divisor, p.alpha, p.scale,
        BLOCK_M=hopper.BLOCK_M, BLOCK_N=hopper.BLOCK_N, D=d, KEY_STAGES=hopper.KEY_STAGES,
        VALUE_STAGES=hopper.VALUE_STAGES, STATS=p.stats > 0, COUNT=p.stats == 2,
        **host.only(host.meaning(p), "RIGHT", "GAMMA", "POWER"), num_warps=hopper.WARPS,
    )  # fmt: skip


def _decode(p: Problem, out: Tensor, stats: tuple[Tensor, ...]) -> None:
    b, heads, n, d = p.q.shape
    m = p.k.shape[2]
    tile = tiles.decode_tile(p.q.dtype, d)
    block_d = host.head_block(p)
    rows = max(tile.m, host.power_of_two(n * p.groups))
    programs = b * heads // p.groups
    chunk = _keys_per_program(m, programs, tile.n, p.q.device)
    parts = host.cdiv(m, chunk)
    acc_parts = p.q.new_empty((parts, programs, rows, block_d), dtype=torch.float32)
    stat_parts = p.q.new_zeros((parts, programs, rows, 4), dtype=torch.float32) if p.stats else stats[0]
    options = host.meaning(p)
    del options["VARLEN"]
    q = host.unit_columns(p.q)
    sizes = (heads, p.groups, n, m, d, *p.band, p.divisor, p.alpha, p.scale)
    decode_kernel[(programs, parts)](  # in this order: only the first dimension of a grid may exceed 65 535
        q,
        host.tensor_map(host.fit_for_tma(p.k), tile.n, block_d),
        host.tensor_map(host.fit_for_tma(p.v), tile.n, block_d),
        acc_parts, stat_parts, p.gamma, p.bias, host.as_bytes(p.key_mask), host.as_bytes(p.attn_mask), p.visible,
        p.faded, *sizes, chunk, *q.stride()[:3], *host.broadcast_strides(p.key_mask, 1),
        *host.broadcast_strides(p.attn_mask, 4), *host.broadcast_strides(p.visible, 2),
        ROWS=rows, BLOCK_N=tile.n, BLOCK_D=block_d, STATS=p.stats > 0, **options,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    combine_kernel[(programs, host.cdiv(n * p.groups, COMBINED_ROWS))](
        acc_parts, stat_parts, out, *stats, p.gamma, p.visible, parts, *sizes,
        *out.stride()[:3], *host.broadcast_strides(p.visible, 2),
        ROWS=rows, ROWS_PER_PROGRAM=COMBINED_ROWS, BLOCK_D=block_d, COUNT=p.visible is not None, STATS=p.stats > 0,
        **host.only(options, "LEFT", "RIGHT", "GAMMA", "POWER", "FACTOR"), num_warps=4,
    )  # fmt: skip


def _keys_per_program(m: int, programs: int, block: int, device: torch.device) -> int:
    """Number of keys per program, for programs to fill the GPU several times over, with a few blocks to stream each."""
    cores = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    parts = max(1, min(host.cdiv(cores * 8, programs), host.cdiv(m, 4 * block)))
    return host.cdiv(host.cdiv(m, parts), block) * block
