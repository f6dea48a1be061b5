"""Attention that begins as softmax and turns into the model's own activation during training."""

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.memory.attention import Attention


class Annealing(TrainerCallback):
    """Sets the share of softmax in the attentions of a model: 1 at first, less with every update, then none at all.

    The share depends on the number of updates alone, so that a resumed run continues with the right one.

    Args:
        model: Model whose attentions are annealed.
        updates: Number of updates after which no softmax is left.
        start: Number of updates done already.
        device: Device of the model.
    """

    def __init__(self, model: nn.Module, updates: int, start: int, device: torch.device) -> None:
        self.attentions = [module for module in model.modules() if isinstance(module, Attention)]
        self.updates = updates
        self.share = torch.ones((), device=device)  # shared and changed in place, so that layers need not recompile
        self._set(start)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Set the share for the next update, and for an evaluation before it."""
        if state.global_step <= self.updates:
            self._set(state.global_step)
        if state.global_step == self.updates:
            # Graphs with softmax are no longer needed, but still count: beyond a few, layers would run uncompiled.
            torch.compiler.reset()

    def _set(self, step: int) -> None:
        share = max(0.0, 1 - step / self.updates)
        self.share.fill_(share)
        for attention in self.attentions:
            attention.softmax_share = self.share if share > 0 else None
