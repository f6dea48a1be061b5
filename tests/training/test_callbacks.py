import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from reluformer.training.callbacks import AGREE_EVERY, CurveFile, StopOnSignal


class Processes(SimpleNamespace):
    """An accelerator of several processes, of which another was told to stop."""

    num_processes, device = 2, torch.device("cpu")

    def reduce(self, x: torch.Tensor, _: str) -> torch.Tensor:
        return x + self.others


def ends(stop: StopOnSignal, step: int) -> bool:
    control = TrainerControl()
    stop.on_step_end(None, TrainerState(global_step=step), control)
    assert control.should_save == control.should_training_stop == stop.stopped
    return stop.stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_heard_and_the_second_has_its_usual_effect(number: int) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda n, _: heard.append(n))
    try:
        stop = StopOnSignal(SimpleNamespace(num_processes=1))
        with stop.listening():
            assert not ends(stop, 1)
            os.kill(os.getpid(), number)
            assert heard == []
            assert ends(stop, 2)
            os.kill(os.getpid(), number)
            assert heard == [number]
        os.kill(os.getpid(), number)
        assert heard == [number] * 2
    finally:
        signal.signal(number, before)


def test_processes_stop_at_the_same_step() -> None:
    for others, caught in ((1.0, False), (0.0, True)):
        stop = StopOnSignal(Processes(others=others))
        stop.caught = caught
        assert [ends(stop, step) for step in range(AGREE_EVERY - 2, AGREE_EVERY + 1)] == [False, False, True]
    assert not ends(StopOnSignal(Processes(others=0.0)), AGREE_EVERY)


def test_the_curve_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 5, "loss": 1.0}\n{"step": 99, "loss": 0.5}\n{"st')  # of a run that was killed
    state = TrainerState(global_step=5, log_history=[{"loss": 1.0, "epoch": 0.1, "step": 5}, {"step": 5, "other": 1}])
    curve = CurveFile(path)
    curve.on_train_begin(None, state, TrainerControl())
    state.global_step = 10
    for logs in ({"loss": 0.9, "epoch": 0.2}, {"eval_loss": 0.8}, {"train_runtime": 1.0}):
        curve.on_log(None, state, TrainerControl(), logs)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 5, "loss": 1.0}, {"step": 10, "loss": 0.9}, {"step": 10, "eval_loss": 0.8},
    ]  # fmt: skip
