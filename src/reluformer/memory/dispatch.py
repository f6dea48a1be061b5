"""Dispatch of a lookup to its fastest implementation.

ReLU runs on the fused operator, softmax on PyTorch's own; the weights of all other activations are written out.
"""

import torch
from torch import Tensor

from reluformer.memory.activations import FUSED
from reluformer.memory.beside import beside_slots, is_better
from reluformer.memory.forgetting import decay
from reluformer.memory.fused import few_rows, fused_attention
from reluformer.memory.lookup import Lookup, bias_by_channel, changed, joined, up_to
from reluformer.memory.softmax import softmax_attention
from reluformer.memory.weights import write_out
from reluformer.ops import AttentionStats
from reluformer.ops.attention import Backend, ReturnStats

MOST_IN_HALF = 4  # highest power over its mass that float16 has the range for, provided that sums are kept small
UNDIVIDED_IN_HALF = 2  # highest power that float16 has the range for if nothing divides it, as in slots apart
FEW = 16  # most queries of a decoding step, such as the beams that look into one source


def look_up(
    call: Lookup, *, return_stats: ReturnStats = False, stats_batch: int | None = None, backend: Backend = "auto"
) -> tuple[Tensor, AttentionStats | None]:
    """The sums ``(B, Hq, N, D)`` and, if asked, the statistics of the first ``stats_batch`` sequences, or of all."""
    settings, n = call.settings, call.q.shape[2]
    if call.slots is not None and not is_better(call, return_stats):
        call = joined(call)
    few = _is_few(call, return_stats)
    if call.slots is not None:
        return beside_slots(call, few, return_stats, stats_batch, backend)
    if call.q.dtype == torch.float16 and FUSED.get(settings.activation, 1) > _most_in_half(call, few):
        with torch.autocast(call.q.device.type, enabled=False):
            out, stats = look_up(_in_float32(call), return_stats=return_stats, stats_batch=stats_batch, backend=backend)
        return out.to(call.q.dtype), stats
    call = bias_by_channel(call)
    fused = settings.activation in FUSED and (few or call.causal or call.log_forget is None)
    fades = None
    if call.log_forget is not None and (few or not fused):
        fades = decay(call.log_forget, n, None if n == 1 else call.limit)  # (B, Hq, N, M); log gates past a limit are 0
    if call.limit is not None:
        zeros_weigh = call.bias is not None or settings.centred
        if not (few and n == 1 and not zeros_weigh and call.key_mask is None):
            call = changed(call, attn_mask=up_to(call.limit, call.k.shape[2]), limit=None)
    if fused and few:
        return few_rows(call, fades), None
    if fused:
        return fused_attention(call, return_stats, stats_batch, backend)
    if settings.activation == "softmax" and not return_stats:
        return softmax_attention(call, fades), None
    return write_out(call, fades, bool(return_stats), stats_batch)


def _is_few(call: Lookup, return_stats: ReturnStats) -> bool:
    n = call.q.shape[2]
    return (  # the length comes after the gradient mode: in training torch.compile would make a graph for each answer
        call.settings.activation in FUSED
        and not return_stats
        and not torch.is_grad_enabled()
        and (n == 1 or (n <= FEW and not call.causal))
        and call.q.numel() > 0
        and call.k.numel() > 0
    )


def _most_in_half(call: Lookup, few: bool) -> int:
    """Highest power that float16 has the range for: kernels divide before they round, ``few_rows`` does not."""
    if few:
        return 1
    if call.settings.norm == "mass":
        return MOST_IN_HALF
    return UNDIVIDED_IN_HALF if call.gamma is None and call.settings.alpha == 0 else max(FUSED.values())


def _in_float32(call: Lookup) -> Lookup:
    names = ("q", "k", "v", "gamma", "bias", "log_forget")
    return changed(call, **{name: None if (x := getattr(call, name)) is None else x.float() for name in names})
