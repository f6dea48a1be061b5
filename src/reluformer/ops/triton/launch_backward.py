"""Launches of the backward pass: prepare the rows, then the keys, then finish the queries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reluformer.ops.forgetting import at_keys
from reluformer.ops.problem import Gradients, Problem
from reluformer.ops.triton import host, tiles
from reluformer.ops.triton import launch_short as short
from reluformer.ops.triton.backward import finish_kernel, key_kernel, prepare_kernel
from reluformer.ops.triton.queries import query_kernel

ROW_BLOCK = 64  # rows per program of the kernels that work row by row


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
    """Compute all gradients but that of the mask: write those of q, k and v into ``targets``, return the others.

    They are summed in a fixed order if PyTorch's deterministic algorithms are enabled.
    """
    if need_mask:
        raise RuntimeError("the Triton kernels give attn_mask no gradient; use backend 'auto' or 'chunked'")
    dgamma = dbias = dmask = dfaded = p.q.new_empty(0)
    if 0 in p.q.shape or 0 in p.k.shape:
        wanted = ((p.gamma, need_gamma), (p.bias, need_bias), (None, False), (p.faded, need_faded))
        more = [torch.zeros_like(x) if need and x is not None else dmask for x, need in wanted]
        for x in targets:
            x.zero_()
        return Gradients._make(more)
    with host.on_device(p.q):
        filled = [x if x.stride(-1) == 1 else x.new_empty(x.shape) for x in targets]
        if short.takes(p):
            found = short.backward(p, filled, grad_out, grad_mass, grad_entropy, mass, entropy, need_gamma, need_bias)
            _hand_over(filled, targets)
            return found
        run = _Backward(p, need_gamma, need_bias, need_faded)
        run.prepare(grad_out, grad_mass, grad_entropy, mass, entropy)
        run.launch(*filled)
        _hand_over(filled, targets)
        if p.gamma is not None and need_gamma:
            dgamma = run.dgamma_parts.sum((0, 2)).to(p.gamma.dtype)
        if p.bias is not None and need_bias:
            dbias = run.dbias_parts.sum((0, 2)).to(p.bias.dtype)
        if p.faded is not None and need_faded:
            rows = at_keys(run.dlog_rows.to(p.faded.dtype), p.k.shape[2])
            dfaded = (rows - run.dlog_keys) / p.power
    return Gradients(dgamma, dbias, dmask, dfaded)


def _hand_over(filled: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for x, target in zip(filled, targets, strict=True):
        if x is not target:
            target.copy_(x)


@dataclass
class _Backward:
    """One backward pass, with the state that its launches share."""

    p: Problem
    need_gamma: bool
    need_bias: bool
    need_faded: bool

    def __post_init__(self) -> None:
        p = self.p
        self.block_d = host.head_block(p)
        self.options = host.meaning(p)
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        self.on_hopper = not self.deterministic and host.hopper_takes(p)
        # A factor shared by a whole head can wait until the end; factors per row must be in dout before the products
        # or, for dtypes of narrow range, be multiplied in inside the loop.
        shared_heads = p.groups == 1 or p.gamma is None
        self.uniform = p.band.full and p.visible is None and p.cu_q is None and shared_heads and not host.is_narrow(p)
        self.uniform_factor = p.scale**p.power / p.divisor * (p.max_k / 2) ** -p.alpha if self.uniform else 1.0
        # The gradients of gamma and of the gates come from q.dq and k.dk, unless scores contain more than q.k.
        self.in_loop = p.bias is not None or host.has_float_mask(p)
        self.gamma_in_loop = self.need_gamma and self.in_loop
        self.gamma_from_keys = self.need_gamma and self.on_hopper and p.groups == 1
        self.gamma_from_queries = self.need_gamma and not self.gamma_in_loop and not self.gamma_from_keys
        self.nothing = torch.empty(0, dtype=torch.float32, device=p.q.device)
        self.dgamma_parts = self.dbias_parts = self.nothing
        self.dlog_rows = self.dlog_keys = self.nothing
        if self.need_faded:
            shapes = ((*p.q.shape[:2], x.shape[2]) for x in (p.q, p.k))
            self.dlog_rows, self.dlog_keys = (p.q.new_zeros(shape, dtype=torch.float32) for shape in shapes)

    def parts(self, blocks: int) -> Tensor:
        """Room for one number per block, head and sequence."""
        shape = (host.sequences(self.p), self.p.q.shape[1], blocks)
        return torch.zeros(shape, dtype=torch.float32, device=self.p.q.device)

    def prepare(
        self,
        grad_out: Tensor,
        grad_mass: Tensor | None,
        grad_entropy: Tensor | None,
        mass: Tensor | None,
        entropy: Tensor | None,
    ) -> None:
        """Compute the scaled gradient of the output and what the statistics add to the gradient of each row."""
        p = self.p
        b, heads, n, d = p.q.shape
        narrow = host.is_narrow(p)
        self.stats = grad_mass is not None or grad_entropy is not None
        scaled = not narrow and not self.uniform
        grad_out = host.unit_columns(grad_out)
        self.dout = host.fit_for_tma(torch.empty_like(grad_out) if scaled else grad_out)
        self.faded_dout = None
        if p.faded is not None and not self.stats:  # with statistics every weight has its own decay
            layout = (self.dout.shape, self.dout.stride())
            self.faded_dout = torch.empty_strided(*layout, dtype=self.dout.dtype, device=self.dout.device)
        self.lines = self.nothing.view(1, 1, 1, 0).expand(1, 1, 3, 0)
        if narrow or self.stats:
            shape = (b, heads, 3, host.cdiv(n, ROW_BLOCK) * ROW_BLOCK)  # padded: tensor maps load whole blocks
            self.lines = torch.empty(shape, dtype=torch.float32, device=p.q.device)
        self.slopes, self.bends, self.factors = self.lines.unbind(2)
        needed = scaled or narrow or self.stats
        zero = needed and p.cu_q is None and not self.deterministic  # saves a launch; packed rows are not whole blocks
        self.dq32 = self._scratch(torch.empty if zero else torch.zeros)
        if not needed:
            return
        blocks = host.cdiv(p.max_q, ROW_BLOCK)
        grad_mass, grad_entropy = (None if x is None else x.contiguous() for x in (grad_mass, grad_entropy))
        prepare_kernel[(blocks * host.sequences(p) * heads,)](
            grad_out, grad_mass, grad_entropy, mass, entropy, self.dout, self.faded_dout, self.factors,
            self.slopes, self.bends, self.dq32, p.gamma, p.visible, p.cu_q, p.cu_k, p.faded,
            blocks, heads, n, p.k.shape[2], d, *p.band, p.divisor, p.alpha, p.scale,
            *grad_out.stride()[:3], *self.dout.stride()[:3], *host.broadcast_strides(p.visible, 2),
            self.lines.stride(1), *self.dq32.shape[2:],
            BLOCK_M=ROW_BLOCK, BLOCK_D=self.block_d, COUNT=p.visible is not None, SCALED=scaled, ZERO=zero,
            DMASS=grad_mass is not None, DENTROPY=grad_entropy is not None, STATS=self.stats, UNIFORM=self.uniform,
            FADED=0 if self.faded_dout is None else tiles.backward_tile(p.q.dtype, d).m,
            **host.only(self.options, "VARLEN", "LEFT", "RIGHT", "GAMMA", "POWER", "FACTOR"), num_warps=4,
        )  # fmt: skip

    def _scratch(self, make: Callable[..., Tensor]) -> Tensor:
        """Scratch in which programs add up the queries' gradients, in float32; empty if they do not."""
        b, heads, n, d = self.p.q.shape
        rows = host.cdiv(n, ROW_BLOCK) * ROW_BLOCK if self.on_hopper else n
        width = host.cdiv(d, 4) * 4  # rows start on 16-byte boundaries
        shape = (0, 0, 0, 0) if self.deterministic else (b, heads, rows, width)
        return make(shape, dtype=torch.float32, device=self.p.q.device)

    def launch(self, dq: Tensor, dk: Tensor, dv: Tensor) -> None:
        """Fill the gradients of q, k and v, and the parts of those of gamma, bias and gates."""
        q, k, v = (host.fit_for_tma(x) for x in self.p[:3])
        if self.deterministic:
            self._keys(q, k, v, None, dk, dv)
            self._queries(q, k, v, dq)
            return
        if self.on_hopper:
            self._hopper_keys(q, k, v, self.dq32, dk, dv)
        else:
            self._keys(q, k, v, self.dq32, dk, dv)
        self._finish(q, self.dq32, dq, self.on_hopper)

    def _hopper_keys(self, q: Tensor, k: Tensor, v: Tensor, dq32: Tensor, dk: Tensor, dv: Tensor) -> None:
        from reluformer.ops.triton.hopper import backward as hopper  # Gluon is not in every Triton

        p = self.p
        m, d = p.k.shape[2:]
        blocks = host.cdiv(m, hopper.BLOCK_N)
        lines = self.lines.view(-1, 3, self.lines.shape[-1]) if self.stats else dq32.view(-1, 1, dq32.shape[-1])
        sides = hopper.sides(d, self.options["RIGHT"], self.stats, p.power)
        keys = hopper.BLOCK_N // sides
        dk_target, dv_target = host.fit_for_tma(dk), host.fit_for_tma(dv)
        if self.gamma_from_keys:
            shape = (*p.k.shape[:2], blocks * sides)
            self.dgamma_parts = torch.empty(shape, dtype=torch.float32, device=p.q.device)
        hopper.hopper_key_kernel[(blocks * p.k.shape[0] * p.k.shape[1],)](
            host.rows_map(q, hopper.BLOCK_M), host.rows_map(k, keys), host.rows_map(v, keys),
            host.rows_map(self.dout, hopper.BLOCK_M),
            host.gluon_map(lines, (1, 2 if self.stats else 1, hopper.BLOCK_M), swizzle=0),
            host.rows_map(dk_target, keys), host.rows_map(dv_target, keys),
            dq32, self.dgamma_parts, p.gamma,
            blocks, p.q.shape[1], p.groups, p.q.shape[2], m, p.band.right, self.uniform_factor,
            BLOCK_M=hopper.BLOCK_M, BLOCK_N=hopper.BLOCK_N, D=d, STAGES=hopper.STAGES, SIDES=sides,
            STATS=self.stats, UNIFORM=self.uniform, DGAMMA=self.gamma_from_keys,
            **host.only(self.options, "RIGHT", "GAMMA", "POWER"), num_warps=hopper.WARPS.value // sides,
        )  # fmt: skip
        for x, target in ((dk, dk_target), (dv, dv_target)):
            if x is not target:
                x.copy_(target)

    def _keys(self, q: Tensor, k: Tensor, v: Tensor, dq32: Tensor | None, dk: Tensor, dv: Tensor) -> None:
        p = self.p
        tile = tiles.backward_tile(p.q.dtype, p.q.shape[-1])
        blocks = host.cdiv(p.max_k, tile.n)
        if self.need_bias:
            self.dbias_parts = self.parts(blocks)
        if self.gamma_in_loop:
            self.dgamma_parts = self.parts(blocks)
        q_map = host.tensor_map(q, tile.m, self.block_d)
        key_kernel[(blocks * host.sequences(p) * p.k.shape[1],)](
            q_map, host.tensor_map(k, tile.n, self.block_d), host.tensor_map(v, tile.n, self.block_d),
            host.tensor_map(self.dout, tile.m, self.block_d),
            None if self.faded_dout is None else host.tensor_map(self.faded_dout, tile.m, self.block_d),
            q_map if dq32 is None else host.tensor_map(dq32, tile.m, self.block_d),
            self.nothing if dq32 is None else dq32, dk, dv, self.dbias_parts, self.dgamma_parts,
            self.dlog_rows, self.dlog_keys, *self._shared(blocks),
            *dk.stride()[:3], *dv.stride()[:3], *self._mask_strides(), self.lines.stride(1),
            0 if dq32 is None else dq32.shape[-1],
            BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_D=self.block_d,
            EVEN=host.is_even(p, p.max_q, tile.m) and host.is_even(p, p.max_k, tile.n),
            DBIAS=self.need_bias, DGAMMA=self.gamma_in_loop, DQ=dq32 is not None, **self._shared_options(),
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _queries(self, q: Tensor, k: Tensor, v: Tensor, dq: Tensor) -> None:
        p = self.p
        tile = tiles.query_tile(p.q.dtype, p.q.shape[-1])
        blocks = host.cdiv(p.max_q, tile.m)
        if self.gamma_from_queries:
            self.dgamma_parts = self.parts(blocks)
        query_kernel[(blocks * host.sequences(p) * p.q.shape[1],)](
            host.tensor_map(q, tile.m, self.block_d), host.tensor_map(k, tile.n, self.block_d),
            host.tensor_map(v, tile.n, self.block_d), host.tensor_map(self.dout, tile.m, self.block_d),
            dq, self.dgamma_parts, self.dlog_rows, *self._shared(blocks), *dq.stride()[:3], *self._mask_strides(),
            self.lines.stride(1),
            BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_D=self.block_d, EVEN=host.is_even(p, p.max_k, tile.n),
            DGAMMA=self.gamma_from_queries, **self._shared_options(), num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _finish(self, q: Tensor, dq32: Tensor, dq: Tensor, permuted: bool) -> None:
        p = self.p
        b, heads, n, d = p.q.shape
        blocks = host.cdiv(n, ROW_BLOCK)
        if self.gamma_from_queries:  # packed sequences together: gamma's gradient is the sum over all of them
            self.dgamma_parts = torch.empty((b, heads, blocks), dtype=torch.float32, device=p.q.device)
        finish_kernel[(blocks * b * heads,)](
            dq32, dq, q, self.dgamma_parts, self.dlog_rows, p.gamma, blocks, heads, n, d, *dq32.shape[2:],
            self.uniform_factor, *dq.stride()[:3], *q.stride()[:3],
            BLOCK_M=ROW_BLOCK, BLOCK_D=self.block_d, UNIFORM=self.uniform, DGAMMA=self.gamma_from_queries,
            DFADED=self.need_faded and not self.in_loop, PERMUTED=permuted,
            **host.only(self.options, "GAMMA", "POWER"), num_warps=4,
        )  # fmt: skip

    def _shared(self, blocks: int) -> tuple[Any, ...]:
        p = self.p
        _, heads, n, d = p.q.shape
        return (
            self.factors, self.slopes, self.bends, p.gamma, p.bias, host.as_bytes(p.key_mask),
            host.as_bytes(p.attn_mask), p.cu_q, p.cu_k, p.faded,
            blocks, heads, p.groups, n, p.k.shape[2], d, *p.band, self.uniform_factor, p.scale,
        )  # fmt: skip

    def _mask_strides(self) -> tuple[int, ...]:
        return (*host.broadcast_strides(self.p.key_mask, 1), *host.broadcast_strides(self.p.attn_mask, 4))

    def _shared_options(self) -> dict[str, Any]:
        return {
            "STATS": self.stats, "UNIFORM": self.uniform, "DFADED": self.need_faded,
            "IN_LOOP": self.in_loop and (self.need_gamma or self.need_faded), **self.options,
        }  # fmt: skip
