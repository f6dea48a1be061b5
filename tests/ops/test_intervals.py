"""Interval arithmetic: exact rationals stay inside, whatever is rounded."""

from fractions import Fraction

import pytest
import torch

from reluformer.ops.intervals import EPS, Interval, add, affine, products, scaled, total


def exact(x: torch.Tensor) -> list[Fraction]:
    return [Fraction(v) for v in x.flatten().tolist()]


def inside(interval: Interval, values: list[Fraction]) -> bool:
    ends = zip(exact(interval.lower), values, exact(interval.upper), strict=True)
    return all(low <= value <= high for low, value, high in ends)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_affine_holds_the_exact_ends(size: float) -> None:
    x = Interval.around(size * torch.randn(9), 0.25 * size)
    weight, bias = torch.randn(7, 9, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    out = affine(x, weight, bias)
    low, high = exact(x.lower), exact(x.upper)
    for pick in (max, min):
        ends = [
            sum((pick(w * a, w * b) for w, a, b in zip(exact(row), low, high, strict=True)), Fraction(float(c)))
            for row, c in zip(weight, bias, strict=True)
        ]
        assert inside(out, ends)
        assert torch.allclose(out.upper if pick is max else out.lower, torch.tensor([float(e) for e in ends]).double())


def test_products_hold_the_exact_ends() -> None:
    q, k = (Interval.around(torch.randn(n, 6, dtype=torch.float64), 0.7) for n in (3, 4))
    out = products(q, k, 0.5)
    for pick, end in ((max, out.upper), (min, out.lower)):
        for i in range(3):
            for j in range(4):
                parts = [
                    [Fraction(float(a)) * Fraction(float(b)) for a in ends_q for b in ends_k]
                    for ends_q, ends_k in zip(
                        zip(q.lower[i], q.upper[i], strict=True), zip(k.lower[j], k.upper[j], strict=True), strict=True
                    )
                ]
                best = Fraction(1, 2) * sum(pick(corner) for corner in parts)
                assert (best <= Fraction(float(end[i, j]))) if pick is max else (best >= Fraction(float(end[i, j])))
                assert float(best) == pytest.approx(float(end[i, j]), rel=1e-12)


def test_sums_of_intervals() -> None:
    x, y = Interval.around(torch.randn(5, 4), 0.1), Interval.around(1e6 * torch.randn(5, 4), 0.1)
    for end in ("lower", "upper"):
        a, b = getattr(x, end), getattr(y, end)
        assert inside(add(x, y), [p + q for p, q in zip(exact(a), exact(b), strict=True)])
        assert inside(scaled(x, 1 / 3), [p / 3 for p in exact(a)])
        assert inside(total(x, 0, 0.2), [sum(exact(column)) * Fraction(0.2) for column in a.T])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_conversion_rounds_outward(dtype: torch.dtype) -> None:
    x = torch.randn(1000, dtype=torch.float64)
    narrow = Interval(x, x).to(dtype)
    assert narrow.lower.dtype == dtype
    assert narrow.wide().contains(x).all()
    assert (narrow.wide().width <= 4 * torch.finfo(dtype).eps * x.abs() + 1e-3).all()


def test_ball_is_clipped_and_checked() -> None:
    ball = Interval.around(torch.tensor([0.0, 0.5, 1.0]), 0.1, 0.0, 1.0)
    assert ball.lower.min() == 0
    assert ball.upper.max() == 1
    assert ball.contains(torch.tensor([0.1, 0.6, 0.9], dtype=torch.float64)).all()
    assert not ball.contains(torch.tensor([float("nan")] * 3)).any()
    assert (Interval.around(torch.ones(2), 0.0).width == 0).all()
    assert (Interval.around(torch.ones(2), 0.1).width <= 0.2 + 8 * EPS).all()
    for radius in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="radius must be a number >= 0"):
            Interval.around(torch.ones(2), radius)
