"""ReLU attention and its bounds as pure functions on tensors."""

from reluformer.ops.attention import relu_attention, relu_attention_varlen
from reluformer.ops.statistics import AttentionStats

__all__ = ["AttentionStats", "relu_attention", "relu_attention_varlen"]
