"""Saving disk space: only the last checkpoint keeps its optimiser state."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import OPTIMIZER_NAME

from reluformer.training.checkpoints import CheckpointFolder


class LeanCheckpoints(TrainerCallback):
    """Removes the optimiser state, two thirds of a checkpoint, once there is a newer checkpoint.

    A run resumes from its last checkpoint; those before it are only kept to be averaged.
    """

    def __init__(self, run: Path) -> None:
        self.checkpoints = CheckpointFolder(run / "checkpoints")

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Strip all checkpoints before the one that was just written."""
        for step in self.checkpoints.steps()[:-1]:
            (self.checkpoints.path(step) / OPTIMIZER_NAME).unlink(missing_ok=True)
