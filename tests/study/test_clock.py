import json
from pathlib import Path

import pytest

from reluformer.study.clock import nll_at, speed_of

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
