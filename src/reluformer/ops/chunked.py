"""ReLU attention in linear memory on any device: blocks of scores, made, used and forgotten.

Rectified scores need no running maximum and no renormalisation: the parts of a sum over keys are simply added, and
every positive factor (gamma, the length) waits until the row is done. With ``r = relu(s) ** power`` and ``c_i`` the
factor of row ``i``, a block costs two products forward and five backward:

    s = q k^T      out_i = c_i sum_j r_ij v_j
    s = q k^T      dr = (c dout) v^T      ds = dr * dr/ds      dq = ds k      dk = ds^T q      dv = r^T (c dout)
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.ops.problem import Gradients, Problem, Sums
from reluformer.ops.statistics import TINY, entropy_from_sums, row_sums
from reluformer.ops.visibility import UNBOUNDED, count_visible

# A block of scores is HEADS x ROWS x KEYS.
HEADS = 2
ROWS = 128
KEYS = 512


def forward(p: Problem) -> Sums:
    """Output and, where asked for, the statistics of every row."""
    wide = torch.promote_types(p.q.dtype, torch.float32)
    shape = p.q.shape[:3] if p.stats else (0,)
    sums = Sums(torch.empty_like(p.q), *(p.q.new_empty(shape, dtype=wide) for _ in range(3)))
    for part in _parts(p):
        heads = _Heads(p, part)
        for rows in _steps(0, heads.n, heads.rows_at_once):
            q = heads.stack(heads.q, rows)  # (L, G * R, D)
            out = torch.zeros_like(q)
            totals = [q.new_zeros(q.shape[:2]) for _ in range(3)]
            for keys in heads.visible_keys(rows):
                r = heads.scores(q, rows, keys).relu_()  # (L, G * R, K)
                if p.power == 2:
                    r.square_()
                out.baddbmm_(r, heads.v[:, keys])
                if p.stats:
                    for total, x in zip(totals, row_sums(r), strict=True):
                        total.add_(x)
            factor = heads.stack(heads.factor, rows)
            heads.put(sums.out, rows, out.mul_(factor[..., None]))
            if p.stats:
                total, r_log_r, active = totals
                heads.put(sums.mass, rows, total * factor)
                heads.put(sums.entropy, rows, entropy_from_sums(total, r_log_r))
                heads.put(sums.active, rows, active)
    return sums


def backward(
    p: Problem,
    grad_out: Tensor,
    grad_mass: Tensor | None,
    grad_entropy: Tensor | None,
    out: Tensor | None,
    mass: Tensor | None,
    entropy: Tensor | None,
    need_gamma: bool,
    need_bias: bool,
    need_mask: bool,
) -> Gradients:
    """Gradients of everything differentiable, the scores made once more."""
    wide = torch.promote_types(p.q.dtype, torch.float32)
    dq, dk, dv = torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v)
    # Optional gradients are summed up wide, whatever dtype they are asked for in.
    dbias = p.q.new_zeros(p.q.shape[1] if need_bias else 0, dtype=wide)
    dmask = p.q.new_zeros(p.attn_mask.shape if need_mask and p.attn_mask is not None else 0, dtype=wide)
    for part in _parts(p):
        heads = _Heads(p, part)
        dk_part, dv_part = torch.zeros_like(heads.k), torch.zeros_like(heads.v)  # (L, M, D)
        for rows in _steps(0, heads.n, heads.rows_at_once):
            q = heads.stack(heads.q, rows)
            factor = heads.stack(heads.factor, rows)
            g = heads.stack(heads.get(grad_out), rows).mul_(factor[..., None])
            dq_rows = torch.zeros_like(q)

            # dr_ij = g_i.v_j + constant_i - slope_i log r_ij: the last two from mass and entropy.
            constant = slope = None
            if grad_mass is not None:
                constant = heads.stack(heads.get(grad_mass), rows) * factor
            if grad_entropy is not None and mass is not None and entropy is not None:
                total = heads.stack(heads.get(mass), rows) / factor
                alive = total > TINY
                total = torch.where(alive, total, 1.0)
                slope = torch.where(alive, heads.stack(heads.get(grad_entropy), rows) / total, 0.0)
                shift = slope * (total.log() - heads.stack(heads.get(entropy), rows))
                constant = shift if constant is None else constant + shift

            for keys in heads.visible_keys(rows):
                s = heads.scores(q, rows, keys).relu_()
                r = s.square() if p.power == 2 else s
                dv_part[:, keys].baddbmm_(r.mT, g)
                ds = torch.bmm(g, heads.v[:, keys].mT)
                if constant is not None:
                    ds += constant[..., None]
                if slope is not None:
                    ds -= slope[..., None] * r.clamp_min(TINY).log_()
                if p.power == 2:
                    ds *= 2 * s
                ds.masked_fill_(s <= 0, 0.0)
                dq_rows.baddbmm_(ds, heads.k[:, keys])
                dk_part[:, keys].baddbmm_(ds.mT, q)
                by_head = ds.view(heads.factor.shape[0], -1, ds.shape[-1])  # (H, R, K)
                if need_bias:
                    dbias[part.heads] += by_head.sum((1, 2))
                if need_mask:
                    target = _pick(dmask, part.batch, part.heads)[:, rows, keys]
                    target += by_head.sum_to_size(target.shape)
            heads.put(dq, rows, dq_rows.mul_(p.scale))
        dk[part.batch, part.key_heads, part.keys] = dk_part.mul_(p.scale)
        dv[part.batch, part.key_heads, part.keys] = dv_part

    return Gradients(
        dq,
        dk,
        dv,
        _gamma_gradient(p, grad_out, grad_mass, out, mass) if need_gamma else p.q.new_empty(0),
        dbias.to(p.bias.dtype) if need_bias and p.bias is not None else p.q.new_empty(0),
        dmask.to(p.attn_mask.dtype) if need_mask and p.attn_mask is not None else p.q.new_empty(0),
    )


def _gamma_gradient(
    p: Problem, grad_out: Tensor, grad_mass: Tensor | None, out: Tensor | None, mass: Tensor | None
) -> Tensor:
    """``dgamma_h = -(dout . out + dmass . mass) / gamma_h``, since both are proportional to ``1 / gamma_h``."""
    assert p.gamma is not None
    assert out is not None, "the forward pass keeps its output where gamma needs a gradient"
    wide = torch.promote_types(p.q.dtype, torch.float32)
    # Head by head, so that no product of the output's size is ever in memory.
    dot = torch.stack([(grad_out[:, h].to(wide) * out[:, h]).sum() for h in range(out.shape[1])])
    if grad_mass is not None and mass is not None:
        dot = dot + (grad_mass * mass).sum((0, 2))
    return (-dot / p.gamma).to(p.gamma.dtype)


class _Part(NamedTuple):
    """Where a piece of work lies: a few key heads of one sequence and the query heads that they serve."""

    batch: int
    heads: slice
    key_heads: slice
    rows: slice
    keys: slice


def _parts(p: Problem) -> Iterator[_Part]:
    bounds_q = [0, p.q.shape[2]] if p.cu_q is None else p.cu_q.tolist()
    bounds_k = [0, p.k.shape[2]] if p.cu_k is None else p.cu_k.tolist()
    for batch in range(p.q.shape[0]):
        for rows, keys in zip(map(slice, bounds_q, bounds_q[1:]), map(slice, bounds_k, bounds_k[1:]), strict=True):
            for heads in _steps(0, p.k.shape[1], HEADS):
                yield _Part(batch, slice(heads.start * p.groups, heads.stop * p.groups), heads, rows, keys)


def _steps(start: int, stop: int, size: int) -> Iterator[slice]:
    """``start:stop`` in slices of ``size``, the last one shorter."""
    return (slice(i, min(i + size, stop)) for i in range(start, stop, size))


def _pick(x: Tensor, batch: int, heads: slice) -> Tensor:
    """``x[batch, heads]`` of a tensor whose first two dimensions may be 1, to be broadcast."""
    x = x[batch if x.shape[0] > 1 else 0]
    return x[heads] if x.shape[0] > 1 else x


class _Heads:
    """The tensors of a part: H query heads over L key heads, H = L * G.

    Products take the queries that share a key head as one tall matrix, ``(L, G * R, ...)``: contiguous, it is the same
    memory as ``(H, R, ...)``.
    """

    def __init__(self, p: Problem, part: _Part) -> None:
        self.part, self.band, self.scale = part, p.band, p.scale
        self.wide = torch.promote_types(p.q.dtype, torch.float32)
        self.q = self.get(p.q)  # (H, N, D)
        self.k = p.k[part.batch, part.key_heads, part.keys].to(self.wide).contiguous()  # (L, M, D)
        self.v = p.v[part.batch, part.key_heads, part.keys].to(self.wide).contiguous()
        self.n, self.m = self.q.shape[1], self.k.shape[1]
        self.bias = None if p.bias is None else p.bias[part.heads].to(self.wide)  # (H,)
        self.key_mask = None if p.key_mask is None else p.key_mask[part.batch]  # (M,)
        self.attn_mask = None if p.attn_mask is None else _pick(p.attn_mask, part.batch, part.heads)  # (H|1, N, M)
        if p.count is None:
            count = count_visible(p.band, self.n, self.m, None, None, p.q.device)[0]  # (1, N)
        else:
            count = _pick(p.count, part.batch, part.heads)
        divisor = p.divisor * (count.to(self.wide).clamp_min(1) / 2) ** p.alpha
        if p.gamma is not None:
            divisor = divisor * p.gamma[part.heads, None].to(self.wide)
        self.factor = divisor.reciprocal().expand(self.q.shape[:2])  # (H, N)
        self.rows_at_once = max(1, ROWS // p.groups)

    def get(self, x: Tensor) -> Tensor:
        """``(B, Hq, N, ...)`` to ``(H, N, ...)``."""
        return x[self.part.batch, self.part.heads, self.part.rows]

    def put(self, x: Tensor, rows: slice, value: Tensor) -> None:
        """Write stacked rows ``(L, G * R, ...)`` where they belong in ``x (B, Hq, N, ...)``."""
        target = self.get(x)[:, rows]
        target.copy_(value.view(target.shape))

    def stack(self, x: Tensor, rows: slice) -> Tensor:
        """A copy of ``(H, N, ...)``'s rows as ``(L, G * R, ...)``."""
        x = x[:, rows].to(self.wide, copy=True, memory_format=torch.contiguous_format)
        return x.view(self.k.shape[0], -1, *x.shape[2:])

    def visible_keys(self, rows: slice) -> Iterator[slice]:
        """Blocks of the keys that some of these rows may see."""
        return _steps(*self.band.key_range(rows.start, rows.stop - 1, self.n, self.m), KEYS)

    def scores(self, q: Tensor, rows: slice, keys: slice) -> Tensor:
        """Scores ``(L, G * R, K)`` of stacked queries; a hidden key scores at most 0: no weight."""
        s = q.new_empty(*q.shape[:2], keys.stop - keys.start)
        torch.baddbmm(s, q, self.k[:, keys].mT, beta=0, alpha=self.scale, out=s)
        by_head = s.view(self.q.shape[0], -1, s.shape[-1])  # (H, R, K)
        if self.bias is not None:
            by_head += self.bias[:, None, None]
        if self.attn_mask is not None:
            mask = self.attn_mask[:, rows, keys]
            if mask.dtype == torch.bool:
                by_head.masked_fill_(~mask, 0.0)
            else:
                by_head += mask
        if self.key_mask is not None:
            by_head.masked_fill_(~self.key_mask[keys], 0.0)
        if not self.band.covers(rows, keys, self.n, self.m):
            first = (
                rows.start + self.m - self.n - keys.start
            )  # the position of the block's first row in its first key's
            if self.band.right != UNBOUNDED:
                by_head.tril_(first + self.band.right)
            if self.band.left != UNBOUNDED:
                by_head.triu_(first - self.band.left)
        return s
