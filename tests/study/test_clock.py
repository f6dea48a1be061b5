import pytest

from reluformer.study.clock import nll_at

CURVE = [{"step": 1, "nll": 4.0, "seconds": 1.0}, {"step": 2, "nll": 2.0, "seconds": 3.0}]


@pytest.mark.parametrize(("seconds", "nll"), [(0.5, None), (1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (9.0, 2.0)])
def test_loss_at_a_time(seconds: float, nll: float | None) -> None:
    assert nll_at(CURVE, seconds) == nll


def test_no_curve() -> None:
    assert nll_at([], 1.0) is None
