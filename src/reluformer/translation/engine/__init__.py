"""Greedy and beam search, and the engines that compute the next tokens for them.

``generate`` of transformers goes through dozens of Python layers for each token, reorders the keys of all beams at each
step, and continues with sources that are done. On a CPU an :class:`Engine` is a model of ours taken apart into the few
operations that a step of decoding needs: a handful of calls per layer, matrices may be int8, and keys stay where they
were written. Elsewhere a :class:`Stepper` runs the model itself.
"""

from reluformer.translation.engine.model import Engine
from reluformer.translation.engine.obstacles import can_step, obstacle
from reluformer.translation.engine.search import beam_search, greedy_search
from reluformer.translation.engine.stepper import Stepper
from reluformer.translation.engine.threads import THREADS

__all__ = ["THREADS", "Engine", "Stepper", "beam_search", "can_step", "greedy_search", "obstacle"]
