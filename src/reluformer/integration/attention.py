"""``attn_implementation="reluformer"``: ReLU attention for any model that asks transformers for its attention.

Two functions belong together: one attends, one makes the masks. Without the second, transformers drops masks silently.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from reluformer.integration.memory import AttentionMemory
from reluformer.memory.settings import MemorySettings

NAME = "reluformer"
HIDDEN = -1e4  # hides a score: models add this, -65504, -1e9, the least float of their dtype or -inf
UNCONVERTED = AttentionMemory(MemorySettings(gamma="none"), heads=0)  # for models that only set attn_implementation
UNKNOWN = ("softcap", "s_aux", "cache")  # options of softmax or of paged caches: ignoring them would change the result


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """ReLU attention with the signature that transformers calls.

    There is no attention dropout: weights that do not sum to 1 have nothing to make up for, so ``dropout`` is ignored.

    Args:
        module: Attention module of the model. Its ``relu_memory`` does the lookup; where that is None, ``convert`` left
            the module as it was, hence softmax. A module that was never converted gets gamma 1.
        query: ``(B, Hq, N, D)``.
        key: ``(B, Hk, M, D)``; ``Hq`` is a multiple of ``Hk``.
        value: ``(B, Hk, M, D)``.
        attention_mask: Broadcasts to ``(B, Hq, N, M)``: boolean, True = may be seen, or floating point, added to the
            scores. None leaves causality to ``is_causal``.
        dropout: Ignored, except by softmax.
        scaling: Factor of the scores; None for ``1 / sqrt(D)``.
        is_causal: Whether later keys are hidden, if there is no mask; None for the module's own ``is_causal``.
        position_bias: Added to the scores, broadcasts to ``(B, Hq, N, M)`` (T5).
        **options: Options of other implementations; those that would change the result are refused.

    Returns:
        The output ``(B, N, Hq, D)``, and None in place of the weights, which never exist as a whole.
    """
    memory = getattr(module, "relu_memory", UNCONVERTED)
    if memory is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, is_causal=is_causal, position_bias=position_bias, **options,
        )  # type: ignore[no-any-return]  # fmt: skip
    if memory is UNCONVERTED and hasattr(getattr(module, "config", None), "relu_memory"):
        raise RuntimeError(
            f"{type(module).__name__} belongs to a converted model but was loaded without its memories: "
            "load the model through transformers' Auto classes, after `import reluformer.integration`"
        )
    for name in UNKNOWN:
        if options.get(name) is not None:
            raise ValueError(f"attn_implementation {NAME!r} has no {name}")
    if options.get("output_attentions"):
        raise ValueError(f"output_attentions must be False: attn_implementation {NAME!r} never has the whole weights")
    if attention_mask is not None and attention_mask.dim() != 4:
        raise ValueError(f"attention_mask must have 4 dimensions, got shape {tuple(attention_mask.shape)}")

    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    causal = is_causal and attention_mask is None
    key_mask = None
    if attention_mask is not None and attention_mask.dtype == torch.bool and attention_mask.shape[1:3] == (1, 1):
        key_mask, attention_mask = attention_mask[:, 0, 0].expand(key.shape[0], -1), None  # (B, M), far less to read
    attn_mask = _combine(attention_mask, position_bias)
    out = memory(
        query, key, value, scale=scaling, causal=causal, key_padding_mask=key_mask, attn_mask=attn_mask
    )  # (B, Hq, N, D)
    return out.transpose(1, 2).contiguous(), None


def _combine(mask: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Mask and bias as one mask for the operator, in which hidden means False or -inf, never a merely large number."""
    if mask is not None and mask.is_floating_point():
        mask = mask.masked_fill(mask <= HIDDEN, -torch.inf)
    if mask is None or bias is None:
        return bias if mask is None else mask
    return bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **options: Any,
) -> Tensor | None:
    """Boolean mask, True = may be seen, or None where causality and the lengths say it all.

    Arguments are those of transformers' ``sdpa_mask``. Padding alone gives ``(B, 1, 1, M)``, all else ``(B, 1, N, M)``.
    """
    # Without a mask the last query is aligned with the last key. In a static cache it is not, since unused room
    # follows it. The offset may be a tensor, which is not read, since that would wait for the device.
    at_the_end = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    mask: Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=1 if _only_padding(attention_mask, options) else q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        attention_mask=attention_mask,
        allow_is_causal_skip=allow_is_causal_skip and at_the_end,
        **options,
    )
    return mask


def _only_padding(attention_mask: Tensor | None, options: dict[str, Any]) -> bool:
    """Whether all queries of a sequence see the same keys, so that one row of the mask is enough."""
    return attention_mask is not None and options.get("mask_function") is bidirectional_mask_function
