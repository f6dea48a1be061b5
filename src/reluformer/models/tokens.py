"""Base class of models of tokens: embeddings, positions, layers and a last norm."""

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn

from reluformer.memory.attention import Rotation
from reluformer.models.base import MemoryModel
from reluformer.models.layers import last_norm
from reluformer.models.masks import needed
from reluformer.models.positions import Positions, positions_of, rotation

SIZES = (("batch", "tokens"), ("batch", "tokens", "d_model"))  # dimensions of tokens, and of their embeddings


class TokenStack(MemoryModel):
    """Layers over tokens; the configuration must have ``positions`` and ``max_position_embeddings``."""

    config: Any
    main_input_name = "input_ids"
    entries: ClassVar[tuple[str, str]] = ("input_ids", "inputs_embeds")  # names of the inputs in error messages,
    mask_name: ClassVar[str] = "attention_mask"  # and of their mask

    def __init__(self, config: Any, embed_tokens: nn.Embedding, layers: Iterable[nn.Module]) -> None:
        super().__init__(config)
        self.embed_tokens = embed_tokens
        self.positions = Positions(config.positions, config.d_model, config.max_position_embeddings)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.norm = last_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    def _needed(
        self,
        mask: Tensor | None,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        past: int | Tensor = 0,
    ) -> Tensor | None:
        """The padding mask ``(B, past + N)`` of the inputs, or None if it is not needed; shapes are checked."""
        shape: tuple[int | Tensor, ...] = ()
        for name, x, sizes in zip(self.entries, (input_ids, inputs_embeds), SIZES, strict=True):
            if x is not None:
                if x.dim() != len(sizes):
                    raise ValueError(f"{name} must have the shape ({', '.join(sizes)}), got {tuple(x.shape)}")
                shape = (x.shape[0], past + x.shape[1])
        return needed(mask, shape, self.mask_name)

    def _enter(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        mask: Tensor | None,
        past: int | Tensor = 0,
        shift: Tensor | None = None,
    ) -> tuple[Tensor, Rotation | None]:
        """Input of the first layer, ``(B, N, width)``, and the rotation of queries and keys if positions are rotary.

        ``shift ()`` is added to all positions.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(f"give either {self.entries[0]} or {self.entries[1]}, and not both")
        x: Tensor = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        position = positions_of(mask, past, x.shape[1], x.device)
        position = position if shift is None else position + shift
        x = self.dropout(self.positions(x * math.sqrt(self.config.d_model), position))
        rotary = self.positions.kind == "rotary"
        return x, rotation(position, self.config.d_model // self.config.heads) if rotary else None
