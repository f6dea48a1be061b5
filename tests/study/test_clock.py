import json
from pathlib import Path

import pytest

from reluformer.study.clock import nll_at, speed_of

CURVE = [{"step": 1, "nll": 4.0, "seconds": 1.0}, {"step": 2, "nll": 2.0, "seconds": 3.0}]


@pytest.mark.parametrize(("seconds", "nll"), [(0.5, None), (1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (9.0, 2.0)])
def test_loss_at_a_time(seconds: float, nll: float | None) -> None:
    assert nll_at(CURVE, seconds) == nll


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
