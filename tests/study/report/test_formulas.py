import math

import pytest

from reluformer.study.report.formulas import value_of


@pytest.mark.parametrize(
    ("formula", "value"),
    [("x / 2", 4), ("e / x", math.e / 8), ("1", 1), ("sqrt(x / pi)", math.sqrt(8 / math.pi)), ("-x ** 2 + 1", -63)],
)
def test_formulas(formula, value):
    assert value_of(formula, 8) == pytest.approx(value)


@pytest.mark.parametrize(
    "formula", ["", "x /", "n / 2", "__import__('os')", "x.real", "1 / (x - 8)", "log(-x)", "9**9**9.0", "(-x) ** 0.5"]
)
def test_what_is_no_formula_or_has_no_value(formula):
    assert value_of(formula, 8) is None
