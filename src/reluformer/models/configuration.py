"""The configuration: an encoder-decoder whose every sublayer is a memory with settings of its own."""

import dataclasses
from typing import Any

from transformers import PreTrainedConfig

from reluformer.memory.regulariser import Regulariser
from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings

SITES = ("encoder_self", "decoder_self", "cross", "ffn")
POSITIONS = ("sinusoidal", "learned", "rotary")
NORM_ORDERS = ("pre", "post")

RELU_ATTENTION = MemorySettings()
RELU_FFN = MemorySettings(alpha=0.0, gamma="none", bias=0.0)

# Sizes of the presets: width, heads, layers of the encoder and of the decoder, slots of the FFN, dropout.
SIZES = {
    "tiny": {"d_model": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "slots": 128, "dropout": 0.0},
    "small": {"d_model": 512, "heads": 4, "encoder_layers": 6, "decoder_layers": 6, "slots": 1024, "dropout": 0.3},
    "base": {"d_model": 512, "heads": 8, "encoder_layers": 6, "decoder_layers": 6, "slots": 2048, "dropout": 0.1},
}
FAMILIES = ("transformer", "reluformer")


class ReLUFormerConfig(PreTrainedConfig):
    """What a ReLUFormer is made of.

    Each of the four kinds of sites, ``encoder_self``, ``decoder_self``, ``cross`` and ``ffn``, is a mapping of
    :class:`~reluformer.memory.MemorySettings`; what a mapping leaves out has the default of ReLUFormer (the paper's
    FFN, ReLU attention elsewhere). ``ffn.slots = 0`` leaves the FFN out.

    Args:
        vocab_size: Tokens of the vocabulary, shared by source and target.
        d_model: Width.
        heads: Heads of every attention.
        key_heads: Key heads, a divisor of ``heads``; None for as many.
        encoder_layers: Depth of the encoder.
        decoder_layers: Depth of the decoder.
        norm_order: ``"pre"`` norms what enters a sublayer, ``"post"`` what leaves its residual.
        positions: ``"sinusoidal"``, ``"learned"`` or ``"rotary"``.
        max_position_embeddings: How many positions are learned; the others have no limit.
        dropout: Of embeddings and of what a sublayer adds.
        memory_dropout: Of the weights over the FFN's slots.
        regulariser: ``mass``, ``entropy`` and ``ceiling``, see :class:`~reluformer.memory.Regulariser`.
        calibration_length: The length for which gamma starts at unit mass; :func:`~reluformer.memory.calibrate` sets
            it from a batch instead.
    """

    model_type = "reluformer"
    keys_to_ignore_at_inference = ("past_key_values", "regularisation")
    attribute_map = {  # noqa: RUF012, as the base class has it
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_key_value_heads": "key_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    d_model: int = 512
    heads: int = 8
    key_heads: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    norm_order: str = "pre"
    positions: str = "sinusoidal"
    max_position_embeddings: int = 1024
    dropout: float | int = 0.1
    memory_dropout: float | int = 0.0
    encoder_self: dict[str, Any] | None = None
    decoder_self: dict[str, Any] | None = None
    cross: dict[str, Any] | None = None
    ffn: dict[str, Any] | None = None
    regulariser: dict[str, Any] | None = None
    calibration_length: int = 128
    is_encoder_decoder: bool = True
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1

    def __post_init__(self, **kwargs: Any) -> None:
        """Check every field and fill in the settings of the memories."""
        for name in SITES:
            default = RELU_FFN if name == "ffn" else RELU_ATTENTION
            if name == "ffn":
                default = dataclasses.replace(default, slots=4 * self.d_model if isinstance(self.d_model, int) else 1)
            given = getattr(self, name)
            settings = MemorySettings.of(name, default.to_dict() | dict(given)) if _is_mapping(name, given) else default
            setattr(self, name, settings.to_dict())
        given = self.regulariser if _is_mapping("regulariser", self.regulariser) else {}
        self.regulariser = dataclasses.asdict(_regulariser(given or {}))
        self.key_heads = self.heads if self.key_heads is None else self.key_heads
        self._check()
        super().__post_init__(**kwargs)

    def _check(self) -> None:
        for name in ("vocab_size", "d_model", "heads", "key_heads", "max_position_embeddings", "calibration_length"):
            _at_least(name, getattr(self, name), 1)
        for name in ("encoder_layers", "decoder_layers"):
            _at_least(name, getattr(self, name), 0)
        for name, choices in (("norm_order", NORM_ORDERS), ("positions", POSITIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("dropout", "memory_dropout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{name} must be a number from 0 to below 1, got {value!r}")
        if self.d_model % self.heads:
            raise ValueError(f"heads must divide d_model = {self.d_model}, got {self.heads}")
        if self.heads % (self.key_heads or 1):
            raise ValueError(f"key_heads must divide heads = {self.heads}, got {self.key_heads}")
        if self.positions == "rotary" and self.d_model // self.heads % 2:
            raise ValueError(f"positions 'rotary' needs an even head dimension, got {self.d_model // self.heads}")
        if self.ffn and self.ffn["query_key_norm"]:
            raise ValueError("ffn.query_key_norm must be False: an FFN has neither queries nor keys to norm, got True")

    def memory(self, site: str) -> MemorySettings:
        """The settings of a kind of site."""
        return MemorySettings.of(site, getattr(self, site))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "ReLUFormerConfig":
        """``"reluformer-small"`` and its like: a family (transformer, reluformer) and a size (tiny, small, base).

        Two presets of one size differ in their memories alone. Changes are fields of the configuration; those of a site
        may be given in part: ``preset("reluformer-tiny", cross={"alpha": 1.0})``.
        """
        family, _, size = name.partition("-")
        if family not in FAMILIES or size not in SIZES:
            known = ", ".join(f"{f}-{s}" for f in FAMILIES for s in SIZES)
            raise ValueError(f"preset must be one of {known}, got {name!r}")
        fields: dict[str, Any] = dict(SIZES[size])
        fields["ffn"] = {"slots": fields.pop("slots")}
        attention = SOFTMAX_ATTENTION if family == "transformer" else RELU_ATTENTION
        fields |= {site: attention.to_dict() for site in SITES[:3]}
        for site in SITES:
            if site in changes and _is_mapping(site, changes[site]):
                changes[site] = fields[site] | changes[site]
        return cls(**(fields | changes))


def _is_mapping(name: str, value: object) -> bool:
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} must be a mapping of settings, got {value!r}")
    return value is not None


def _regulariser(values: dict[str, Any]) -> Regulariser:
    known = [field.name for field in dataclasses.fields(Regulariser)]
    for name in values:
        if name not in known:
            raise ValueError(f"regulariser.{name} is no setting; there are {', '.join(known)}")
    try:
        return Regulariser(**values)
    except ValueError as error:
        raise ValueError(f"regulariser.{error}") from None


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an int >= {least}, got {value!r}")
