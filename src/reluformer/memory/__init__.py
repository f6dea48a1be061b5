"""Memories: every sublayer of a Transformer as a lookup of queries in keys and values.

A memory is an activation of the scores, a scale and a norm of the output. Its keys and values are learned (the FFN,
:class:`KeyValueMemory`), come from the sequence (:class:`Attention`), or both (:class:`PersistentMemory` beside it).
"""

from reluformer.memory.attention import Attention
from reluformer.memory.calibration import calibrate
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.persistent import PersistentMemory
from reluformer.memory.regulariser import Regulariser
from reluformer.memory.settings import MemorySettings

__all__ = ["Attention", "KeyValueMemory", "MemorySettings", "PersistentMemory", "Regulariser", "calibrate"]
