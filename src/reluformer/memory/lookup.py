"""One lookup: queries in keys and values, whatever the activation, by the fastest way at hand.

    w_ij = activation(scale * q_i.k_j + bias_h) / (gamma_h * (n_i / 2) ** alpha)        h_i = sum_j w_ij v_j

A memory that is centred takes the mean of a row from its scores first, see centring.py. A forget gate adds ``D_ij`` to
the scores of an activation that normalises, and multiplies the weights of another by ``exp(D_ij)``. With
``norm="mass"`` a row is divided by the sum of its weights instead, in which all its factors cancel.

ReLU runs on the fused operator, softmax on PyTorch's own; the rest of the family is written out.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reluformer.memory.activations import FUSED, NORMALISED, weigh
from reluformer.memory.centring import centre, less_mean
from reluformer.memory.constant import with_bias
from reluformer.memory.forgetting import decay
from reluformer.memory.settings import MemorySettings
from reluformer.ops import AttentionStats, relu_attention
from reluformer.ops.attention import Backend, ReturnStats
from reluformer.ops.statistics import TINY, entropy_from_sums, row_sums
from reluformer.ops.visibility import UNBOUNDED, Band, band_mask, count_visible

MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN takes masks too, and has failed backwards with them
MOST_IN_HALF = 4  # the power over its mass that float16 has the range for, in sums that are kept small
FEW = 16  # queries whose weights are written out: beams that look into one source


def lookup(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    settings: MemorySettings,
    *,
    gamma: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    key_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    limit: Tensor | None = None,
    log_forget: Tensor | None = None,
    return_stats: ReturnStats = False,
    stats_batch: int | None = None,
    counted: bool = False,
    backend: Backend = "auto",
) -> tuple[Tensor, AttentionStats | None]:
    """Look up ``q (B, Hq, N, D)`` in ``k, v (B, Hk, M, D)``.

    Masks are boolean, True = may be seen: ``key_mask (B, M)``, ``attn_mask`` broadcasts to ``(B, Hq, N, M)``; causal is
    bottom-right aligned. ``limit (N,)``, the last key that each query may see, takes the place of a mask where all keys
    behind the last are zeros. ``gamma`` and ``bias`` are ``(Hq,)``. ``log_forget (B, Hq, M)`` is the logarithm of the
    forget gate of every key's token. ``counted`` says that the first channel of every value is 1, and hence that of a
    sum the mass of its row: division by the mass needs no statistics then. Returns the sums and, if asked, their
    statistics, those of the first ``stats_batch`` sequences or of all.
    """
    n = q.shape[2]
    few_rows = (  # the length comes last: in training torch.compile would make a graph for each answer
        settings.activation in FUSED
        and not return_stats
        and not torch.is_grad_enabled()
        and (n == 1 or (n <= FEW and not causal))
        and q.numel() > 0
        and k.numel() > 0
    )
    if q.dtype == torch.float16 and FUSED.get(settings.activation, 1) > _most_in_half(settings, few_rows):
        gamma, bias, log_forget = (None if x is None else x.float() for x in (gamma, bias, log_forget))
        with torch.autocast(q.device.type, enabled=False):
            out, stats = lookup(
                q.float(), k.float(), v.float(), settings, gamma=gamma, bias=bias, scale=scale, causal=causal,
                key_mask=key_mask, attn_mask=attn_mask, limit=limit, log_forget=log_forget, return_stats=return_stats,
                stats_batch=stats_batch, counted=counted, backend=backend,
            )  # fmt: skip
        return out.to(q.dtype), stats
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, bias = _by_channel(q, bias, settings, scale)
    fused = settings.activation in FUSED and (few_rows or causal or log_forget is None)
    fades = None
    if log_forget is not None and (few_rows or not fused):
        fades = decay(log_forget, n, None if n == 1 else limit)  # (B, Hq, N, M); behind the limit nothing fades
    zeros_weigh = bias is not None or settings.centred
    if limit is not None and not (few_rows and n == 1 and not zeros_weigh and key_mask is None):
        attn_mask, limit = up_to(limit, k.shape[2]), None
    if fused:
        if few_rows:
            return _few_rows(q, k, v, settings, gamma, bias, scale, key_mask, attn_mask, limit, fades), None
        if settings.centred:
            q = centre(q, k, bias, scale, causal=causal, key_mask=key_mask, attn_mask=attn_mask)
            bias = None
        power, alpha, by_mass = FUSED[settings.activation], settings.alpha, settings.norm == "mass"
        if by_mass:  # in which all factors cancel
            alpha = 0.0
        if by_mass and q.dtype == torch.float16:  # take those that keep sums small
            scale, bias, alpha = scale / power, None if bias is None else bias / power, 1.0
        result = relu_attention(
            q, k, v, gamma=gamma, alpha=alpha, power=power, bias=bias, scale=scale, causal=causal,
            key_padding_mask=key_mask, attn_mask=attn_mask, log_forget=log_forget, backend=backend,
            return_stats=return_stats or ("mass_entropy" if by_mass and not counted else False),
            stats_batch=None if by_mass and not counted else stats_batch,
        )  # fmt: skip
        out, stats = result if isinstance(result, tuple) else (result, None)
        if by_mass:
            if counted:
                mass_of_all = out[..., 0].to(torch.promote_types(out.dtype, torch.float32))
            else:
                assert stats is not None
                mass_of_all = stats.mass
            out = _over_mass(out, mass_of_all)
            if stats is not None:
                mass, entropy, active = (x[:stats_batch] for x in stats)
                stats = AttentionStats((mass > TINY).to(mass), entropy, active)
        return out, stats if return_stats else None
    if settings.activation == "softmax" and not return_stats:
        out = _softmax(q, k, v, scale / settings.temperature, causal, key_mask, attn_mask, fades)
        if settings.norm == "mass" or (settings.alpha == 0 and gamma is None):
            return out, None
        wide = torch.promote_types(q.dtype, torch.float32)
        factor = _row_factor(settings.alpha, gamma, _count(q, k, causal, key_mask, attn_mask).to(wide))
        return out * factor.to(out.dtype), None
    return _written_out(
        q, k, v, settings, gamma, bias, scale, causal, key_mask, attn_mask, fades, bool(return_stats), stats_batch
    )


def _most_in_half(settings: MemorySettings, few_rows: bool) -> int:
    """The highest power that float16 has the range for: kernels divide before they round, few rows do not."""
    if few_rows:
        return 1
    return MOST_IN_HALF if settings.norm == "mass" else max(FUSED.values())


def weights_of(
    q: Tensor,
    k: Tensor,
    settings: MemorySettings,
    *,
    gamma: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    key_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    fades: Tensor | None = None,
) -> Tensor:
    """The weights themselves, ``(B, Hq, N, M)``, in float32 or wider: for looking at, a few rows at a time.

    ``fades (B, Hq, N, M)`` is ``D`` of a memory that forgets, see :func:`~reluformer.memory.forgetting.decay`.
    """
    if settings.forget is not None and fades is None:
        raise ValueError(f"fades must be given where settings.forget is {settings.forget!r}, got None")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, bias = _by_channel(q, bias, settings, scale)
    wide = torch.promote_types(q.dtype, torch.float32)
    n, m = q.shape[2], k.shape[2]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = scale / settings.temperature * (q.to(wide) @ k.to(wide).transpose(-2, -1))
    visible = _visible(n, m, causal, key_mask, attn_mask, q.device)
    if settings.centred:
        scores = less_mean(scores, visible)
    if bias is not None:
        scores = scores + bias.to(wide)[:, None, None]
    count = _count(q, k, causal, key_mask, attn_mask).to(wide)
    if fades is not None and settings.activation in NORMALISED:
        scores = scores + fades.to(wide)
    weights = weigh(scores, settings.activation, count, visible)
    if fades is not None and settings.activation not in NORMALISED:
        weights = weights * fades.to(wide).exp()
    weights = weights * _row_factor(settings.alpha, gamma, count)
    return _over_mass(weights, weights.sum(-1)) if settings.norm == "mass" else weights


def _by_channel(q: Tensor, bias: Tensor | None, settings: MemorySettings, scale: float) -> tuple[Tensor, Tensor | None]:
    """Queries that carry the bias, and no bias beside them, where there is a channel for it; centring fills its own."""
    if bias is None or settings.centred or not settings.constant_channel:
        return q, bias
    return with_bias(q, bias, scale), None


def _over_mass(x: Tensor, mass: Tensor) -> Tensor:
    """``x (..., D)`` divided by the mass of its rows ``(...)``; in a dead row it is zero, and stays so."""
    return (x / mass.where(mass > TINY, 1.0)[..., None]).to(x.dtype)


def _row_factor(alpha: float, gamma: Tensor | None, count: Tensor) -> Tensor:
    """``1 / (gamma * (n_i / 2) ** alpha)`` of every row, from the counts ``(B|1, H|1, N, 1)``."""
    factor = (count.clamp_min(1) / 2) ** -alpha
    return factor if gamma is None else factor / gamma.to(factor.dtype)[:, None, None]


def _band(causal: bool) -> Band:
    return Band(UNBOUNDED, 0 if causal else UNBOUNDED)


def _count(q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None, attn_mask: Tensor | None) -> Tensor:
    n, m = q.shape[2], k.shape[2]
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:2], n, m)
    return count_visible(_band(causal), n, m, key_mask, attn_mask, q.device)[..., None]  # (B|1, H|1, N, 1)


def up_to(limit: Tensor, m: int) -> Tensor:
    """The mask ``(1, 1, N, M)`` of keys up to each query's last one, ``limit (N,)``."""
    return (torch.arange(m, device=limit.device) <= limit[:, None])[None, None]


