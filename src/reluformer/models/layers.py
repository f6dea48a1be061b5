"""Layers: memories with their residuals, norms and dropout."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from reluformer.memory.attention import Attention, Store
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.regulariser import Regulariser
from reluformer.models.configuration import ReLUFormerConfig


class Sublayer(nn.Module):
    """A memory on the residual stream: ``x + dropout(memory(norm(x)))``, or with the norm after the sum."""

    def __init__(self, config: ReLUFormerConfig, memory: nn.Module) -> None:
        super().__init__()
        self.memory = memory
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.before = config.norm_order == "pre"

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """The stream after the sublayer, and the memory's penalty if it has one."""
        out = self.memory(self.norm(x) if self.before else x, *args, **kwargs)
        out, penalty = out if isinstance(out, tuple) else (out, None)
        x = x + self.dropout(out)
        return (x if self.before else self.norm(x)), penalty


def attention(config: ReLUFormerConfig, site: str) -> Sublayer:
    """The attention sublayer of a kind of site."""
    memory = Attention(
        config.d_model,
        config.heads,
        config.memory(site),
        key_heads=config.key_heads,
        causal=site == "decoder_self",
        regulariser=Regulariser(**(config.regulariser or {})),
    )
    return Sublayer(config, memory)


def feedforward(config: ReLUFormerConfig) -> Sublayer | None:
    """The FFN sublayer, or None if it has no slots."""
    settings = config.memory("ffn")
    if not settings.slots:
        return None
    return Sublayer(config, KeyValueMemory(config.d_model, settings, config.memory_dropout))


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention and an FFN."""

    def __init__(self, config: ReLUFormerConfig) -> None:
        super().__init__()
        self.self_attention = attention(config, "encoder_self")
        self.ffn = feedforward(config)

    def forward(self, x: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        """The stream ``(B, N, width)`` after the layer, and its penalties' sum."""
        x, penalty = self.self_attention(x, **options)
        if self.ffn is not None:
            x, _ = self.ffn(x)
        return x, penalty


class DecoderLayer(GradientCheckpointingLayer):
    """Causal self-attention, attention to the source, and an FFN."""

    def __init__(self, config: ReLUFormerConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.self_attention = attention(config, "decoder_self")
        self.cross_attention = attention(config, "cross")
        self.ffn = feedforward(config)

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        *,
        self_options: dict[str, Any],
        cross_options: dict[str, Any],
        past_key_values: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The stream after the layer, and its penalties' sum; the options are those of ``Attention.forward``."""
        own, other = (None, None) if past_key_values is None else self._stores(past_key_values)
        x, first = self.self_attention(x, store=own, **self_options)
        x, second = self.cross_attention(x, source, store=other, **cross_options)
        if self.ffn is not None:
            x, _ = self.ffn(x)
        return x, first if second is None else second if first is None else first + second

    def _stores(self, cache: Any) -> tuple[Store, Store]:
        """How keys and values are kept: the target's grow, the source's are made once."""
        index = self.index

        def own(make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            k, v = cache.self_attention_cache.update(*make(), index)
            return k, v

        def other(make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            if cache.is_updated.get(index):
                layer = cache.cross_attention_cache.layers[index]
                return layer.keys, layer.values
            k, v = cache.cross_attention_cache.update(*make(), index)
            cache.is_updated[index] = True
            return k, v

        return own, other
