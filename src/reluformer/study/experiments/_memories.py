"""Memories that several experiments compare."""

from typing import Any

from reluformer.memory.settings import EIGHTH_ATTENTION, POWER_ATTENTION, MemorySettings
from reluformer.study.scales import Scale

FFNS: dict[str, dict[str, Any]] = {
    "ReLU": {"activation": "relu"},
    "softmax": {"activation": "softmax"},
    "softmax + LN": {"activation": "softmax", "norm": "layer"},
}
# Attention as in the presets; the scale that ReLU has here, unlike in the FFN, is what makes it train with many slots.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "ReLU": {"activation": "relu", "alpha": 0.5, "gamma": "learned"},
    "softmax": {"activation": "softmax", "alpha": 0.0, "gamma": "none"},
    "softmax + LN": {"activation": "softmax", "alpha": 0.0, "gamma": "none", "norm": "layer"},
    "ReLU + LN": {"activation": "relu", "alpha": 0.5, "gamma": "learned", "norm": "layer"},
}


def attention(**settings: Any) -> dict[str, Any]:
    """Return the same settings for every attention site of a model."""
    return {site: dict(settings) for site in ("encoder_self", "decoder_self", "cross")}


RELU: dict[str, Any] = {"family": "reluformer"}
BARE = RELU | attention(alpha=0.0, gamma="none")
RELA = RELU | attention(norm="gated", alpha=0.0, gamma="none")
OVER_ITS_MASS = RELU | attention(norm="mass", bias=1.0)
# Nearly all keys are active at first, where both are softmax to first order; SQUARED is 1.5-entmax without threshold.
CENTRED: dict[str, Any] = {"bias": 1.0, "alpha": 1.0, "centred": True}
SQUARED: dict[str, Any] = {"activation": "relu_squared", "bias": 2.0, "alpha": 1.0}
# Cells are identified by their settings: fields younger than the first cells are listed only where they are set.
YOUNGER = ("constant_channel", "sentence_bias", "slot_activation")


def listed(settings: MemorySettings) -> dict[str, Any]:
    """Return settings as arms hold them."""
    unset = {name for name in YOUNGER if getattr(settings, name) == getattr(MemorySettings, name)}
    return {name: x for name, x in settings.to_dict().items() if name not in unset}


# relu(4 + s - mean s) ** 4 over its sum.
POWER: dict[str, Any] = listed(
    MemorySettings("relu_fourth", alpha=0.0, gamma="none", norm="mass", bias=4.0, query_key_norm=True, centred=True)
)
EIGHTH: dict[str, Any] = POWER | {"activation": "relu_eighth", "bias": 8.0}
ALONE: dict[str, Any] = listed(EIGHTH_ATTENTION)
PLAIN_EIGHTH: dict[str, Any] = listed(POWER_ATTENTION)


def reluformer(scale: Scale, **settings: Any) -> dict[str, Any]:
    """Return the paper's model: scaled ReLU attention with both regulariser terms; ``settings`` change attention."""
    terms = {"mass": scale.regulariser, "entropy": scale.regulariser}
    return RELU | {"regulariser": terms} | (attention(**settings) if settings else {})
