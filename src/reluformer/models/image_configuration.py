"""The configuration of the vision transformer."""

from typing import Any, ClassVar

from reluformer.memory.settings import SOFTMAX_ATTENTION, MemorySettings
from reluformer.models.base_configuration import MemoryConfig, at_least, one_of

POOLINGS = ("class", "mean")

# With alpha = 1 the mass of a row does not depend on the number of patches, hence not on the size of the image.
RELU_ATTENTION = MemorySettings(alpha=1.0)
GELU_FFN = MemorySettings(activation="gelu", alpha=0.0, gamma="none", bias=0.0)

SMALL = {"d_model": 384, "heads": 6, "layers": 12, "slots": 1536}
BASE = {"d_model": 768, "heads": 12, "layers": 12, "slots": 3072}
LARGE = {"d_model": 1024, "heads": 16, "layers": 24, "slots": 4096}
DIGITS = {"d_model": 64, "heads": 4, "layers": 2, "slots": 128, "image_size": 8, "patch_size": 2, "channels": 1}
# Sizes of the presets, named like vision transformers: S, B or L, and the edge of a patch.
SIZES: dict[str, dict[str, Any]] = {
    "digits": DIGITS | {"num_labels": 10},
    "s32": SMALL | {"patch_size": 32},
    "s16": SMALL | {"patch_size": 16},
    "b32": BASE | {"patch_size": 32},
    "b16": BASE | {"patch_size": 16},
    "l16": LARGE | {"patch_size": 16},
}


class ReLUFormerImageConfig(MemoryConfig):
    """Configuration of a ReLUFormer for images.

    Its kinds of sites are ``encoder_self`` and ``ffn``; the default is ReLU attention with ``alpha = 1`` and the GELU
    FFN of vision transformers. Fields common to all models are described in
    :class:`~reluformer.models.base_configuration.MemoryConfig`. Presets are ``reluformer-`` and ``transformer-`` with
    ``digits``, ``s32``, ``s16``, ``b32``, ``b16`` or ``l16``.

    Args:
        layers: Number of layers.
        image_size: Edge, or height and width, of the images whose positions are learned; for images of other sizes
            positions are interpolated.
        patch_size: Edge of a patch.
        channels: Number of channels of a pixel.
        pooling: Input of the head: ``"class"`` for a learned token beside the patches, ``"mean"`` for their mean.
    """

    model_type = "reluformer-image"
    keys_to_ignore_at_inference = ["regularisation"]  # noqa: RUF012, a list: Trainer adds to it
    attribute_map = {  # noqa: RUF012, as the base class has it
        "hidden_size": "d_model",
        "num_attention_heads": "heads",
        "num_key_value_heads": "key_heads",
        "num_hidden_layers": "layers",
        "num_channels": "channels",
    }
    defaults: ClassVar[dict[str, MemorySettings]] = {"encoder_self": RELU_ATTENTION, "ffn": GELU_FFN}
    families: ClassVar[dict[str, MemorySettings]] = {"transformer": SOFTMAX_ATTENTION, "reluformer": RELU_ATTENTION}
    sizes: ClassVar[dict[str, dict[str, Any]]] = SIZES

    d_model: int = 384
    heads: int = 6
    layers: int = 12
    image_size: int | list[int] = 224
    patch_size: int = 16
    channels: int = 3
    pooling: str = "class"
    dropout: float | int = 0.0
    encoder_self: dict[str, Any] | None = None

    def _check(self) -> None:
        super()._check()
        at_least("layers", self.layers, 0)
        for name in ("patch_size", "channels"):
            at_least(name, getattr(self, name), 1)
        edges: Any = self.image_size
        if isinstance(edges, list | tuple) and len(edges) == 2:
            self.image_size = list(edges)
        elif isinstance(edges, list | tuple):
            raise ValueError(f"image_size must be an int, or a height and a width, got {edges!r}")
        for edge in self.edges:
            at_least("image_size", edge, self.patch_size)
            if edge % self.patch_size:
                raise ValueError(f"image_size must be a multiple of patch_size = {self.patch_size}, got {edge}")
        one_of("pooling", self.pooling, POOLINGS)

    @property
    def edges(self) -> tuple[int, int]:
        """Height and width of an image."""
        size = self.image_size
        return (size[0], size[1]) if isinstance(size, list) else (size, size)

    @property
    def tokens(self) -> int:
        """Number of tokens of an image: its patches, and the class token if there is one."""
        height, width = self.edges
        return height // self.patch_size * (width // self.patch_size) + (self.pooling == "class")
