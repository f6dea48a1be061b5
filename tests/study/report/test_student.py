import math
import random

import pytest

from reluformer.study.report.student import Difference, incomplete_beta, welch


def test_incomplete_beta_against_closed_forms():
    assert incomplete_beta(2, 3, 0.4) == pytest.approx(0.5248)  # P(Binomial(4, 0.4) >= 2)
    assert incomplete_beta(0.5, 0.5, 0.3) == pytest.approx(2 / math.pi * math.asin(math.sqrt(0.3)))
    assert incomplete_beta(7.5, 1, 0.9) == pytest.approx(0.9**7.5)
    assert incomplete_beta(3, 4, 0) == 0
    assert incomplete_beta(3, 4, 1) == 1


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (10, 2.22814), (30, 2.04227), (1000, 1.96234)]
)
def test_p_values_against_the_tables_of_student(freedom, t):
    assert Difference(t, 1, freedom).either() == pytest.approx(0.05, abs=1e-6)
    assert Difference(t, 1, freedom).above(0) == pytest.approx(0.025, abs=1e-6)
    assert Difference(-t, 1, freedom).above(0) == pytest.approx(0.975, abs=1e-6)
    assert Difference(-t, 1, freedom).below(0) == pytest.approx(0.025, abs=1e-6)


def test_welch_by_hand():
    # Means 2 and 6, variances 1 and 4: error sqrt(1/3 + 4/3), freedom (5/3)^2 / ((1/9 + 16/9) / 2).
    found = welch([1, 2, 3], [4, 6, 8])
    assert found.mean == -4
    assert found.error == pytest.approx(math.sqrt(5 / 3))
    assert found.freedom == pytest.approx(50 / 17)
    # t = -3.0984 with 2.941 degrees of freedom.
    assert found.either() == pytest.approx(0.0547, abs=5e-4)


def test_two_one_sided_tests_by_hand():
    # With one degree of freedom P(T > t) = 1/2 - atan(t) / pi; the nearer margin decides.
    found = Difference(0.2, 0.1, 1)
    assert found.within(1.0) == pytest.approx(0.5 - math.atan(8) / math.pi)
    assert found.within(0.1) > 0.5


def test_false_alarms_come_as_often_as_stated():
    numbers = random.Random(0)
    samples = [[numbers.gauss(0, 1) for _ in range(4)] for _ in range(4000)]
    alarms = sum(welch(a, b).either() < 0.05 for a, b in zip(samples[::2], samples[1::2], strict=True))
    assert 0.03 < alarms / 2000 < 0.065


def test_without_spread_the_sign_decides():
    assert welch([2, 2], [1, 1]).either() == 0
    assert welch([1, 1], [1, 1]).either() == 1
    assert welch([1, 1], [1, 1]).within(0.5) == 0
