"""Lookups in a sequence and in many slots beside it, without a copy of the slots for every sequence.

All queries of a batch look into the slots together, as one sequence, and the result is combined with what each finds in
its own sequence. Under ReLU the two sums just add up. Under softmax the slots get one more key, which stands for all
keys of a query's own sequence: its score is their logsumexp, so that its weight is their share.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.memory.activations import FUSED
from reluformer.memory.fused import few_rows, fused_attention
from reluformer.memory.lookup import (
    Lookup,
    bias_by_channel,
    by_sequence,
    changed,
    count_of,
    over_mass,
    row_factor,
    scale_of,
    together,
    visible_keys,
    wide_dtype,
)
from reluformer.memory.settings import MemorySettings
from reluformer.memory.softmax import scaled
from reluformer.ops import AttentionStats
from reluformer.ops.attention import Backend, ReturnStats
from reluformer.ops.statistics import TINY, entropy_from_sums

MANY = 256  # number of slots from which a second lookup is cheaper than copies of them
LONGEST = 1024  # most keys of a sequence over which softmax is written out
PARTS = 3  # channels for the score of the sequence, which is split into as many parts
ROOM = 8  # channels appended to hold them: kernels take eight at a time
HIDDEN = -1e4  # score of a hidden key, hence nearly that of a sequence of which a query sees nothing
BARE = {name: MemorySettings(name, alpha=0.0, gamma="none") for name in FUSED}  # no factors: sums just add up


def is_better(call: Lookup, return_stats: ReturnStats) -> bool:
    """Whether :func:`beside_slots` can compute a lookup with slots, and is faster than copying them."""
    assert call.slots is not None
    if call.slots[0].shape[1] < MANY or call.q.dtype == torch.float16 or not (call.q.numel() and call.k.numel()):
        return False
    if call.settings.activation == "softmax":
        return not return_stats and call.k.shape[2] <= LONGEST
    return call.settings.activation in FUSED and not call.settings.centred


def beside_slots(
    call: Lookup, few: bool, return_stats: ReturnStats, stats_batch: int | None, backend: Backend
) -> tuple[Tensor, AttentionStats | None]:
    """The sums of a lookup with slots and, if asked, their statistics; ``few`` takes the path of fewest launches."""
    if call.settings.activation == "softmax":
        return scaled(call, _softmax(call)), None
    call = bias_by_channel(call)
    by_mass = call.settings.norm == "mass"
    measured = return_stats or ("mass_entropy" if by_mass and not call.counted else False)
    own, shared = _parts(call)
    q = call.q
    if few and not measured:
        out, stats = few_rows(own, None) + by_sequence(few_rows(shared, None), q), None
    else:
        (first, its_stats), (rest, other_stats) = (fused_attention(x, measured, None, backend) for x in (own, shared))
        out, stats = first + by_sequence(rest, q), _added(its_stats, other_stats, q)
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


def _parts(call: Lookup) -> tuple[Lookup, Lookup]:
    """Split into a lookup in each sequence and one of all queries in the slots; neither scales its sums."""
    assert call.slots is not None
    keys, values = call.slots
    own = changed(call, settings=BARE[call.settings.activation], gamma=None, slots=None)
    return own, changed(
        own, q=together(call.q), k=keys[None], v=values[None], causal=False, key_mask=None, attn_mask=None
    )


def _added(own: AttentionStats | None, shared: AttentionStats | None, q: Tensor) -> AttentionStats | None:
    """Statistics of rows over the keys of both lookups together."""
    if own is None or shared is None:
        return None
    mass, entropy, active = (by_sequence(x, q) if x.dim() > 1 else x for x in shared)
    total = own.mass + mass
    r_log_r = _r_log_r(own.mass, own.entropy) + _r_log_r(mass, entropy)
    return AttentionStats(total, entropy_from_sums(total, r_log_r), own.active + active)


def _r_log_r(mass: Tensor, entropy: Tensor) -> Tensor:
    """``sum r log r`` of a row, the inverse of :func:`~reluformer.ops.statistics.entropy_from_sums`."""
    return mass * (mass.clamp_min(TINY).log() - entropy)


def _softmax(call: Lookup) -> Tensor:
    """The sums under softmax over the slots and the keys of the sequence."""
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
    channels = []
    for _ in range(PARTS - 1):  # split into parts exact in bfloat16, which may be all that the kernel computes in
        channels.append(score.bfloat16().to(wide))
        score = score - channels[-1]
    channels = [x.to(q.dtype) for x in (*channels, score)]
    q = F.pad(torch.cat([q, *channels], dim=-1), (0, ROOM - PARTS))
    keys, values = (F.pad(x, (0, ROOM, 0, 1)) for x in (keys, values))  # (Hk, S + 1, D + ROOM)
    sequence = torch.zeros_like(keys[:, -1:])
    sequence[..., d : d + PARTS] = 1
    keys = torch.cat([keys[:, :-1], sequence], dim=1)
    values = torch.cat([values[:, :-1], sequence], dim=1)
    grouped = q.shape[1] != keys.shape[0]
    found = F.scaled_dot_product_attention(together(q), keys[None], values[None], scale=scale, enable_gqa=grouped)
    found = by_sequence(found, q)  # (B, H, N, D + ROOM)
    return found[..., :d] + found[..., d : d + 1] * own


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Dot products ``(B, H, N, M)``; query heads that share a key head are consecutive."""
    b, heads, n, d = q.shape
    return (q.reshape(b, k.shape[1], -1, d) @ k.mT).view(b, heads, n, -1)


def _sums(weights: Tensor, v: Tensor) -> Tensor:
    b, heads, n, m = weights.shape
    return (weights.view(b, v.shape[1], -1, m) @ v).view(b, heads, n, -1)
