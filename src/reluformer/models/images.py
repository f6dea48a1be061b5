"""ReLUFormer for images: a vision transformer of memories, as a Hugging Face model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ViTImageProcessorPil
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, ImageClassifierOutput
from transformers.utils.generic import can_return_tuple

from reluformer.memory.calibration import start_gammas
from reluformer.models.base import MemoryModel, refuse_weights
from reluformer.models.encoding import encode
from reluformer.models.image_configuration import ReLUFormerImageConfig
from reluformer.models.layers import EncoderLayer, last_norm
from reluformer.models.loss import with_cost
from reluformer.models.patches import PatchEmbedding


@dataclass
class ReLUFormerImageOutput(ImageClassifierOutput):
    """Output of a Hugging Face classifier, and ``regularisation``: the weighted cost of the memories.

    The loss includes it already. It is None outside training and without a regulariser.
    """

    regularisation: Tensor | None = None


@dataclass
class _ModelOutput(BaseModelOutputWithPooling):
    regularisation: Tensor | None = None


class _ImageModel(MemoryModel):
    config: ReLUFormerImageConfig
    config_class = ReLUFormerImageConfig
    main_input_name = "pixel_values"
    input_modalities = ("image",)  # type: ignore[assignment]  # as stock models have it
    _no_split_modules = ["EncoderLayer", "PatchEmbedding"]  # noqa: RUF012, as the base class has it

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PatchEmbedding):  # unit variance, as the embedded patches have
            init.normal_(module.positions)
            if module.class_token is not None:
                init.normal_(module.class_token)


class ReLUFormerImageModel(_ImageModel):
    """ReLUFormer for images without a head: patches through layers of memories."""

    def __init__(self, config: ReLUFormerImageConfig) -> None:
        super().__init__(config)
        self.patches = PatchEmbedding(config)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList([EncoderLayer(config) for _ in range(config.layers)])
        self.norm = last_norm(config)
        self.gradient_checkpointing = False
        start_gammas(self, config.tokens)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The linear layer that embeds the patches."""
        return self.patches.project

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor | None = None, output_hidden_states: bool | None = None, **more: Any
    ) -> _ModelOutput:
        """States of the tokens of images ``(B, channels, height, width)``, and ``pooler_output (B, width)``."""
        refuse_weights(self.config, more)
        if pixel_values is None:
            raise ValueError("pixel_values must be given")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        x = self.dropout(self.patches(pixel_values.to(self.dtype)))
        x, seen, cost = encode(self.layers, x, self._regulariser, self.cost_of)
        x = self.norm(x)
        return _ModelOutput(
            last_hidden_state=x,
            pooler_output=x[:, 0] if self.config.pooling == "class" else x.mean(1),
            hidden_states=(*seen, x) if output_hidden_states else None,  # type: ignore[arg-type]
            regularisation=None if cost is None else cost / len(self.layers),
        )


class ReLUFormerForImageClassification(_ImageModel):
    """ReLUFormer for images with a head over classes: trains with ``labels (B,)``."""

    def __init__(self, config: ReLUFormerImageConfig) -> None:
        super().__init__(config)
        self.model = ReLUFormerImageModel(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels) if config.num_labels else nn.Identity()
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **options: Any,
    ) -> ReLUFormerImageOutput:
        """Logits ``(B, classes)`` of the images and, with labels, their loss; in training it includes regularisation.

        Images may differ in size from those of the configuration: their positions are interpolated.
        """
        out = self.model(pixel_values, return_dict=True, **options)
        logits = self.classifier(out.pooler_output)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, num_items_in_batch=num_items_in_batch)
            loss = with_cost(loss, out.regularisation, labels, num_items_in_batch)
        return ReLUFormerImageOutput(
            loss=loss, logits=logits, hidden_states=out.hidden_states, regularisation=out.regularisation
        )


def image_processor(config: ReLUFormerImageConfig) -> ViTImageProcessorPil:
    """Image processor for a model of this configuration: its size, pixels from -1 to 1; to be saved with the model."""
    height, width = config.edges
    half = [0.5] * config.channels
    return ViTImageProcessorPil(size={"height": height, "width": width}, image_mean=half, image_std=half)
