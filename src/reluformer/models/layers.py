"""Layers: memories with residual connections, norms and dropout."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer
from transformers.modeling_layers import GradientCheckpointingLayer

from reluformer.memory.attention import Attention, Carry, Store
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.models.base_configuration import MemoryConfig
from reluformer.ops import AttentionStats


class Sublayer(nn.Module):
    """A memory on the residual stream: ``x + dropout(memory(norm(x)))``, or ``norm(x + dropout(memory(x)))``."""

    def __init__(self, config: MemoryConfig, memory: Attention | KeyValueMemory) -> None:
        super().__init__()
        self.memory = memory
        self.norm = nn.LayerNorm(config.d_model, config.norm_eps)
        self.dropout = config.dropout
        self.before = config.norm_order == "pre"

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, AttentionStats | None]:
        """The stream after the sublayer and, if asked, the statistics of the memory."""
        out = self.memory(self.norm(x) if self.before else x, *args, **kwargs)
        out, stats = out if isinstance(out, tuple) else (out, None)
        x = x + F.dropout(out, self.dropout, self.training)
        return (x if self.before else self.norm(x)), stats


def last_norm(config: MemoryConfig) -> nn.Module:
    """Norm after the last layer: the identity where every layer norms its own output."""
    return nn.LayerNorm(config.d_model, config.norm_eps) if config.norm_order == "pre" else nn.Identity()


def attention(config: MemoryConfig, site: str) -> Sublayer:
    """The attention sublayer of a kind of site."""
    causal = site == "decoder_self"
    return Sublayer(config, Attention(config.d_model, config.heads, config.memory(site), config.key_heads, causal))


def feedforward(config: MemoryConfig) -> Sublayer | None:
    """The FFN sublayer, or None if it has no slots."""
    settings = config.memory("ffn")
    if not settings.slots:
        return None
    return Sublayer(config, KeyValueMemory(config.d_model, settings, config.memory_dropout))


class EncoderLayer(GradientCheckpointingLayer):
    """Self-attention and an FFN."""

    site = "encoder_self"

    def __init__(self, config: MemoryConfig) -> None:
        super().__init__()
        self.self_attention = attention(config, self.site)
        self.ffn = feedforward(config)

    def forward(self, x: Tensor, **options: Any) -> tuple[Tensor, AttentionStats | None]:
        """The stream ``(B, N, width)`` after the layer; the options, and the statistics, are the attention's."""
        x, stats = self.self_attention(x, **options)
        if self.ffn is not None:
            x, _ = self.ffn(x)
        return x, stats


class CausalLayer(EncoderLayer):
    """Causal self-attention, whose keys and values a cache may keep, and an FFN."""

    site = "decoder_self"

    def __init__(self, config: MemoryConfig, index: int) -> None:
        super().__init__(config)
        self.index = index

    def forward(
        self, x: Tensor, *, past_key_values: Cache | None = None, **options: Any
    ) -> tuple[Tensor, AttentionStats | None]:
        """The stream ``(B, N, width)`` after the layer; the options, and the statistics, are the attention's."""
        if past_key_values is not None:
            options |= {"store": self._store(past_key_values), "carry": self._carry(past_key_values)}
        return super().forward(x, **options)

    def _store(self, cache: Cache) -> Store:
        """Append keys and values to the cache; the first call gets back its own, not all the room of a static one."""

        def store(make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            made = make()
            first = isinstance(past := cache.get_seq_length(self.index), int) and past == 0
            kept = cache.update(*made, self.index)
            return made if first else kept

        return store

    def _carry(self, cache: Any) -> Carry:
        """Keep what a token shift needs of the token before, in the place of a convolution's state."""

        def carry(kv: Tensor) -> Tensor | None:
            layer = cache.layers[self.index] if self.index < len(cache.layers) else None
            if not isinstance(layer, LinearAttentionLayer):
                raise ValueError(
                    "past_key_values must have room for token_shift: make it from the model's configuration, "
                    f"as in DynamicCache(config=model.config), got {type(cache).__name__} without"
                )
            n = kv.shape[2]
            states = layer.update_conv_state(kv.transpose(2, 3), 0, conv_kernel_size=1)  # (B, Hk, 2 D, past + N)
            return states[..., -n - 1 : -n].transpose(2, 3) if states.shape[-1] > n else None

        return carry


class DecoderLayer(GradientCheckpointingLayer):
    """Causal self-attention, attention to the source, and an FFN."""

    def __init__(self, config: MemoryConfig, index: int) -> None:
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
    ) -> tuple[Tensor, AttentionStats | None, AttentionStats | None]:
        """The stream after the layer and the statistics of both attentions, each with its own options."""
        own, other = (None, None) if past_key_values is None else self._stores(past_key_values)
        x, self_stats = self.self_attention(x, store=own, **self_options)
        x, cross_stats = self.cross_attention(x, source, store=other, **cross_options)
        if self.ffn is not None:
            x, _ = self.ffn(x)
        return x, self_stats, cross_stats

    def _stores(self, cache: Any) -> tuple[Store, Store]:
        """Stores of the two attentions: the keys and values of the target grow, those of the source are made once."""
        index = self.index

        def own(make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            k, v = cache.self_attention_cache.update(*make(), index)
            return k, v

        def other(make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            if cache.is_updated.get(index):
                layer = cache.cross_attention_cache.layers[index]
                return layer.keys, layer.values
            k, v = (x[:: getattr(cache, "shared", 1)] for x in make())
            k, v = cache.cross_attention_cache.update(k, v, index)
            cache.is_updated[index] = True
            return k, v

        return own, other
