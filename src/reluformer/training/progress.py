"""Progress of a run: in a terminal a bar with loss, speed and the time left, elsewhere lines."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from transformers import TrainerCallback, TrainerControl, TrainerState


class ProgressBar(TrainerCallback):
    """Shows the progress of a run on standard error; the loss is that of the last point of the curve."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.began = (0.0, 0)  # time and step
        self.loss = self.speed = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show the bar."""
        self.began = time.monotonic(), state.global_step
        if self.console.is_terminal and state.is_world_process_zero:
            columns = (
                BarColumn(None),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
                TextColumn("{task.fields[about]}"),
            )
            self.bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self.task = self.bar.add_task("", total=state.max_steps, completed=state.global_step, about="")
            self.bar.start()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Advance the bar."""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=state.global_step, about=self._about(state))

    def on_log(
        self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Update loss and speed from a point of the curve, or print an evaluation."""
        if not logs or not state.is_world_process_zero:
            return
        if "loss" in logs:
            self.loss, self.speed = f"loss {logs['loss']:.3f}", f"{logs['tokens_per_second']:,.0f} tokens/s"
            if self.bar is None:
                self._say(f"step {state.global_step:,}/{state.max_steps:,}  {self._about(state)}")
        if "eval_loss" in logs:
            bleu = f"  d-BLEU {logs['eval_d_bleu']:.2f}" if "eval_d_bleu" in logs else ""
            self._say(f"step {state.global_step:,}: validation loss {logs['eval_loss']:.3f}{bleu}")

    def close(self) -> None:
        """Remove the bar, however the run ended."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _about(self, state: TrainerState) -> str:
        began, first = self.began
        done = max(state.global_step - first, 1)
        left = (time.monotonic() - began) / done * (state.max_steps - state.global_step)
        return "  ".join(part for part in (self.loss, self.speed, f"{duration(left)} left") if part)

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Format a time as a clock does: ``1:02:03`` or ``2:03``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
