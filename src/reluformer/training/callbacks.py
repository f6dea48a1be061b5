"""Callbacks that watch a run: a clean stop on a signal, and the curve in a file."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.data.files import written_file

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGREE_EVERY = 10  # updates: several processes must stop at the same one, and agreeing on it takes time


class StopOnSignal(TrainerCallback):
    """Finishes the update, writes a checkpoint and ends the run on Ctrl-C or SIGTERM; a second one ends it at once."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator
        self.caught = self.stopped = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals for the duration of the context."""
        before: dict[int, Any] = {}

        def catch(number: int, _: Any) -> None:
            self.caught = True
            signal.signal(number, before[number])

        before |= {number: signal.signal(number, catch) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Stop after this update if any process has received a signal."""
        if self._agreed(state.global_step):
            self.stopped = control.should_save = control.should_training_stop = True

    def _agreed(self, step: int) -> bool:
        if self.accelerator.num_processes == 1:
            return self.caught
        if step % AGREE_EVERY:
            return False
        told = torch.tensor(float(self.caught), device=self.accelerator.device)
        return bool(self.accelerator.reduce(told, "sum") > 0)


class CurveFile(TrainerCallback):
    """Writes the curve as JSON, a point per line; when a run resumes, points beyond its checkpoint are discarded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin the file with the points up to the checkpoint."""
        if state.is_world_process_zero:
            with written_file(self.path) as file:
                for entry in filter(_is_point, state.log_history):
                    file.write(self._line(entry, int(entry["step"])))

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Append a point."""
        if state.is_world_process_zero and logs and _is_point(logs):
            with self.path.open("ab") as file:
                file.write(self._line(logs, state.global_step))

    @staticmethod
    def _line(entry: dict[str, Any], step: int) -> bytes:
        values = {name: value for name, value in entry.items() if name not in ("epoch", "step")}
        return json.dumps({"step": step, **values}).encode() + b"\n"


def _is_point(entry: dict[str, Any]) -> bool:
    return "loss" in entry or "eval_loss" in entry
