"""The configuration of the language model."""

import dataclasses
from typing import Any, ClassVar

from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings
from reluformer.models.base_configuration import MemoryConfig, at_least, one_of
from reluformer.models.configuration import RELU_FFN

POSITIONS = ("none", "sinusoidal", "learned", "rotary")

RELU_ATTENTION = MemorySettings()
FORGET = {"forget": 0.0, "alpha": 0.0}  # the gate starts at one half, as published, and bounds how many keys count
PRO = {"query_key_norm": True, "token_shift": True, "norm": "rms", "output_gate": True}

# Sizes of the presets: width, heads, layers, slots of the FFN, dropout.
SIZES = {
    "tiny": {"d_model": 64, "heads": 4, "layers": 2, "slots": 256, "dropout": 0.0},
    "small": {"d_model": 512, "heads": 8, "layers": 6, "slots": 2048, "dropout": 0.1},
    "base": {"d_model": 768, "heads": 12, "layers": 12, "slots": 3072, "dropout": 0.1},
}


def _families() -> dict[str, MemorySettings]:
    """Softmax and ReLU attention, each plain, with a forget gate, with the parts of the Pro block, and with both."""
    found = {}
    for name, plain in (("transformer", SOFTMAX_ATTENTION), ("reluformer", RELU_ATTENTION)):
        # The norm of a head cancels its gamma: there is nothing to learn, but it still starts rows at unit mass.
        pro = PRO if plain.gamma == "none" else PRO | {"gamma": "fixed"}
        for suffix, parts in (("", {}), ("-forget", FORGET), ("-pro", pro), ("-forget-pro", FORGET | pro)):
            found[f"{name}-lm{suffix}"] = dataclasses.replace(plain, **parts)
    return found


class ReLUFormerLanguageConfig(MemoryConfig):
    """Configuration of a ReLUFormer for language.

    Its kinds of sites are ``decoder_self`` and ``ffn``; the default is ReLU attention and the paper's FFN. Fields
    common to all models are described in :class:`~reluformer.models.base_configuration.MemoryConfig`. Presets are
    ``reluformer-lm`` and ``transformer-lm``, each plain or with ``-forget``, ``-pro`` or ``-forget-pro``, followed by
    ``-tiny``, ``-small`` or ``-base``.

    Args:
        vocab_size: Size of the vocabulary.
        layers: Number of layers.
        positions: ``"none"``, ``"sinusoidal"``, ``"learned"`` or ``"rotary"``; None for ``"none"`` with a forget gate,
            which tells near from far, and ``"rotary"`` without.
        max_position_embeddings: Number of learned positions; the other kinds have no limit.
        calibration_length: Sequence length for which gamma starts at unit mass; :func:`~reluformer.memory.calibrate`
            sets gamma from a batch instead.
    """

    model_type = "reluformer-language"
    keys_to_ignore_at_inference = ["past_key_values", "regularisation"]  # noqa: RUF012, a list: Trainer adds to it
    attribute_map = {  # noqa: RUF012, as the base class has it
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_key_value_heads": "key_heads",
        "num_hidden_layers": "layers",
    }
    defaults: ClassVar[dict[str, MemorySettings]] = {"decoder_self": RELU_ATTENTION, "ffn": RELU_FFN}
    families: ClassVar[dict[str, MemorySettings]] = _families()
    sizes: ClassVar[dict[str, dict[str, Any]]] = SIZES
    ordered: ClassVar[tuple[str, ...]] = ("decoder_self",)

    vocab_size: int = 32000
    layers: int = 6
    positions: str | None = None
    max_position_embeddings: int = 1024
    decoder_self: dict[str, Any] | None = None
    calibration_length: int = 128
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def _check(self) -> None:
        super()._check()
        for name in ("vocab_size", "max_position_embeddings", "calibration_length"):
            at_least(name, getattr(self, name), 1)
        at_least("layers", self.layers, 0)
        if self.positions is None:
            self.positions = "rotary" if self.memory("decoder_self").forget is None else "none"
        one_of("positions", self.positions, POSITIONS)
        if self.positions == "rotary" and self.d_model // self.heads % 2:
            raise ValueError(f"positions 'rotary' needs an even head dimension, got {self.d_model // self.heads}")

    @property
    def layer_types(self) -> list[str] | None:
        """Kind of cache that each layer needs: a token shift needs the token before, as a convolution does."""
        return ["hybrid"] * self.layers if self.memory("decoder_self").token_shift else None