def _visible(
    n: int, m: int, causal: bool, key_mask: Tensor | None, attn_mask: Tensor | None, device: torch.device
) -> Tensor | None:
    """All masks as one, ``(B|1, H|1, N|1, M)``; None if everything may be seen."""
    masks = [] if attn_mask is None else [attn_mask]
    if causal and n > 1:
        masks.append(band_mask(_band(True), n, m, device)[None, None])
    if key_mask is not None:
        masks.append(key_mask[:, None, None, :])
    visible = None
    for mask in masks:
        visible = mask if visible is None else visible & mask
    return visible


def _few_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    settings: MemorySettings,
    gamma: Tensor | None,
    bias: Tensor | None,
    scale: float,
    key_mask: Tensor | None,
    attn_mask: Tensor | None,
    limit: Tensor | None,
    fades: Tensor | None,
) -> Tensor:
    """A step of decoding: so little to compute that launches take the time, and these are the fewest."""
    b, heads, n, d = q.shape
    key_heads, m = k.shape[1:3]
    power = FUSED[settings.activation]
    visible = _visible(n, m, False, key_mask, attn_mask, q.device)
    plain = visible is None and bias is None and limit is None
    if plain and settings.norm != "mass":  # a factor of all weights is one of all scores
        scale = scale * (m / 2) ** (-settings.alpha / power)
    queries, keys = q.reshape(b * key_heads, -1, d), k.reshape(b * key_heads, m, d)
    weights = torch.baddbmm(q.new_empty(1, 1, 1), queries, keys.mT, beta=0, alpha=scale)  # (B * Hk, groups * N, M)
    if settings.centred:
        weights = less_mean(weights.view(b, heads, n, m), visible).view_as(weights)
    if bias is not None:
        weights = (weights.view(b, heads, n, m) + bias.to(weights.dtype)[:, None, None]).view_as(weights)
    weights.relu_()
    if visible is not None:
        weights.view(b, heads, n, m).masked_fill_(~visible, 0.0)
    if power > 1:
        weights = weights**power
    if fades is not None:
        weights.view(b, heads, n, m).mul_(fades.exp())
    out = torch.bmm(weights, v.reshape(b * key_heads, m, d)).view(b, heads, n, d)
    if settings.norm == "mass":  # all other factors of a row cancel
        wide = torch.promote_types(weights.dtype, torch.float32)
        return _over_mass(out, weights.sum(-1, dtype=wide).view(b, heads, n))
    if limit is not None:  # zeros have no weight, hence no mask; but they do not count
        out = out * ((limit + 1) / 2).pow_(-settings.alpha).to(out.dtype)
    elif not plain:
        count = torch.full((1,), m, device=q.device) if visible is None else visible.sum(-1, keepdim=True)
        count = count.to(torch.promote_types(q.dtype, torch.float32))
        out = out * ((count.clamp_min(1) / 2) ** -settings.alpha).to(out.dtype)
    return out if gamma is None else out.div_(gamma[:, None, None])


