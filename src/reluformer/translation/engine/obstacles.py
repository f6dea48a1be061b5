"""Which models an engine cannot run, and why."""

import dataclasses
from typing import Any

from reluformer.memory.activations import FUSED
from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings
from reluformer.models.reluformer import ReLUFormerForConditionalGeneration


def can_step(model: Any) -> bool:
    """Return whether our searches can decode with a model, be it by the model's own modules."""
    return _unlike_ours(model) is None and not hasattr(model, "hf_device_map")  # which calls of its parts would ignore


def _unlike_ours(model: Any) -> str | None:
    """Return why our searches cannot use a model, or None if they can."""
    if not isinstance(model, ReLUFormerForConditionalGeneration):
        return f"a {type(model).__name__}"
    if not model.config.decoder_layers:
        return "no decoder layer"
    if not isinstance(model.config.eos_token_id, int):
        return "no or several tokens that end a target"
    return None


def obstacle(model: Any) -> str | None:
    """Return why an engine cannot run a model, or None if it can."""
    if (foreign := _unlike_ours(model)) is not None:
        return foreign
    if model.device.type != "cpu":
        return f"a model on {model.device}"
    config = model.config
    if config.key_heads != config.heads:
        return "heads that share keys"
    if any(getattr(module, "softmax_share", None) is not None for module in model.modules()):
        return "a softmax_share, which training sets"
    unlike = [_unlike_attention(site, config.memory(site)) for site in ("encoder_self", "decoder_self", "cross")]
    return next(filter(None, [*unlike, _unlike_feedforward(config.memory("ffn"))]), None)


def _unlike_attention(name: str, settings: MemorySettings) -> str | None:
    """Return the setting of an attention that the classes in attention.py cannot compute, or None."""
    if settings.activation not in (*FUSED, "softmax"):
        return f"{name}.activation {settings.activation}"
    plain, taken = SOFTMAX_ATTENTION, ["query_key_norm", "sentence_bias"]
    if settings.activation != "softmax":
        plain, taken = MemorySettings(), [*taken, "activation", "alpha", "gamma", "bias", "centred", "constant_channel"]
        if (settings.centred or settings.constant_channel) and settings.norm == "mass":
            taken += ["norm"]
    plain = dataclasses.replace(plain, **{field: getattr(settings, field) for field in taken})
    return _difference(name, settings, plain)


def _unlike_feedforward(settings: MemorySettings) -> str | None:
    """Return the setting of an FFN that :class:`FeedForward` cannot compute, or None."""
    if not settings.slots:
        return None
    plain = MemorySettings(alpha=0.0, gamma="none", bias=settings.bias, slots=settings.slots)
    return _difference("ffn", settings, plain)


def _difference(name: str, settings: MemorySettings, plain: MemorySettings) -> str | None:
    """Return the first setting that differs from the plain ones, also one that was added after this was written."""
    for field, value in settings.to_dict().items():
        if value != getattr(plain, field):
            return f"{name}.{field} {value}"
    return None
