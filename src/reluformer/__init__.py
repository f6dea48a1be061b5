"""Transformers in which ReLU replaces softmax."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer.integration import convert
    from reluformer.models import (
        ReLUFormerConfig,
        ReLUFormerForCausalLM,
        ReLUFormerForConditionalGeneration,
        ReLUFormerForImageClassification,
        ReLUFormerImageConfig,
        ReLUFormerLanguageConfig,
    )
    from reluformer.ops import AttentionStats, relu_attention, relu_attention_varlen
    from reluformer.report import memory_report

__version__ = "0.1.0"
__all__ = [
    "AttentionStats",
    "ReLUFormerConfig",
    "ReLUFormerForCausalLM",
    "ReLUFormerForConditionalGeneration",
    "ReLUFormerForImageClassification",
    "ReLUFormerImageConfig",
    "ReLUFormerLanguageConfig",
    "__version__",
    "convert",
    "memory_report",
    "relu_attention",
    "relu_attention_varlen",
]

# Imported on first access: the operator needs torch alone, the others the toolkit, and the command must respond to
# Ctrl-C while they load.
_HOMES = {
    "AttentionStats": "reluformer.ops",
    "ReLUFormerConfig": "reluformer.models",
    "ReLUFormerForCausalLM": "reluformer.models",
    "ReLUFormerForConditionalGeneration": "reluformer.models",
    "ReLUFormerForImageClassification": "reluformer.models",
    "ReLUFormerImageConfig": "reluformer.models",
    "ReLUFormerLanguageConfig": "reluformer.models",
    "convert": "reluformer.integration",
    "memory_report": "reluformer.report",
    "relu_attention": "reluformer.ops",
    "relu_attention_varlen": "reluformer.ops",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reluformer' has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "reluformer":
            raise
        message = f'reluformer.{name} needs {error.name}: pip install "reluformer[toolkit]"'
        raise ModuleNotFoundError(message, name=error.name) from error
    globals()[name] = found  # so that this runs only once per name
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
