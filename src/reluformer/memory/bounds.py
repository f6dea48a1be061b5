"""Certified bounds of whole memories: for an interval of inputs, an interval that contains every output.

Each function mirrors a module's ``forward`` in real arithmetic: what the module computes in floating point may leave
the interval by its own rounding. Inputs are ``(..., width)`` intervals, results are float64 intervals.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reluformer.memory.activations import FUSED
from reluformer.memory.attention import Attention
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.lookup import with_slots
from reluformer.memory.settings import MemorySettings
from reluformer.ops.bounds import relu_bounds, relu_mass_bounds, softmax_bounds
from reluformer.ops.intervals import EPS, WIDE, Interval, add, affine, products, scaled, total
from reluformer.ops.visibility import UNBOUNDED, Band, band_mask

BOUNDED = (*FUSED, "softmax")
PLAIN = {
    "query_key_norm": False, "centred": False, "constant_channel": False, "sentence_bias": None,
    "slot_activation": None, "forget": None, "token_shift": False, "output_gate": False,
}  # fmt: skip


def linear_bounds(layer: nn.Linear, x: Interval) -> Interval:
    """Bounds of the outputs ``(..., out)`` of a linear layer."""
    return affine(x, layer.weight, layer.bias)


def feedforward_bounds(memory: KeyValueMemory, x: Interval) -> Interval:
    """Bounds of the outputs ``(..., width)`` of a key-value memory, without dropout."""
    settings = memory.settings
    check_bounded(settings)
    scores = linear_bounds(memory.keys, x).map(lambda s: s.reshape(-1, settings.slots))  # (rows, slots)
    if settings.temperature != 1:
        scores = scaled(scores, 1 / settings.temperature)
    factor = _factor(settings, torch.tensor(float(settings.slots)), memory.gamma())
    out = _weighted(scores, memory.values.weight.mT, settings, 0.0, factor).map(lambda s: s.view(*x.shape[:-1], -1))
    return out if memory.values.bias is None else add(out, memory.values.bias)


def attention_bounds(
    attention: Attention,
    x: Interval,
    context: Interval | None = None,
    *,
    key_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> Interval:
    """Bounds of the outputs ``(B, N, width)`` of an attention; arguments as in its ``forward``.

    The output projection is folded into the values, head by head, so that the outputs are bounded directly: bounds of
    the channels before it would each be attained at a vertex of their own, and add up to looser ones.
    """
    settings = attention.settings
    check_bounded(settings)
    if attention.softmax_share is not None:
        raise ValueError("bounds need a memory as it is after training, got softmax_share")
    source = x if context is None else context
    groups = attention.heads // attention.key_heads
    q = _split(linear_bounds(attention.query, x), attention.heads)  # (B, H, N, D)
    k = _split(linear_bounds(attention.key, source), attention.key_heads)
    k = k.map(lambda t: t.repeat_interleave(groups, 1))
    folded = _fold(attention)
    v = _split(affine(source, folded.weight, folded.bias, folded.weight_error), attention.heads)  # (B, H, M, width)
    v = add(v, Interval(-folded.bias_error, folded.bias_error).map(lambda t: t.view(attention.heads, 1, -1)))
    if attention.slots is not None:
        batch, slots, m = x.shape[0], attention.slots, source.lower.shape[1]
        keys = slots.keys.to(WIDE).repeat_interleave(groups, 0).expand(batch, -1, -1, -1)
        k = _beside(Interval.of(keys), k)
        v = _beside(_slot_values(attention, batch), v)
        key_mask, attn_mask = (with_slots(mask, m, slots.slots) for mask in (key_mask, attn_mask))
    heads = lookup_bounds(
        q, k, v, settings, gamma=attention.gamma(), bias=attention.bias, causal=attention.causal and attn_mask is None,
        key_mask=key_mask, attn_mask=attn_mask,
    )  # fmt: skip
    return add(total(heads, 1), attention.output.bias)


def lookup_bounds(
    q: Interval,
    k: Interval,
    v: Interval,
    settings: MemorySettings,
    *,
    gamma: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    key_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> Interval:
    """Bounds of the sums ``(B, H, N, E)`` of ``q (B, H, N, D)`` in ``k (B, H, M, D)`` and ``v (B, H, M, E)``.

    Arguments as in a :class:`~reluformer.memory.lookup.Lookup`, with as many key heads as query heads.
    """
    check_bounded(settings)
    n, m = q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = products(q, k, scale / settings.temperature)  # (B, H, N, M)
    visible = torch.ones(1, 1, n, m, dtype=torch.bool, device=q.lower.device)
    if causal:
        visible = visible & band_mask(Band(UNBOUNDED, 0), n, m, q.lower.device)
    for mask in (attn_mask, None if key_mask is None else key_mask[:, None, None, :]):
        visible = visible if mask is None else visible & mask
    scores = scores.map(lambda s: s.masked_fill(~visible, -torch.inf))
    gamma = None if gamma is None else gamma[:, None, None]  # (H, 1, 1)
    factor = _factor(settings, visible.sum(-1, keepdim=True), gamma)  # (B, H, N, 1) or what broadcasts to it
    return _weighted(scores, v, settings, 0.0 if bias is None else bias[:, None, None], factor)


def check_bounded(settings: MemorySettings) -> None:
    """Raise ``ValueError`` for a memory whose bounds are not implemented."""
    if settings.activation not in BOUNDED:
        raise ValueError(f"bounds need activation to be one of {', '.join(BOUNDED)}, got {settings.activation!r}")
    if settings.norm not in ("none", "mass"):
        raise ValueError(f"bounds need norm to be none or mass, got {settings.norm!r}")
    for name, neutral in PLAIN.items():
        if getattr(settings, name) != neutral:
            raise ValueError(f"bounds need {name} = {neutral}, got {getattr(settings, name)}")


def _weighted(
    scores: Interval, values: Interval | Tensor, settings: MemorySettings, bias: Tensor | float, factor: Tensor | None
) -> Interval:
    """Bounds of the sums ``(..., N, E)`` of scores ``(..., N, M)`` and values ``(..., M, E)``."""
    by_mass = settings.norm == "mass"
    if settings.activation == "softmax":  # in which a bias of all scores in a row cancels
        out = softmax_bounds(scores, values)
        return out if by_mass or factor is None else scaled(out, factor)
    power = FUSED[settings.activation]
    if by_mass:
        return relu_mass_bounds(scores, values, power=power, bias=bias)
    return relu_bounds(scores, values, power=power, bias=bias, factor=1.0 if factor is None else factor)


def _factor(settings: MemorySettings, count: Tensor, gamma: Tensor | None) -> Tensor | None:
    """``1 / (gamma * (n / 2) ** alpha)``, or None for 1."""
    if settings.alpha == 0 and gamma is None:
        return None
    factor = (count.clamp_min(1).to(WIDE) / 2) ** -settings.alpha
    return factor if gamma is None else factor / gamma.to(WIDE)


@dataclass(frozen=True)
class _Folded:
    """Value and output projections of all heads as one: ``weight (H * width, width)``, ``bias (H * width,)``.

    The products are rounded; ``weight_error`` and ``bias_error`` bound by how much.
    """

    weight: Tensor
    bias: Tensor
    weight_error: Tensor
    bias_error: Tensor


def _fold(attention: Attention) -> _Folded:
    heads, d = attention.heads, attention.head_dim
    groups = heads // attention.key_heads
    out = _output_of_heads(attention)  # (H, width, D)
    value = attention.value.weight.to(WIDE).view(attention.key_heads, d, -1).repeat_interleave(groups, 0)
    bias = attention.value.bias.to(WIDE).view(attention.key_heads, d, 1).repeat_interleave(groups, 0)
    slack = (d + 8) * EPS
    return _Folded(
        (out @ value).flatten(0, 1),
        (out @ bias).flatten(),
        slack * (out.abs() @ value.abs()).flatten(0, 1).detach(),
        slack * (out.abs() @ bias.abs()).flatten().detach(),
    )


def _output_of_heads(attention: Attention) -> Tensor:
    weight = attention.output.weight.to(WIDE)  # (width, H * D)
    return weight.view(weight.shape[0], attention.heads, attention.head_dim).transpose(0, 1)  # (H, width, D)


def _slot_values(attention: Attention, batch: int) -> Interval:
    """Values of the learned slots after the output projection, ``(B, H, slots, width)``."""
    assert attention.slots is not None
    groups = attention.heads // attention.key_heads
    values, out = attention.slots.values.to(WIDE).repeat_interleave(groups, 0), _output_of_heads(attention)
    middle, error = values @ out.mT, (attention.head_dim + 8) * EPS * (values.abs() @ out.abs().mT).detach()
    return Interval(middle - error, middle + error).map(lambda t: t.expand(batch, -1, -1, -1))


def _beside(first: Interval, second: Interval) -> Interval:
    return Interval(torch.cat([first.lower, second.lower], 2), torch.cat([first.upper, second.upper], 2))


def _split(x: Interval, heads: int) -> Interval:
    """``(B, N, H * D)`` as ``(B, H, N, D)``."""
    return x.map(lambda t: t.view(*t.shape[:-1], heads, -1).transpose(1, 2))
