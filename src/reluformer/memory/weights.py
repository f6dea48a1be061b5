"""The weights of a lookup, written out for any activation: the reference that the faster ways must agree with."""

from torch import Tensor

from reluformer.memory.activations import NORMALISED, weigh
from reluformer.memory.centring import less_mean
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
from reluformer.ops import AttentionStats
from reluformer.ops.statistics import entropy_from_sums, row_sums


def weights_of(call: Lookup, fades: Tensor | None = None) -> Tensor:
    """The weights ``(B, Hq, N, M)``, in float32 or wider: to be inspected a few rows at a time.

    ``fades (B, Hq, N, M)`` is ``D`` of a memory that forgets, see :func:`~reluformer.memory.forgetting.decay`.
    """
    settings, wide = call.settings, wide_dtype(call)
    if settings.forget is not None and fades is None:
        raise ValueError(f"fades must be given where settings.forget is {settings.forget!r}, got None")
    call = bias_by_channel(call)
    keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    scores = scale_of(call) / settings.temperature * (call.q.to(wide) @ keys.to(wide).transpose(-2, -1))
    visible, count = visible_keys(call), count_of(call)
    if settings.centred:
        scores = less_mean(scores, visible)
    if call.bias is not None:
        scores = scores + call.bias.to(wide)[:, None, None]
    if fades is not None and settings.activation in NORMALISED:
        scores = scores + fades.to(wide)
    weights = weigh(scores, settings.activation, count, visible)
    if fades is not None and settings.activation not in NORMALISED:
        weights = weights * fades.to(wide).exp()
    weights = weights * row_factor(call, count)
    return over_mass(weights, weights.sum(-1)) if settings.norm == "mass" else weights


def write_out(
    call: Lookup, fades: Tensor | None, return_stats: bool, stats_batch: int | None
) -> tuple[Tensor, AttentionStats | None]:
    """The sums, from the weights written out, and, if asked, the statistics of the first ``stats_batch`` sequences."""
    weights = weights_of(call, fades)
    out = weights.to(call.v.dtype) @ call.v.repeat_interleave(call.q.shape[1] // call.v.shape[1], dim=1)
    if not return_stats:
        return out, None
    weights = weights[:stats_batch]
    total, r_log_r, active = row_sums(weights.clamp_min(0))  # some activations have negative weights too
    return out, AttentionStats(weights.sum(-1), entropy_from_sums(total, r_log_r), active.detach())
