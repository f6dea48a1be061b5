"""A small image classifier made of memories, in numbers and in intervals.

Every row of an image is a token. There are no layer norms: dividing by a standard deviation that may be anything would
widen the intervals more than all memories together.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageClassification, PreTrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from reluformer.memory.attention import Attention
from reluformer.memory.bounds import attention_bounds, check_bounded, feedforward_bounds, linear_bounds
from reluformer.memory.calibration import start_gammas
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.settings import MemorySettings
from reluformer.models.base import MemoryModel
from reluformer.ops.intervals import WIDE, Interval, add, affine

FFN = {"alpha": 0.0, "gamma": "none", "bias": 0.0, "slots": 32}


class RowClassifierConfig(PreTrainedConfig):
    """Configuration of a :class:`RowClassifier`; ``attention`` and ``ffn`` are mappings of memory settings.

    Args:
        rows: Number of rows of an image.
        columns: Number of columns of an image.
        classes: Number of classes.
        width: Width of the model.
        heads: Number of heads of the attention.
        layers: Number of layers, each an attention and an FFN.
        attention: Settings of the attention; by default a ReLU memory.
        ffn: Settings of the FFN; by default a ReLU memory with 32 slots. With 0 slots there is no FFN.
    """

    model_type = "reluformer-rows"

    rows: int = 8
    columns: int = 8
    classes: int = 10
    width: int = 16
    heads: int = 2
    layers: int = 1
    attention: dict[str, Any] | None = None
    ffn: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Check the sizes and fill in the memory settings."""
        for name in ("rows", "columns", "classes", "width", "heads", "layers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        self.attention = MemorySettings.of("attention", self.attention or {}).to_dict()
        self.ffn = MemorySettings.of("ffn", FFN | (self.ffn or {})).to_dict()
        for site in ("attention", "ffn"):
            check_bounded(self.memory(site))
        super().__post_init__(**kwargs)

    def memory(self, site: str) -> MemorySettings:
        """The settings of ``"attention"`` or ``"ffn"``."""
        return MemorySettings.of(site, getattr(self, site))


class Layer(nn.Module):
    """``x + attention(x)``, then ``x + ffn(x)``."""

    def __init__(self, config: RowClassifierConfig) -> None:
        super().__init__()
        self.attention = Attention(config.width, config.heads, config.memory("attention"))
        ffn = config.memory("ffn")
        self.ffn = KeyValueMemory(config.width, ffn) if ffn.slots else None

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream ``(B, rows, width)`` after the layer."""
        x = x + self.attention(x)[0]
        return x if self.ffn is None else x + self.ffn(x)

    def bounds(self, x: Interval) -> Interval:
        """The bounds of ``forward`` for an interval of inputs."""
        x = add(x, attention_bounds(self.attention, x))
        return x if self.ffn is None else add(x, feedforward_bounds(self.ffn, x))


class RowClassifier(MemoryModel):
    """An image classifier: rows of pixels in ``[0, 1]``, a few layers of memories, logits from all rows together."""

    config: RowClassifierConfig  # type: ignore[assignment]
    config_class = RowClassifierConfig  # type: ignore[assignment]
    main_input_name = "pixel_values"
    _no_split_modules = ["Layer"]  # noqa: RUF012, as the base class has it

    def __init__(self, config: RowClassifierConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        self.embedding = nn.Linear(config.columns, config.width)
        self.positions = nn.Embedding(config.rows, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.head = nn.Linear(config.rows * config.width, config.classes)
        start_gammas(self, config.rows)
        self.post_init()

    @can_return_tuple
    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **_: Any) -> ImageClassifierOutput:
        """Logits ``(B, classes)`` of ``pixel_values (B, rows, columns)`` and, with labels ``(B,)``, the loss."""
        x = self.embedding(pixel_values.to(self.dtype)) + self.positions.weight  # (B, rows, width)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x.flatten(1))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return ImageClassifierOutput(loss=loss, logits=logits)  # type: ignore[arg-type]

    def bounds(self, pixels: Interval) -> Interval:
        """Bounds of each logit ``(B, classes)`` over all images in the interval ``(B, rows, columns)``."""
        return linear_bounds(self.head, self._stream(pixels))

    def lead_bounds(self, pixels: Interval, labels: Tensor) -> Interval:
        """Bounds of each logit's lead over that of the label ``(B,)``, by definition 0 for the label itself.

        If the upper ends of all others are below 0, the label is certain. These bounds are tighter than differences of
        the bounds of two logits, each of which would assume an image of its own.
        """
        weight, bias = self.head.weight.to(WIDE), self.head.bias.to(WIDE)
        weight, bias = weight - weight[labels][:, None], bias - bias[labels][:, None]  # (B, classes, ...)
        stream = self._stream(pixels).map(lambda x: x[:, None])  # (B, 1, rows * width)
        lead = affine(stream, weight, bias[:, None]).map(lambda x: x[:, 0])
        own = F.one_hot(labels, self.config.classes).bool()  # where the lead is exactly 0
        return lead.map(lambda x: x.masked_fill(own, 0.0))

    def certain(self, pixels: Interval, labels: Tensor) -> Tensor:
        """Whether the label's logit is the largest for every image in the interval: ``(B,)``, False if in doubt."""
        lead = self.lead_bounds(pixels, labels).upper
        own = F.one_hot(labels, self.config.classes).bool()
        return ((lead < 0) | own).all(-1)  # NaN is not below 0

    def _stream(self, pixels: Interval) -> Interval:
        x = add(linear_bounds(self.embedding, pixels), self.positions.weight)
        for layer in self.layers:
            x = layer.bounds(x)  # type: ignore[operator]
        return x.map(lambda t: t.flatten(1))


def worst_case_loss(model: RowClassifier, pixels: Interval, labels: Tensor) -> Tensor:
    """Cross entropy of the worst logits that the bounds allow: no image in the interval has a larger one."""
    worst = model.lead_bounds(pixels, labels).upper  # (B, classes), relative to the label's logit
    return F.cross_entropy(worst, labels)


AutoConfig.register(RowClassifierConfig.model_type, RowClassifierConfig, exist_ok=True)
AutoModelForImageClassification.register(RowClassifierConfig, RowClassifier, exist_ok=True)
