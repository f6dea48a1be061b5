"""Checkpoints on disk: each is whole or absent, whatever happens while it is written or removed.

A checkpoint is written under another name and takes its own when all of it is on disk; it loses its name before it is
removed. What a killed run left under other names is removed when the next one starts.
"""

import json
import os
import shutil
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from reluformer.training.errors import TrainingError

PREFIX = "step-"
PARTS = ("model.safetensors", "optimizer*", "scheduler.pt", "rng_state*.pth")  # what a run needs to go on


class CheckpointFolder:
    """The checkpoints of a run.

    Args:
        folder: Folder that holds them, as ``step-1000`` and so on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.staging = folder / "writing"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, in order."""
        names = [path.name.removeprefix(PREFIX) for path in self.folder.glob(f"{PREFIX}*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def path(self, step: int) -> Path:
        """Return the path of the checkpoint of a step."""
        return self.folder / f"{PREFIX}{step}"

    def last(self) -> Path | None:
        """Return the newest checkpoint, from which a run resumes, or None."""
        steps = self.steps()
        return self.path(steps[-1]) if steps else None

    def publish(self, step: int, written: Path) -> None:
        """Give a complete checkpoint in the staging folder its name."""
        for path in [*written.rglob("*"), written]:
            _to_disk(path)
        written.rename(self.path(step))
        self.staging.rmdir()
        _to_disk(self.folder)

    def rotate(self, keep: int, every: int, best: int | None) -> None:
        """Remove all checkpoints but the last ``keep``, the best and the newest.

        A checkpoint at no multiple of ``every``, written when a run was stopped, goes as soon as there is a newer one.
        """
        steps = self.steps()
        regular = [step for step in steps if step % every == 0]
        kept = {*regular[-keep:], *steps[-1:], best}
        for step in steps:
            if step not in kept:
                self._remove(self.path(step))

    def clear(self) -> None:
        """Remove whatever is not a complete checkpoint."""
        for path in self.folder.glob("*"):
            if not path.name.removeprefix(PREFIX).isdecimal():
                shutil.rmtree(path, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        doomed = path.with_name(f"removing-{path.name}")
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def check_readable(checkpoint: Path) -> None:
    """Refuse a checkpoint that was damaged after it was written, by a full disk or an incomplete copy."""
    for path in sorted(checkpoint.iterdir()):
        reason = ""
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
            elif path.suffix in (".pt", ".pth") and not zipfile.is_zipfile(path):
                reason = "it is cut short"
        except (ValueError, SafetensorError) as error:
            reason = str(error)
        if reason:
            raise TrainingError(f"cannot read {path}: {reason}; remove {checkpoint} to go on from the one before it")


def check_complete(checkpoint: Path) -> None:
    """Refuse to go on from a checkpoint that lacks a part: without it, the run would silently become another one."""
    for part in PARTS:
        if not any(checkpoint.glob(part)):
            raise TrainingError(f"{checkpoint} has no {part}; remove {checkpoint} to go on from the one before it")


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
