"""Translation on a CPU: an encoder-decoder of ours taken apart into the few operations that a step of decoding needs.

``generate`` of transformers goes through dozens of Python layers for each token, and reorders the keys of all beams at
each step. Here a step is a handful of calls per layer, matrices may be int8, and keys stay where they were written.
"""

from reluformer.translation.engine.model import Engine
from reluformer.translation.engine.obstacles import obstacle
from reluformer.translation.engine.search import beam_search, greedy_search
from reluformer.translation.engine.threads import THREADS

__all__ = ["THREADS", "Engine", "beam_search", "greedy_search", "obstacle"]
