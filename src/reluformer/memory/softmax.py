"""Lookups by softmax, with PyTorch's own attention."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reluformer.memory.lookup import Lookup, count_of, row_factor, scale_of, visible_keys

MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN takes masks too, but its backward has failed on them


def softmax_attention(call: Lookup, fades: Tensor | None) -> Tensor:
    """The sums of a softmax memory; ``fades (B, Hq, N, M)`` is the decay ``D`` of one that forgets."""
    return scaled(call, _attend(call, fades))


def scaled(call: Lookup, out: Tensor) -> Tensor:
    """Sums of rows of mass 1, multiplied by the factors of the memory, if it has any."""
    if call.settings.norm == "mass" or (call.settings.alpha == 0 and call.gamma is None):
        return out
    return out * row_factor(call, count_of(call)).to(out.dtype)


def _attend(call: Lookup, fades: Tensor | None) -> Tensor:
    q, k, v, causal = call.q, call.k, call.v, call.causal
    n, m = q.shape[2], k.shape[2]
    scale, grouped = scale_of(call) / call.settings.temperature, q.shape[1] != k.shape[1]
    if fades is None and call.key_mask is None and call.attn_mask is None and (not causal or n in (1, m)):
        if n == 1:  # as a branch: under torch.compile with a dynamic length "n > 1" is no bool, which breaks the graph
            causal = False
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
    visible = visible_keys(call)
    if visible is None:
        visible = torch.ones(1, 1, n, m, dtype=torch.bool, device=q.device)
    # A row that sees nothing is NaN in some of PyTorch's kernels: let it see everything, then set it to zero.
    some = visible.any(-1, keepdim=True)
    mask = (visible | ~some).expand(q.shape[0], -1, n, m)
    if fades is not None:
        mask = fades.masked_fill(~mask, -torch.inf).to(q.dtype)
    with sdpa_kernel(MASKED) if q.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return out.masked_fill(~some, 0.0)
