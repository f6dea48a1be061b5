"""Kinds of memory by the short names that the command line and tables use."""

from typing import Any

from reluformer.memory.settings import MemorySettings

KINDS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    "relu-mass": {"activation": "relu", "norm": "mass"},
    "softmax": {"activation": "softmax", "alpha": 0.0, "gamma": "none"},
}


def name_of(settings: MemorySettings) -> str:
    """The short name of a kind of memory."""
    return f"{settings.activation}-mass" if settings.norm == "mass" else settings.activation
