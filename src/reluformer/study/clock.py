"""The curve of a run over training time, which excludes validation and writing; its speed and its memory."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.data.files import read_json, write_json


class Clock(TrainerCallback):
    """Writes ``step``, ``nll`` and ``seconds`` of every validation to a file; a resumed run appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: list[dict[str, float]] = []
        self.seconds = self.mark = 0.0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restore the points up to the checkpoint."""
        self.points = [point for point in read_json(self.path) or [] if point["step"] <= state.global_step]
        timed = [entry["seconds"] for entry in (*self.points, *state.log_history) if "seconds" in entry]
        self.seconds = max(timed, default=0.0)
        self.mark = time.monotonic()

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Read the clock here, since the trainer has just waited for the device."""
        if logs and "loss" in logs:
            now = time.monotonic()
            self.seconds, self.mark = self.seconds + now - self.mark, now
            state.log_history[-1]["seconds"] = self.seconds  # is in the checkpoint of a run that is stopped here

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        """Add a point."""
        metrics = more["metrics"]
        self.points.append({"step": state.global_step, "nll": metrics["eval_loss"], "seconds": self.seconds})
        write_json(self.path, self.points)
        self.mark = time.monotonic()

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Exclude the time spent writing."""
        self.mark = time.monotonic()


class PeakOfLastStage(TrainerCallback):
    """Peak GPU memory of the last stage, in ``gib``; None without a GPU, or if nothing was trained."""

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step
        self.gib: float | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Release the memory of the previous cell to other processes, and reset the peak."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Reset the peak when the last stage begins."""
        if state.global_step == self.first_step and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Record the peak, and release to other processes what scoring does not need."""
        if torch.cuda.is_available():
            self.gib = torch.cuda.max_memory_allocated() / 2**30
            torch.cuda.empty_cache()


def speed_of(log: Path, after: int = 0) -> float | None:
    """Return the tokens per second of a run past a step: the median of its log, whose first point includes start-up."""
    points = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    timed = [point for point in points if "tokens_per_second" in point and point["step"] > after]
    speeds = sorted(float(point["tokens_per_second"]) for point in timed)
    return speeds[len(speeds) // 2] if speeds else None


def nll_at(curve: list[dict[str, float]], step: float) -> float | None:
    """Return the loss after ``step`` updates, linearly interpolated.

    Past the end of the curve it is the last loss; before the first point it is None.
    """
    if not curve or step < curve[0]["step"]:
        return None
    return float(np.interp(step, [point["step"] for point in curve], [point["nll"] for point in curve]))
