"""ReLU attention in linear memory on any device: scores are computed in blocks, used and discarded.

Rectified scores need no running maximum and no renormalisation: the parts of a sum over keys are simply added, and
every positive factor (gamma, the length) is applied once the row is done. With ``r = relu(s) ** power`` and ``c_i`` the
factor of row ``i``, a block costs two products forward and five backward:

    s = q k^T      out_i = c_i sum_j r_ij v_j
    s = q k^T      dr = (c dout) v^T      ds = dr * dr/ds      dq = ds k      dk = ds^T q      dv = r^T (c dout)
"""

import math
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.ops.forgetting import FAINTEST, at_keys, at_queries, first_kept
from reluformer.ops.problem import Gradients, Problem
from reluformer.ops.statistics import TINY, AttentionStats, entropy_from_sums
from reluformer.ops.visibility import UNBOUNDED, count_visible

# A block of scores is BLOCK x BLOCK for each head in progress. Square blocks are seldom cut short by the edge of a
# band, and those cut short are multiplied head by head: causal, forward and backward, 256 x 256 ran at 1.14 times the
# speed of softmax and 256 x 512 at 0.95 (two cores with 1 MiB of L2 each, float32, length 2048); without a band the two
# are equally fast. With 256 x 512, four heads per thread ran at 1.04, two at 1.00 and one at 0.93 (threads wait for
# each other after each step).
BLOCK = 256
HEADS_PER_THREAD = 4


def forward(p: Problem, target: Tensor) -> AttentionStats:
    """Write the output into ``target (B, Hq, N, D)``; return the statistics of every row, empty if not requested."""
    shapes = [p.q.shape[:3] if p.stats >= least else (0,) for least in (1, 1, 2)]
    found = AttentionStats(*(p.q.new_empty(shape, dtype=_wide(p)) for shape in shapes))
    squarings = p.power.bit_length() - 1
    work = _Workspace(p)
    for part in _parts(p):
        heads = _Heads(p, part, work)
        for rows in _steps(heads.n, part.rows_at_once):
            q = heads.stack(heads.q, rows)  # (L, G * R, D)
            out = torch.zeros_like(q)
            stats = q.new_zeros(3, *q.shape[:2], 1)
            for keys in heads.visible_keys(rows):
                r = heads.scores(q, rows, keys).relu_()  # (L, G * R, K)
                for _ in range(squarings):
                    r.square_()
                if p.faded is not None:
                    r *= heads.fading(rows, keys)
                out.baddbmm_(r, heads.v[:, keys])
                if p.stats:
                    stats[0] += r.sum(-1, keepdim=True)
                    stats[1] += heads.log(r).mul_(r).sum(-1, keepdim=True)
                if p.stats == 2:
                    stats[2] += r.sign_().sum(-1, keepdim=True)
            factor = heads.stack(heads.factor, rows)  # (L, G * R, 1)
            heads.put(target, rows, out, factor)
            if p.stats:
                total, r_log_r, active = stats
                heads.put(found.mass, rows, total, factor)
                heads.put(found.entropy, rows, entropy_from_sums(total, r_log_r))
                if p.stats == 2:
                    heads.put(found.active, rows, active)
    return found


