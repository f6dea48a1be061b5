"""The keys of a sequence and, beside them, many slots that all sequences share: without a copy of these for each.

All queries of a batch look into the slots together, as one sequence, and what they find there is put to what each finds
in its own. Sums by ReLU just add up. Under softmax the slots have one key more, which stands for all keys of a query's
own sequence: its score is the logarithm of their exponentials' sum, so that its weight is their share.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.memory.activations import FUSED
from reluformer.memory.lookup import (
    Lookup,
    bias_by_channel,
    count_of,
    over_mass,
    row_factor,
    scale_of,
    visible_keys,
    wide_dtype,
)
from reluformer.ops import AttentionStats, relu_attention
from reluformer.ops.attention import Backend, ReturnStats
from reluformer.ops.statistics import TINY, entropy_from_sums

MANY = 256  # slots from which on their copies are more trouble than a second lookup
LONGEST = 1024  # keys of a sequence whose softmax is written out
ROOM = 8  # channels for the score of the sequence, in parts: kernels take eight at a time
HIDDEN = -1e4  # that score where a query sees nothing of its own


def is_better(call: Lookup, return_stats: ReturnStats) -> bool:
    """Whether there is this way for a lookup with slots, and it pays."""
    assert call.slots is not None
    if call.slots[0].shape[1] < MANY or call.q.dtype == torch.float16 or not (call.q.numel() and call.k.numel()):
        return False
    if call.settings.activation == "softmax":
        return not return_stats and call.k.shape[2] <= LONGEST
    return call.settings.activation in FUSED and not call.settings.centred


def beside_slots(
    call: Lookup, few: bool, return_stats: ReturnStats, stats_batch: int | None, backend: Backend
) -> tuple[Tensor, AttentionStats | None]:
    """The sums of a lookup with slots and, if asked, their statistics; ``few`` rows in few launches."""
    if call.settings.activation == "softmax":
        out = _softmax(call)
        plain = call.settings.norm == "mass" or (call.settings.alpha == 0 and call.gamma is None)
        return out if plain else out * row_factor(call, count_of(call)).to(out.dtype), None
    call = bias_by_channel(call)
    by_mass = call.settings.norm == "mass"
    measured = return_stats or ("mass_entropy" if by_mass and not call.counted else False)
    if few and not measured:
        out, stats = _few_rows(call), None
    else:
        out, stats = _add(call, measured, backend)
    if by_mass:
        mass = stats.mass if stats is not None and not call.counted else out[..., 0].to(wide_dtype(call))
        out = over_mass(out, mass)
        stats = None if stats is None else stats._replace(mass=(stats.mass > TINY).to(stats.mass))
    else:
        factor = row_factor(call, count_of(call))  # (B|1, H|1, N, 1)
        out = (out * factor).to(out.dtype)
        stats = None if stats is None else stats._replace(mass=stats.mass * factor[..., 0])
    if stats is None or not return_stats:
        return out, None
    return out, AttentionStats(*(x[:stats_batch] for x in stats))


def _together(q: Tensor) -> Tensor:
    """Queries ``(B, H, N, D)`` as those of one sequence, ``(1, H, B * N, D)``: a view, as models make them."""
    return q.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None]


def _apart(x: Tensor, b: int) -> Tensor:
    """Rows ``(1, H, B * N, ...)`` of all queries as those of each sequence, ``(B, H, N, ...)``."""
    return x[0].reshape(x.shape[1], b, -1, *x.shape[3:]).transpose(0, 1)


def _add(call: Lookup, return_stats: ReturnStats, backend: Backend) -> tuple[Tensor, AttentionStats | None]:
    """Sums of powers of ReLU and what these statistics are of, neither scaled."""
    assert call.slots is not None
    keys, values = call.slots
    options: dict[str, Any] = {
        "alpha": 0.0, "power": FUSED[call.settings.activation], "bias": call.bias, "scale": scale_of(call),
        "backend": backend, "return_stats": return_stats,
    }  # fmt: skip
    seen: dict[str, Any] = {"causal": call.causal, "key_padding_mask": call.key_mask, "attn_mask": call.attn_mask}
    b = call.q.shape[0]
    own: Any = relu_attention(call.q, call.k, call.v, **seen, **options)
    shared: Any = relu_attention(_together(call.q), keys[None], values[None], **options)
    if not return_stats:
        return own + _apart(shared, b), None
    (out, first), (rest, second) = own, shared
    second = [_apart(x, b) if x.dim() > 1 else x for x in second]
    (mass, entropy, active), (more, its_entropy, others) = first, second
    total = mass + more
    r_log_r = _r_log_r(mass, entropy) + _r_log_r(more, its_entropy)
    return out + _apart(rest, b), AttentionStats(total, entropy_from_sums(total, r_log_r), active + others)


def _r_log_r(mass: Tensor, entropy: Tensor) -> Tensor:
    """The sum that an entropy was made of, see :func:`~reluformer.ops.statistics.entropy_from_sums`."""
    return mass * (mass.clamp_min(TINY).log() - entropy)


def _few_rows(call: Lookup) -> Tensor:
    """The same sums, without statistics, written out."""
    assert call.slots is not None
    keys, values = call.slots
    own = _written_out(call, call.q, call.k, call.v, visible_keys(call))
    shared = _written_out(call, _together(call.q), keys[None], values[None], None)
    return own + _apart(shared, len(call.q))


def _written_out(call: Lookup, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    weights = _scores(q, k) * scale_of(call)  # (B, H, N, M)
    if call.bias is not None:
        weights = weights + call.bias.to(weights.dtype)[:, None, None]
    weights = weights.relu() ** FUSED[call.settings.activation]
    if visible is not None:
        weights = weights.masked_fill(~visible, 0.0)
    return _sums(weights, v)


def _softmax(call: Lookup) -> Tensor:
    """The sums of softmax over the slots and the keys of the sequence."""
    assert call.slots is not None
    keys, values = call.slots
    q, d, wide = call.q, call.q.shape[-1], wide_dtype(call)
    scale = scale_of(call) / call.settings.temperature
    scores = _scores(q, call.k).to(wide) * scale  # (B, H, N, M)
    visible = visible_keys(call)
    if visible is not None:
        scores = scores.masked_fill(~visible, HIDDEN)
    own = _sums(scores.softmax(-1).to(call.v.dtype), call.v)
    score = scores.logsumexp(-1, keepdim=True) / scale  # (B, H, N, 1)
    high = score.to(q.dtype)  # two numbers of half precision are as good as one of twice that
    channels = [high, (score - high.to(wide)).to(q.dtype)]
    q = F.pad(torch.cat([q, *channels], dim=-1), (0, ROOM - len(channels)))
    keys, values = (F.pad(x, (0, ROOM, 0, 1)) for x in (keys, values))  # (Hk, S + 1, D + ROOM)
    sequence = torch.zeros_like(keys[:, -1:])
    sequence[..., d : d + len(channels)] = 1
    keys = torch.cat([keys[:, :-1], sequence], dim=1)
    values = torch.cat([values[:, :-1], sequence], dim=1)
    grouped = q.shape[1] != keys.shape[0]
    found = F.scaled_dot_product_attention(_together(q), keys[None], values[None], scale=scale, enable_gqa=grouped)
    found = _apart(found, len(q))  # (B, H, N, D + ROOM)
    return found[..., :d] + found[..., d : d + 1] * own


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Products ``(B, H, N, M)``; query heads that share a key head stand together."""
    b, heads, n, d = q.shape
    return (q.reshape(b, k.shape[1], -1, d) @ k.mT).view(b, heads, n, -1)


def _sums(weights: Tensor, v: Tensor) -> Tensor:
    b, heads, n, m = weights.shape
    return (weights.view(b, v.shape[1], -1, m) @ v).view(b, heads, n, -1)
