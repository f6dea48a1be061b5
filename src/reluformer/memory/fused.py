"""Lookups by ReLU and its powers: with the fused operator or, in a decoding step, with the fewest kernel launches."""

import torch
from torch import Tensor

from reluformer.memory.activations import FUSED
from reluformer.memory.centring import centre, less_mean
from reluformer.memory.lookup import Lookup, changed, over_mass, scale_of, visible_keys, wide_dtype
from reluformer.ops import AttentionStats, relu_attention
from reluformer.ops.attention import Backend, ReturnStats
from reluformer.ops.statistics import TINY


def fused_attention(
    call: Lookup, return_stats: ReturnStats, stats_batch: int | None, backend: Backend
) -> tuple[Tensor, AttentionStats | None]:
    """The sums and, if asked, the statistics of their rows, computed by :func:`~reluformer.relu_attention`."""
    settings, scale = call.settings, scale_of(call)
    if settings.centred:
        q = centre(
            call.q, call.k, call.bias, scale, causal=call.causal, key_mask=call.key_mask, attn_mask=call.attn_mask
        )
        call = changed(call, q=q, bias=None)
    bias, power, alpha, by_mass = call.bias, FUSED[settings.activation], settings.alpha, settings.norm == "mass"
    if by_mass:  # all factors of a row cancel
        alpha = 0.0
    if by_mass and call.q.dtype == torch.float16:  # then choose factors that keep the sums small
        scale, bias, alpha = scale / power, None if bias is None else bias / power, 1.0
    measured = by_mass and not call.counted  # the mass of every row is needed, asked for or not
    result = relu_attention(
        call.q, call.k, call.v, gamma=call.gamma, alpha=alpha, power=power, bias=bias, scale=scale, causal=call.causal,
        key_padding_mask=call.key_mask, attn_mask=call.attn_mask, log_forget=call.log_forget, backend=backend,
        return_stats=return_stats or ("mass_entropy" if measured else False),
        stats_batch=None if measured else stats_batch,
    )  # fmt: skip
    out, stats = result if isinstance(result, tuple) else (result, None)
    if by_mass:
        mass_of_all = stats.mass if stats is not None and measured else out[..., 0].to(wide_dtype(call))
        out = over_mass(out, mass_of_all)
        if stats is not None:
            mass, entropy, active = (x[:stats_batch] for x in stats)
            stats = AttentionStats((mass > TINY).to(mass), entropy, active)
    return out, stats if return_stats else None


def few_rows(call: Lookup, fades: Tensor | None) -> Tensor:
    """The sums of a decoding step, in the fewest launches: with so little to compute, these take the time."""
    q, settings, scale, limit = call.q, call.settings, scale_of(call), call.limit
    b, heads, n, d = q.shape
    key_heads, m = call.k.shape[1:3]
    power = FUSED[settings.activation]
    visible = visible_keys(call)
    plain = visible is None and call.bias is None and limit is None
    if plain and settings.norm != "mass":  # ReLU is homogeneous: a factor of all weights can multiply the scores
        scale = scale * (m / 2) ** (-settings.alpha / power)
    queries, keys = q.reshape(b * key_heads, -1, d), call.k.reshape(b * key_heads, m, d)
    weights = torch.baddbmm(q.new_empty(1, 1, 1), queries, keys.mT, beta=0, alpha=scale)  # (B * Hk, groups * N, M)
    if settings.centred:
        weights = less_mean(weights.view(b, heads, n, m), visible).view_as(weights)
    if call.bias is not None:
        weights = (weights.view(b, heads, n, m) + call.bias.to(weights.dtype)[:, None, None]).view_as(weights)
    weights.relu_()
    if visible is not None:
        weights.view(b, heads, n, m).masked_fill_(~visible, 0.0)
    if power > 1:
        weights = weights**power
    if fades is not None:
        weights.view(b, heads, n, m).mul_(fades.exp())
    out = torch.bmm(weights, call.v.reshape(b * key_heads, m, d)).view(b, heads, n, d)
    if settings.norm == "mass":  # all other factors of a row cancel
        return over_mass(out, _mass(call, weights, out))
    if limit is not None:  # keys past the limit are zeros: they weigh nothing without a mask, but must not be counted
        out = out * ((limit + 1) / 2).pow_(-settings.alpha).to(out.dtype)
    elif not plain:
        count = torch.full((1,), m, device=q.device) if visible is None else visible.sum(-1, keepdim=True)
        out = out * ((count.to(wide_dtype(call)).clamp_min(1) / 2) ** -settings.alpha).to(out.dtype)
    return out if call.gamma is None else out.div_(call.gamma[:, None, None])


def _mass(call: Lookup, weights: Tensor, out: Tensor) -> Tensor:
    """Mass of every row ``(B, Hq, N)``: channel 0 of the sums if values are counted, else the summed weights."""
    if call.counted:
        return out[..., 0].to(wide_dtype(call))
    return weights.sum(-1, dtype=wide_dtype(call)).view(out.shape[:3])