def backward(
    p: Problem,
    targets: Sequence[Tensor],
    grad_out: Tensor,
    grad_mass: Tensor | None,
    grad_entropy: Tensor | None,
    mass: Tensor | None,
    entropy: Tensor | None,
    need_gamma: bool,
    need_bias: bool,
    need_mask: bool,
    need_faded: bool,
) -> Gradients:
    """Compute all gradients from recomputed scores: write those of q, k and v into ``targets``, return the others."""
    dq, dk, dv = targets
    # Sums over keys are kept row by row and summed over the rows at the end, all at once, which rounds least.
    dr_dot_r, ds_sum = (p.q.new_empty(p.q.shape[:3] if need else 0, dtype=_wide(p)) for need in (need_gamma, need_bias))
    dmask = p.q.new_zeros(p.attn_mask.shape if need_mask and p.attn_mask is not None else 0, dtype=_wide(p))
    faded_q, faded_k = (
        torch.zeros(p.q.shape[:2] + (size if need_faded else 0,), dtype=torch.float64, device=p.q.device)
        for size in (p.q.shape[2], p.k.shape[2])
    )
    work = _Workspace(p)
    for part in _parts(p):
        heads = _Heads(p, part, work)
        # One (L, D, K) for each block of keys: products that yield wide matrices are faster than those with tall ones.
        shape = (-(-heads.m // part.keys_at_once), *heads.k.mT.shape[:2], part.keys_at_once)
        dk_t, dv_t = heads.k.new_zeros(shape), heads.k.new_zeros(shape)
        for rows in _steps(heads.n, part.rows_at_once):
            q = heads.stack(heads.q, rows)  # (L, G * R, D)
            factor = heads.stack(heads.factor, rows)  # (L, G * R, 1)
            g = heads.stack(heads.get(grad_out), rows) * factor
            dq_rows = torch.zeros_like(q)
            dr_dot_r_rows, ds_sum_rows = q.new_zeros(2, *q.shape[:2], 1)

            # dr_ij = g_i.v_j + mass_i + (shift_i + slope_i log r_ij): from the output, the mass and the entropy.
            mass_slope = entropy_slope = None
            if grad_mass is not None:
                mass_slope = heads.stack(heads.get(grad_mass), rows) * factor
            if grad_entropy is not None and mass is not None and entropy is not None:
                total = heads.stack(heads.get(mass), rows) / factor
                alive = total > TINY
                total = torch.where(alive, total, 1.0)
                entropy_slope = torch.where(alive, -heads.stack(heads.get(grad_entropy), rows) / total, 0.0)
                entropy_shift = entropy_slope * (heads.stack(heads.get(entropy), rows) - total.log())

            for keys in heads.visible_keys(rows):
                block, width = keys.start // part.keys_at_once, keys.stop - keys.start
                s = heads.scores(q, rows, keys).relu_()  # (L, G * R, K)
                r = s if p.power == 1 else s**p.power
                if p.faded is not None:
                    fading = heads.fading(rows, keys)
                    r = r * fading
                dv_t[block, ..., :width].baddbmm_(g.mT, r)
                dr = torch.bmm(g, heads.v[:, keys].mT, out=heads.scratch(1, s.shape))
                if mass_slope is not None:
                    dr += mass_slope
                if need_gamma:  # before the entropy's part is added: entropy does not depend on gamma
                    dr_dot_r_rows += torch.mul(dr, r, out=heads.scratch(2, r.shape)).sum(-1, keepdim=True)
                if entropy_slope is not None:
                    dr.addcmul_(heads.log(r), entropy_slope).add_(entropy_shift)
                if need_faded:  # the exponent c_i - c_j has the gradient dr * r, which c_j gets with a minus sign
                    pulled = heads.unstack(torch.mul(dr, r, out=heads.scratch(2, r.shape)))  # (B, H, R, K)
                    _pick(faded_q, part)[:, :, part.rows][:, :, rows] += pulled.sum(3, dtype=torch.float64)
                    _pick(faded_k, part)[:, :, part.keys][:, :, keys] += pulled.sum(2, dtype=torch.float64)
                if p.faded is not None:
                    dr *= fading
                if p.power > 1:
                    ds = dr.mul_(p.power)
                    for _ in range(p.power - 1):
                        ds.mul_(s)
                else:
                    ds = torch.ops.aten.threshold_backward.grad_input(dr, s, 0, grad_input=dr)  # 0 where s is 0
                dq_rows.baddbmm_(ds, heads.k[:, keys])
                dk_t[block, ..., :width].baddbmm_(q.mT, ds)
                if need_bias:
                    ds_sum_rows += ds.sum(-1, keepdim=True)
                if need_mask:
                    target = _pick(dmask, part)[..., rows, keys]
                    target += heads.unstack(ds).sum_to_size(target.shape)
            heads.put(dq, rows, dq_rows, p.scale)
            if need_gamma:
                heads.put(dr_dot_r, rows, dr_dot_r_rows)
            if need_bias:
                heads.put(ds_sum, rows, ds_sum_rows)
        heads.put_keys(dk, dk_t.mul_(p.scale))
        heads.put_keys(dv, dv_t)

    none = p.q.new_empty
    return Gradients(
        none(0) if p.gamma is None or not need_gamma else (-dr_dot_r.sum((0, 2)) / p.gamma).to(p.gamma.dtype),
        none(0) if p.bias is None or not need_bias else ds_sum.sum((0, 2)).to(p.bias.dtype),
        none(0) if p.attn_mask is None or not need_mask else dmask.to(p.attn_mask.dtype),
        none(0) if not need_faded else _at_keys(p, faded_q).sub_(faded_k),
    )


def _wide(p: Problem) -> torch.dtype:
    """The dtype in which blocks are computed: half precision cannot hold a sum over keys."""
    return torch.promote_types(p.q.dtype, torch.float32)


def _heads_at_once(p: Problem) -> int:
    batch, key_heads = p.k.shape[:2]
    at_once = torch.get_num_threads() * HEADS_PER_THREAD if p.q.device.type == "cpu" else key_heads
    return max(min(at_once, batch * key_heads), 1)


class _Workspace:
    """What all parts of a problem share: the factors of the rows and scratch memory."""

    def __init__(self, p: Problem) -> None:
        if p.visible is not None:
            count = p.visible
        else:
            lengths = ((q.stop - q.start, k.stop - k.start) for q, k in _sequences(p))
            count = torch.cat([count_visible(p.band, n, m, None, None, p.q.device) for n, m in lengths], -1)
        divisor = p.divisor * (count.to(_wide(p)).clamp_min(1) / 2) ** p.alpha
        if p.gamma is not None:
            divisor = divisor * p.gamma[:, None].to(_wide(p))
        self.factor = divisor.reciprocal()[..., None]  # (B|1, Hq|1, N, 1)
        size = min(math.prod(p.q.shape[:3]) * p.k.shape[2], _heads_at_once(p) * BLOCK**2)
        self.blocks = _memory(size, _wide(p), p.q.device)


def _memory(size: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Memory for four blocks of scores, reused so that it is still in the cache.

    On the CPU each thread keeps its blocks from one call to the next: otherwise the system would reclaim and clear them
    every time, which took a tenth of a call at length 512.
    """
    blocks: list[Tensor] = getattr(_kept, "blocks", [])
    if not blocks or blocks[0].dtype != dtype or blocks[0].device != device or blocks[0].numel() < size:
        with torch.inference_mode(False):  # else training could not use the blocks that inference allocated
            blocks = [torch.empty(size, dtype=dtype, device=device) for _ in range(4)]
        if device.type == "cpu":
            _kept.blocks = blocks
    return blocks


_kept = threading.local()


class _Part(NamedTuple):
    """A piece of work: some sequences of the batch, some of their key heads, and the query heads that these serve."""

    batch: slice
    heads: slice
    key_heads: slice
    rows: slice
    keys: slice
    rows_at_once: int
    keys_at_once: int


def _parts(p: Problem) -> Iterator[_Part]:
    """Split the problem into parts whose blocks of scores fit a cache: few heads if sequences are long, else many."""
    batch, key_heads = p.k.shape[:2]
    at_once = _heads_at_once(p)
    for rows, keys in _sequences(p):
        r = min(max(BLOCK // p.groups, 1), max(rows.stop - rows.start, 1))
        k = min(BLOCK**2 // (p.groups * r), max(keys.stop - keys.start, 1))
        lanes = max(at_once * BLOCK**2 // (p.groups * r * k), 1)
        for b in _steps(batch, max(lanes // key_heads, 1)):
            for h in _steps(key_heads, min(lanes, key_heads)):
                yield _Part(b, slice(h.start * p.groups, h.stop * p.groups), h, rows, keys, r, k)


def _sequences(p: Problem) -> Iterator[tuple[slice, slice]]:
    """Slices of the rows and keys of each packed sequence, or of the whole if nothing is packed."""
    bounds_q = [0, p.q.shape[2]] if p.cu_q is None else p.cu_q.tolist()
    bounds_k = [0, p.k.shape[2]] if p.cu_k is None else p.cu_k.tolist()
    return zip(map(slice, bounds_q, bounds_q[1:]), map(slice, bounds_k, bounds_k[1:]), strict=True)


def _at_keys(p: Problem, x: Tensor) -> Tensor:
    """Numbers that belong to queries, ``(B, H, N)``, placed at the keys of the same position, ``(B, H, M)``."""
    return torch.cat([at_keys(x[:, :, rows], keys.stop - keys.start) for rows, keys in _sequences(p)], -1)


def _steps(stop: int, size: int, start: int = 0) -> Iterator[slice]:
    """Split ``start:stop`` into slices of ``size``; the last may be shorter."""
    return (slice(i, min(i + size, stop)) for i in range(start, stop, size))


def _pick(x: Tensor, part: _Part) -> Tensor:
    """Select the part's sequences and heads; dimensions of size 1, which broadcast, are kept."""
    return x[part.batch if x.shape[0] > 1 else slice(None), part.heads if x.shape[1] > 1 else slice(None)]


class _Heads:
    """The tensors of a part: ``B`` sequences with ``Hk`` key heads and ``H = Hk * G`` query heads.

    Products take the queries that share a key head as one tall matrix, ``(L, G * R, ...)`` with ``L = B * Hk`` and
    ``R`` rows of each query head; in memory this is ``(B, H, R, ...)``.
    """

    def __init__(self, p: Problem, part: _Part, work: _Workspace) -> None:
        self.part, self.blocks, self.band, self.scale, self.wide = part, work.blocks, p.band, p.scale, _wide(p)
        self.q = self.get(p.q)  # (B, H, N, D)
        k, v = (x[part.batch, part.key_heads, part.keys].to(self.wide) for x in (p.k, p.v))
        self.k, self.v = k.flatten(0, 1), v.flatten(0, 1)  # (L, M, D)
        self.n, self.m = self.q.shape[2], self.k.shape[1]
        self.bias = None if p.bias is None else p.bias[part.heads, None, None].to(self.wide)  # (H, 1, 1)
        self.key_mask = None if p.key_mask is None else p.key_mask[part.batch, None, None]  # (B, 1, 1, M)
        self.attn_mask = None if p.attn_mask is None else _pick(p.attn_mask, part)  # (B|1, H|1, N, M)
        self.factor = _pick(work.factor, part)[:, :, part.rows].expand(*self.q.shape[:3], 1)
        self.c = None if p.faded is None else _pick(p.faded, part)[:, :, part.keys]  # (B, H, M)
        if self.c is not None:
            self.first_kept = first_kept(self.c, self.n, part.rows_at_once)

    def get(self, x: Tensor) -> Tensor:
        """This part of ``x``, which has one vector or one value per query: ``(B, H, N, D)`` or ``(B, H, N, 1)``."""
        return (x if x.dim() == 4 else x[..., None])[self.part.batch, self.part.heads, self.part.rows]

    def put(self, x: Tensor, rows: slice, stacked: Tensor, factor: Tensor | float = 1.0) -> None:
        """Write stacked rows, times a factor, to their place in the whole ``x``."""
        target = self.get(x)[:, :, rows]
        shape = (*target.shape[:3], -1)
        torch.mul(stacked.view(shape), factor.view(shape) if isinstance(factor, Tensor) else factor, out=target)

    def put_keys(self, x: Tensor, blocks: Tensor) -> None:
        """Write blocks of keys ``(blocks, L, D, K)`` to their place in the whole ``x``."""
        target = x[self.part.batch, self.part.key_heads, self.part.keys]  # (B, Hk, M, D)
        for keys, block in zip(_steps(self.m, self.part.keys_at_once), blocks, strict=True):
            target[:, :, keys] = block.mT[:, : keys.stop - keys.start].view(*target.shape[:2], -1, target.shape[3])

    def stack(self, x: Tensor, rows: slice) -> Tensor:
        """Rows of ``(B, H, N, ...)`` as ``(L, G * R, ...)``, a view where possible."""
        return x[:, :, rows].to(self.wide).reshape(self.k.shape[0], -1, x.shape[3])

    def unstack(self, s: Tensor) -> Tensor:
        """A block of scores ``(L, G * R, K)`` as ``(B, H, R, K)``."""
        return s.view(*self.q.shape[:2], -1, s.shape[-1])

    def scratch(self, which: int, shape: Sequence[int]) -> Tensor:
        """A tensor of this shape in one of the four blocks of memory."""
        return self.blocks[which][: math.prod(shape)].view(shape)

    def log(self, r: Tensor) -> Tensor:
        """``log r``, finite at 0."""
        return torch.clamp_min(r, TINY, out=self.scratch(2, r.shape)).log_()

    def visible_keys(self, rows: slice) -> Iterator[slice]:
        """Blocks that cover the keys which at least one of these rows may see and has not forgotten."""
        start, stop = self.band.key_range(rows.start, rows.stop - 1, self.n, self.m)
        if self.c is not None:
            start = min(max(start, self.first_kept[rows.start // self.part.rows_at_once]), stop)
        return _steps(stop, self.part.keys_at_once, start - start % self.part.keys_at_once)

    def fading(self, rows: slice, keys: slice) -> Tensor:
        """The factors ``(L, G * R, K)`` by which weights fade from these keys to these rows."""
        assert self.c is not None
        c_k = self.c[:, :, keys]  # (B, H, K)
        c_q = at_queries(self.c, self.n)[:, :, rows]  # (B, H, R)
        shape = (*c_q.shape, c_k.shape[2])
        block = self.scratch(3, shape)
        if keys.stop - 1 <= rows.start + self.m - self.n:  # no key is later than any row: the factors separate
            between = c_k[:, :, -1:]
            left = (c_q - between).exp().to(self.wide)
            torch.mul(left[..., None], (between - c_k).exp().to(self.wide)[:, :, None], out=block)
        else:  # clamped, since the weights of later keys, which are hidden, would grow
            block.copy_((c_q[..., None] - c_k[:, :, None]).clamp_max_(0).exp_())
        torch.threshold_(block, math.exp(FAINTEST), 0.0)
        return block.view(self.k.shape[0], -1, shape[3])

    def scores(self, q: Tensor, rows: slice, keys: slice) -> Tensor:
        """Scores ``(L, G * R, K)`` of stacked queries; a hidden key scores at most 0 and so has no weight."""
        s = self.scratch(0, (*q.shape[:2], keys.stop - keys.start))
        torch.baddbmm(s, q, self.k[:, keys].mT, beta=0, alpha=self.scale, out=s)
        by_head = self.unstack(s)  # (B, H, R, K)
        if self.bias is not None:
            by_head += self.bias
        if self.attn_mask is not None:
            mask = self.attn_mask[..., rows, keys]
            if mask.dtype == torch.bool:
                by_head.masked_fill_(~mask, 0.0)
            else:
                by_head += mask
        if self.key_mask is not None:
            by_head.masked_fill_(~self.key_mask[..., keys], 0.0)
        if not self.band.covers(rows, keys, self.n, self.m):
            first = rows.start + self.m - self.n - keys.start  # position of the first row, relative to the block's keys
            if self.band.right != UNBOUNDED:
                by_head.tril_(first + self.band.right)
            if self.band.left != UNBOUNDED:
                by_head.triu_(first - self.band.left)
        return s
