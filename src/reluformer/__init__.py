"""Transformers in which ReLU replaces softmax."""

from reluformer.ops import AttentionStats, relu_attention, relu_attention_varlen

__version__ = "0.1.0"
__all__ = ["AttentionStats", "__version__", "relu_attention", "relu_attention_varlen"]