def _softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    causal: bool,
    key_mask: Tensor | None,
    attn_mask: Tensor | None,
    fades: Tensor | None,
) -> Tensor:
    n, m = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if fades is None and key_mask is None and attn_mask is None and (not causal or n in (1, m)):
        if n == 1:  # a branch: of a length that torch.compile leaves open, "n > 1" is no bool, which breaks its graph
            causal = False
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    visible = _visible(n, m, causal, key_mask, attn_mask, q.device)
    if visible is None:
        visible = torch.ones(1, 1, n, m, dtype=torch.bool, device=q.device)
    # A row that sees nothing is NaN in some of PyTorch's kernels: let it see everything, then take it away.
    some = visible.any(-1, keepdim=True)
    mask = (visible | ~some).expand(q.shape[0], -1, n, m)
    if fades is not None:
        mask = fades.masked_fill(~mask, -torch.inf).to(q.dtype)
    with sdpa_kernel(MASKED) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return out.masked_fill(~some, 0.0)


def _written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    settings: MemorySettings,
    gamma: Tensor | None,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    key_mask: Tensor | None,
    attn_mask: Tensor | None,
    fades: Tensor | None,
    return_stats: bool,
    stats_batch: int | None,
) -> tuple[Tensor, AttentionStats | None]:
    weights = weights_of(
        q, k, settings, gamma=gamma, bias=bias, scale=scale, causal=causal, key_mask=key_mask, attn_mask=attn_mask,
        fades=fades,
    )  # fmt: skip
    out = weights.to(v.dtype) @ v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if not return_stats:
        return out, None
    weights = weights[:stats_batch]
    total, r_log_r, active = row_sums(weights.clamp_min(0))  # some of the family have negative weights too
    return out, AttentionStats(weights.sum(-1), entropy_from_sums(total, r_log_r), active.detach())
