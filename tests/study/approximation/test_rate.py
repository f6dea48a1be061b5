import math

import numpy
import pytest

from reluformer.study.approximation.rate import fit_rate, t_quantile

WIDTHS = (4, 16, 64, 256, 1024)


def test_a_power_is_recovered() -> None:
    rate = fit_rate(WIDTHS, [3 * width**-0.75 for width in WIDTHS])
    assert rate.slope == pytest.approx(-0.75)
    assert rate.interval == pytest.approx(0, abs=1e-6)


def test_the_interval_holds_the_slope_as_often_as_it_says() -> None:
    random = numpy.random.default_rng(0)
    held = 0
    for _ in range(1000):
        noise = numpy.exp(0.2 * random.standard_normal(len(WIDTHS)))
        rate = fit_rate(WIDTHS, [width**-0.5 * float(x) for width, x in zip(WIDTHS, noise, strict=True)])
        assert rate.interval is not None
        held += abs(rate.slope + 0.5) <= rate.interval
    assert abs(held / 1000 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 1000)


def test_slope_is_that_of_numpy() -> None:
    errors = [0.9, 0.5, 0.11, 0.12, 0.08]
    assert fit_rate(WIDTHS, errors).slope == pytest.approx(numpy.polyfit(numpy.log(WIDTHS), numpy.log(errors), 1)[0])


def test_two_points_have_no_interval() -> None:
    rate = fit_rate((4, 16), (1.0, 0.25))
    assert rate.slope == pytest.approx(-1)
    assert rate.interval is None


@pytest.mark.parametrize(("freedom", "known"), [(1, 12.706), (3, 3.182), (7, 2.365), (100, 1.984)])
def test_quantiles_are_those_of_the_tables(freedom: int, known: float) -> None:
    assert t_quantile(freedom) == pytest.approx(known, abs=5e-4)
