"""Recalibration of gamma where a run moves on to documents: with alpha 0, the gamma of sentences does not fit them."""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.data.batching import CostBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.memory.calibration import calibrate
from reluformer.models.loss import IGNORED
from reluformer.training.arguments import uses_bf16
from reluformer.training.loading import longer_sides
from reluformer.training.recipe import Recipe


class Recalibration(TrainerCallback):
    """Sets gamma to unit mass on a batch of the last stage, before its first update.

    A run that resumes from a checkpoint at exactly that step recalibrates, too: the checkpoint was written before.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.step = sum(stage.steps for stage in recipe.stages[:-1])

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Calibrate if the last stage is about to begin."""
        if state.global_step != self.step:
            return
        model, recipe = more["model"], self.recipe
        examples = PackedDataset(recipe.data, "train", recipe.stages[-1].length)
        numbers = next(iter(CostBatches(longer_sides(examples), recipe.batches.cost, seed=recipe.seed)))
        batch = Collator()([examples[i] for i in numbers])
        batch["decoder_query_mask"] = batch.pop("labels") != IGNORED
        bf16 = uses_bf16(recipe.precision, model.device)
        # Compiled layers would not call the hooks that calibrate.
        with torch.compiler.set_stance("force_eager"), torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            calibrate(model, **{name: x.to(model.device) for name, x in batch.items()}, use_cache=False)
