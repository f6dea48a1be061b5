"""Attention that begins as softmax and turns into what it is, while it learns."""

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.memory.attention import Attention


class Annealing(TrainerCallback):
    """Sets the share of softmax in the attentions of a model: 1 at first, less with every update, then none at all.

    It depends on the number of updates alone, so that a run that is resumed goes on with its own.

    Args:
        model: Whose attentions.
        updates: After so many there is no softmax any more.
        start: Updates that are done already.
        device: Of the model.
    """

    def __init__(self, model: nn.Module, updates: int, start: int, device: torch.device) -> None:
        self.attentions = [module for module in model.modules() if isinstance(module, Attention)]
        self.updates = updates
        self.share = torch.ones((), device=device)  # one for all, changed in place: compiled layers stay as they are
        self._set(start)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Ready for the next update, and for an evaluation before it."""
        if state.global_step <= self.updates:
            self._set(state.global_step)
        if state.global_step == self.updates:
            # Graphs with softmax in them are done with, and count: beyond a few, layers would run uncompiled.
            torch.compiler.reset()

    def _set(self, step: int) -> None:
        share = max(0.0, 1 - step / self.updates)
        self.share.fill_(share)
        for attention in self.attentions:
            attention.softmax_share = self.share if share > 0 else None
