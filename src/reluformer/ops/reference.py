"""The specification of ReLU attention: plain PyTorch, quadratic memory, any dtype, differentiable any number of times.

    w_ij = relu(scale * q_i.k_j + bias_h) ** power / (gamma_h * (n_i / 2) ** alpha)        h_i = sum_j w_ij v_j

With forget gates, ``w_ij`` is multiplied by ``f_{j+1} ... f_i``, the gates between the key and the query. Every other
back end is tested against this file, so it is written to be read, not to be fast.
"""

import torch
from torch import Tensor

from reluformer.ops.forgetting import FAINTEST, accumulate, at_queries
from reluformer.ops.statistics import AttentionStats, entropy_from_sums, row_sums
from reluformer.ops.visibility import Band, band_mask, count_visible


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gamma: Tensor | float,
    alpha: float,
    power: int,
    bias: Tensor | None,
    scale: float,
    band: Band,
    key_mask: Tensor | None,
    attn_mask: Tensor | None,
    log_forget: Tensor | None,
) -> tuple[Tensor, AttentionStats]:
    """ReLU attention of ``q (B, Hq, N, D)`` over ``k, v (B, Hk, M, D)``.

    The masks are as in :func:`relu_attention`, with ``attn_mask`` in four dimensions.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)  # (B, Hq, M, D)
    n, m = q.shape[2], k.shape[2]

    score = scale * (q @ k.transpose(-2, -1))  # (B, Hq, N, M)
    if bias is not None:
        score = score + bias.to(score.dtype)[:, None, None]
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        score = score + attn_mask.to(score.dtype)
    hidden = ~band_mask(band, n, m, q.device)  # (N, M)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = hidden | ~attn_mask
    if key_mask is not None:
        hidden = hidden | ~key_mask[:, None, None, :]
    r = torch.relu(score.masked_fill(hidden, 0.0)) ** power
    if log_forget is not None:
        c = accumulate(log_forget)  # (B, Hq, M)
        faded = at_queries(c, n)[..., None] - c[:, :, None]  # (B, Hq, N, M)
        faded = faded.masked_fill(hidden, 0.0)  # hidden keys may be later than the query, where it would grow
        r = r * faded.exp().masked_fill(faded < FAINTEST, 0.0).to(r.dtype)

    wide = torch.promote_types(q.dtype, torch.float32)
    count = count_visible(band, n, m, key_mask, attn_mask, q.device).to(wide)  # (B|1, Hq|1, N)
    per_head = gamma.to(wide)[:, None] if isinstance(gamma, Tensor) else gamma
    divisor = per_head * (count.clamp_min(1) / 2) ** alpha  # clamped: a row without keys has no weights to divide
    out = (r / divisor[..., None].to(r.dtype)) @ v

    total, r_log_r, active = row_sums(r.to(wide))
    return out, AttentionStats(total / divisor, entropy_from_sums(total, r_log_r), active.detach())
