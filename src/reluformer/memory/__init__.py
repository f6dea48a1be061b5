"""Memories: every sublayer of a Transformer as a lookup of queries in keys and values.

A memory is defined by the activation of its scores, a scale and a norm of its output. Its keys and values are learned
(the FFN, :class:`KeyValueMemory`), computed from the sequence (:class:`Attention`), or both (:class:`Attention` with a
:class:`PersistentMemory` beside the sequence).
"""

from reluformer.memory.attention import Attention
from reluformer.memory.calibration import calibrate
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.persistent import PersistentMemory
from reluformer.memory.regulariser import Regulariser
from reluformer.memory.settings import MemorySettings

__all__ = ["Attention", "KeyValueMemory", "MemorySettings", "PersistentMemory", "Regulariser", "calibrate"]
