"""Memories by short names, as the command line and tables have them."""

from typing import Any

from reluformer.memory.settings import MemorySettings

KINDS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    "relu-mass": {"activation": "relu", "norm": "mass"},
    "softmax": {"activation": "softmax", "alpha": 0.0, "gamma": "none"},
}


def name_of(settings: MemorySettings) -> str:
    """A memory in a word."""
    return f"{settings.activation}-mass" if settings.norm == "mass" else settings.activation
