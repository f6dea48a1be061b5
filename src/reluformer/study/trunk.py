"""Sharing between runs that differ only in their last stage: the stages before it are trained once for all of them."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.data.dataset import read_manifest
from reluformer.study.locks import locked
from reluformer.training.checkpoints import CheckpointFolder
from reluformer.training.identity import claim
from reluformer.training.recipe import Recipe

CHECKPOINT = "checkpoint"
CURVES = ("curve.json", "log.jsonl")


class Trunk:
    """All stages of a run but the last.

    Args:
        folder: Folder that keeps the checkpoint at their end, for all runs that share them.
        recipe: Recipe of one of these runs.
    """

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe
        self.step = sum(stage.steps for stage in recipe.stages[:-1])
        self.run = Path(recipe.out)
        self.checkpoints = CheckpointFolder(self.run / "checkpoints")

    @contextmanager
    def shared(self) -> Iterator[list[TrainerCallback]]:
        """Enclose the training of a run, which starts where the trunk ends, or trains the trunk while others wait.

        Yields the callbacks that the run needs for that.
        """
        with ExitStack() as lock:
            lock.enter_context(locked(self.folder.with_suffix(".lock")))
            past = max(self.checkpoints.steps(), default=0) >= self.step
            if not past and not self.folder.exists():
                yield [_KeptAtItsEnd(self, lock.close)]
                return
            if not past:
                self._begin_at_its_end()
            lock.close()
            yield []

    def _begin_at_its_end(self) -> None:
        claim(self.recipe, read_manifest(self.recipe.data)["key"], processes=1)
        for path in filter(Path.exists, (self.folder / name for name in CURVES)):
            shutil.copy2(path, self.run)
        written = self.checkpoints.folder / "grafted"  # a name that is not taken for a checkpoint's
        shutil.rmtree(written, ignore_errors=True)
        shutil.copytree(self.folder / CHECKPOINT, written)
        written.rename(self.checkpoints.path(self.step))

    def keep(self) -> None:
        """Copy the trunk from the run, which has just written the checkpoint at its end."""
        written = self.folder.with_suffix(".tmp")
        shutil.rmtree(written, ignore_errors=True)
        shutil.copytree(self.checkpoints.path(self.step), written / CHECKPOINT)
        for path in filter(Path.exists, (self.run / name for name in CURVES)):
            shutil.copy2(path, written)
        written.rename(self.folder)


class _KeptAtItsEnd(TrainerCallback):
    """Writes a checkpoint where the trunk ends, keeps it, and releases the runs that wait for it."""

    def __init__(self, trunk: Trunk, let_go: Callable[[], None]) -> None:
        self.trunk, self.let_go = trunk, let_go

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Request a checkpoint at the end of the trunk."""
        control.should_save |= state.global_step == self.trunk.step

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Keep that checkpoint and release the lock."""
        if state.global_step == self.trunk.step:
            self.trunk.keep()
            self.let_go()
