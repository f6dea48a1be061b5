"""The configuration of the encoder-decoder."""

from typing import Any, ClassVar

from reluformer.memory.sentences import FEWEST
from reluformer.memory.settings import POWER_ATTENTION, SOFTMAX_ATTENTION, MemorySettings
from reluformer.models.base_configuration import MemoryConfig, at_least, one_of

SITES = ("encoder_self", "decoder_self", "cross", "ffn")
POSITIONS = ("sinusoidal", "learned", "rotary")

RELU_ATTENTION = MemorySettings()
RELU_FFN = MemorySettings(alpha=0.0, gamma="none", bias=0.0)

# Sizes of the presets: width, heads, layers of the encoder and of the decoder, slots of the FFN, dropout.
SIZES = {
    "tiny": {"d_model": 64, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "slots": 128, "dropout": 0.0},
    "small": {"d_model": 512, "heads": 4, "encoder_layers": 6, "decoder_layers": 6, "slots": 1024, "dropout": 0.3},
    "base": {"d_model": 512, "heads": 8, "encoder_layers": 6, "decoder_layers": 6, "slots": 2048, "dropout": 0.1},
}
FAMILIES = {
    "transformer": SOFTMAX_ATTENTION,
    "reluformer": RELU_ATTENTION,
    "reluformer-power": POWER_ATTENTION,
}


class ReLUFormerConfig(MemoryConfig):
    """Configuration of a ReLUFormer.

    Its kinds of sites are ``encoder_self``, ``decoder_self``, ``cross`` and ``ffn``; the default is the paper's FFN and
    ReLU attention elsewhere. Fields common to all models are described in
    :class:`~reluformer.models.base_configuration.MemoryConfig`.

    Args:
        vocab_size: Size of the vocabulary, which source and target share.
        encoder_layers: Depth of the encoder.
        decoder_layers: Depth of the decoder.
        positions: ``"sinusoidal"``, ``"learned"`` or ``"rotary"``.
        max_position_embeddings: Number of learned positions; the other kinds have no limit.
        position_shift: Largest random offset of the sinusoidal positions of a training batch, so that a model that
            learns from sentences meets the positions of documents (SHAPE, Kiyono et al. 2021).
        sep_token_id: Token between two sentences, where memories have a ``sentence_bias``.
        calibration_length: Sequence length for which gamma starts at unit mass; :func:`~reluformer.memory.calibrate`
            sets gamma from a batch instead.
    """

    model_type = "reluformer"
    keys_to_ignore_at_inference = ["past_key_values", "regularisation"]  # noqa: RUF012, a list: Trainer adds to it
    attribute_map = {  # noqa: RUF012, as the base class has it
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_key_value_heads": "key_heads",
        "num_hidden_layers": "encoder_layers",
    }
    defaults: ClassVar[dict[str, MemorySettings]] = {name: RELU_ATTENTION for name in SITES[:3]} | {"ffn": RELU_FFN}
    families: ClassVar[dict[str, MemorySettings]] = FAMILIES
    sizes: ClassVar[dict[str, dict[str, Any]]] = SIZES
    parted: ClassVar[tuple[str, ...]] = SITES[:3]

    vocab_size: int = 32000
    encoder_layers: int = 6
    decoder_layers: int = 6
    positions: str = "sinusoidal"
    max_position_embeddings: int = 1024
    position_shift: int = 0
    encoder_self: dict[str, Any] | None = None
    decoder_self: dict[str, Any] | None = None
    cross: dict[str, Any] | None = None
    calibration_length: int = 128
    is_encoder_decoder: bool = True
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    sep_token_id: int | None = 4  # as in the tokenisers of reluformer.data

    def _check(self) -> None:
        super()._check()
        for name in ("vocab_size", "max_position_embeddings", "calibration_length"):
            at_least(name, getattr(self, name), 1)
        for name in ("encoder_layers", "decoder_layers", "position_shift"):
            at_least(name, getattr(self, name), 0)
        one_of("positions", self.positions, POSITIONS)
        if self.position_shift and self.positions != "sinusoidal":
            raise ValueError(f"position_shift must be 0 unless positions are sinusoidal, got {self.position_shift!r}")
        biases = {site: getattr(self, site)["sentence_bias"] for site in self.parted}
        parted = [f"{site}.sentence_bias" for site, bias in biases.items() if bias is not None]
        if parted and (type(self.sep_token_id) is not int or not 0 <= self.sep_token_id < self.vocab_size):
            raise ValueError(
                f"sep_token_id must be a token below {self.vocab_size} beside {parted[0]}, got {self.sep_token_id!r}"
            )
        if parted and self.d_model // self.heads < FEWEST:
            raise ValueError(
                f"{parted[0]} must be None unless heads have {FEWEST} channels, got {self.d_model // self.heads}"
            )
        if biases["cross"] is not None and biases["decoder_self"] is None:
            raise ValueError(
                "decoder_self.sentence_bias must be a number beside that of cross, which finds the sentence that is "
                "being written in the keys of decoder_self, got None"
            )
        if self.positions == "rotary" and self.d_model // self.heads % 2:
            raise ValueError(f"positions 'rotary' needs an even head dimension, got {self.d_model // self.heads}")

    def separator(self, *sites: str) -> int | None:
        """Token between two sentences, if one of these sites has a ``sentence_bias``."""
        parted = any(getattr(self, site)["sentence_bias"] is not None for site in sites)
        return self.sep_token_id if parted else None
