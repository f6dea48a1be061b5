import json
from pathlib import Path

import pytest
import torch
from transformers import TrainerControl, TrainerState

from reluformer.study.clock import Clock, PeakOfLastStage, nll_at, speed_of

CURVE = [{"step": 10, "nll": 4.0}, {"step": 30, "nll": 2.0}]


@pytest.mark.parametrize(("step", "nll"), [(5, None), (10, 4.0), (20, 3.0), (22.5, 2.75), (30, 2.0), (90, 2.0)])
def test_loss_at_an_update(step: float, nll: float | None) -> None:
    assert nll_at(CURVE, step) == nll


def test_no_curve() -> None:
    assert nll_at([], 1.0) is None


def test_speed_is_the_median_past_a_step(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    speeds = {2: 10.0, 4: 50.0, 6: 20.0, 8: 30.0, 10: 25.0}
    points = [{"step": step, "tokens_per_second": speed} for step, speed in speeds.items()] + [{"step": 11}]
    log.write_text("".join(json.dumps(point) + "\n" for point in points))
    assert speed_of(log) == 25.0
    assert speed_of(log, 4) == 25.0
    assert speed_of(log, 8) == 25.0
    assert speed_of(log, 2) == 30.0
    assert speed_of(log, 10) is None


def test_memory_is_that_of_the_last_stage_and_none_where_nothing_was_left_to_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cell that was stopped while it was scored would say that its model took none."""
    peak = 9.0 * 2**30  # of the cell before

    def forget() -> None:
        nonlocal peak
        peak = 0.0

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak)
    state, control, callback = TrainerState(), TrainerControl(), PeakOfLastStage(2)
    assert callback.gib is None
    callback.on_train_begin(None, state, control)
    for step, gib in enumerate((5.0, 5.0, 1.0, 2.0)):
        state.global_step = step
        callback.on_step_begin(None, state, control)
        peak = max(peak, gib * 2**30)
    callback.on_train_end(None, state, control)
    assert callback.gib == 2.0


def test_time_goes_on_where_a_run_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That may be between two points of the curve."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    state, control = TrainerState(), TrainerControl()
    for step, evaluated in ((10, True), (15, False), (20, True)):  # a run that is stopped and resumed at every step
        clock = Clock(tmp_path / "curve.json")
        clock.on_train_begin(None, state, control)
        now += 5.0
        state.global_step = step
        state.log_history.append({"loss": 1.0, "step": step})
        clock.on_log(None, state, control, {"loss": 1.0})
        now += 100.0
        if evaluated:
            clock.on_evaluate(None, state, control, metrics={"eval_loss": 2.0})
    assert [(point["step"], point["seconds"]) for point in clock.points] == [(10, 5.0), (20, 15.0)]
