"""Bounds of lookups against brute force: all vertices, a million points, extended precision, finite differences."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from reluformer.ops.bounds import relu_bounds, relu_mass_bounds, softmax_bounds
from reluformer.ops.intervals import Interval

Bounds = Callable[[Interval, Tensor | Interval], Interval]
Weigh = Callable[[np.ndarray], np.ndarray]
INF = float("inf")


def softmax(s: np.ndarray) -> np.ndarray:
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def over_mass(r: np.ndarray) -> np.ndarray:
    mass = r.sum(-1, keepdims=True)
    return r / np.where(mass > 0, mass, 1)


def relu(s: np.ndarray) -> np.ndarray:
    return np.maximum(s, 0)


# Bounds, and the weights in the precision of what they are given.
FAMILY: dict[str, tuple[Bounds, Weigh]] = {
    "softmax": (softmax_bounds, softmax),
    "relu": (relu_bounds, relu),
    "relu squared": (
        lambda s, v: relu_bounds(s, v, power=2, bias=0.25, factor=0.5),
        lambda s: relu(s + s.dtype.type(0.25)) ** 2 / 2,
    ),
    "relu to the fourth": (
        lambda s, v: relu_bounds(s, v, power=4, bias=0.25),
        lambda s: relu(s + s.dtype.type(0.25)) ** 4,
    ),
    "relu over mass": (relu_mass_bounds, lambda s: over_mass(relu(s))),
    "relu squared over mass": (
        lambda s, v: relu_mass_bounds(s, v, power=2, bias=0.25),
        lambda s: over_mass(relu(s + s.dtype.type(0.25)) ** 2),
    ),
}
family = pytest.mark.parametrize(("bounds", "weigh"), FAMILY.values(), ids=FAMILY)


def problem(rows: int, slots: int, size: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[Interval, Tensor]:
    """Scores ``(rows, 1, slots)``, some of them of no width, and values ``(rows, slots, 1)``, some of them equal."""
    centre, radius = size * torch.randn(rows, 1, slots), size * torch.rand(rows, 1, slots)
    radius = radius * (torch.rand(radius.shape) < 0.9)
    values = torch.randn(rows, slots, 1)
    values = torch.where(torch.rand(values.shape) < 0.2, values[:, :1], values)
    return Interval((centre - radius).to(dtype), (centre + radius).to(dtype)), values.to(dtype)


def vertices(scores: Interval) -> np.ndarray:
    """All corners, ``(rows, 2 ** slots, slots)``, in extended precision."""
    pick = np.array(list(itertools.product([False, True], repeat=scores.shape[-1])))
    lower, upper = (x[:, 0, None].numpy().astype(np.longdouble) for x in (scores.lower, scores.upper))
    return np.where(pick, upper, lower)


def answers(weigh: Weigh, points: np.ndarray, values: Tensor) -> np.ndarray:
    """``(rows, points)`` sums of values ``(rows, slots, 1)``."""
    with np.errstate(invalid="ignore"):
        return (weigh(points) * values[:, None, :, 0].numpy().astype(points.dtype)).sum(-1)


def ends(out: Interval) -> tuple[np.ndarray, np.ndarray]:
    return tuple(x[:, 0].numpy().astype(np.longdouble) for x in (out.lower, out.upper))  # (rows, 1)


@family
@pytest.mark.parametrize("slots", [1, 2, 5, 10])
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_exact_over_all_vertices(bounds: Bounds, weigh: Weigh, slots: int, size: float) -> None:
    scores, values = problem(40, slots, size)
    lower, upper = ends(bounds(scores, values))
    found = answers(weigh, vertices(scores), values)
    least, most = found.min(1, keepdims=True), found.max(1, keepdims=True)
    assert (lower <= least).all()
    assert (most <= upper).all()
    rounding = 1e-11 * np.maximum(1, np.abs(found).max(1, keepdims=True))
    assert (upper - most <= rounding).all()  # attained, hence exact
    assert (least - lower <= rounding).all()


@family
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_violation_in_a_million(bounds: Bounds, weigh: Weigh, dtype: torch.dtype) -> None:
    wide = np.longdouble if dtype == torch.float64 else np.float64
    generator = np.random.default_rng(0)
    checked = violations = 0
    for slots, size in ((2, 1.0), (4, 0.01), (6, 1e4), (6, 10.0)):
        scores, values = problem(1000, slots, size, dtype)
        out = bounds(scores, values)
        assert out.lower.dtype == dtype
        lower, upper = (x[:, 0].numpy().astype(wide) for x in (out.lower, out.upper))
        low, high = (x.numpy().astype(wide) for x in (scores.lower, scores.upper))
        part = generator.random((1000, 250, slots)).astype(wide)
        part = np.where(generator.random(part.shape) < 0.3, np.round(part), part)  # many on faces and at corners
        found = answers(weigh, low + part * (high - low), values)
        slack = 0 if wide is np.longdouble else 1e-14 * np.abs(found)  # what the check itself is rounded by
        violations += int(((found < lower - slack) | (found > upper + slack)).sum())
        checked += found.size
    assert checked == 1_000_000
    assert violations == 0


@family
def test_smaller_intervals_have_smaller_ranges(bounds: Bounds, weigh: Weigh) -> None:
    scores, values = problem(300, 8)
    inner = Interval(scores.lower + 0.3 * scores.width, scores.upper - 0.3 * scores.width)
    outside, inside = bounds(scores, values), bounds(inner, values)
    assert (outside.lower <= inside.lower + 1e-11).all()
    assert (inside.upper <= outside.upper + 1e-11).all()
    assert (inside.width < outside.width).any()


@family
def test_points_have_no_width_but_rounding(bounds: Bounds, weigh: Weigh) -> None:
    scores, values = problem(50, 7)
    point = Interval(scores.upper, scores.upper)
    out = bounds(point, values)
    found = answers(weigh, point.upper.numpy().astype(np.longdouble), values)
    lower, upper = ends(out)
    alive = relu(point.upper.numpy()).sum(-1) > 0
    assert (out.width.numpy()[:, 0][alive] < 1e-11).all()
    assert (lower <= found).all()
    assert (found <= upper).all()


@family
def test_batched_is_one_by_one(bounds: Bounds, weigh: Weigh) -> None:
    scores = Interval.around(torch.randn(2, 3, 5, 9), 0.5)
    values = Interval.around(torch.randn(2, 3, 9, 4), 0.1)
    out = bounds(scores, values)
    assert out.shape == (2, 3, 5, 4)
    for b, h, n, d in itertools.product(range(2), range(3), range(5), range(4)):
        single = bounds(
            scores.map(lambda x, i=(b, h, slice(n, n + 1)): x[i]),
            values.map(lambda x, i=(b, h, slice(None), slice(d, d + 1)): x[i]),
        )
        assert torch.allclose(single.lower, out.lower[b, h, n : n + 1, d : d + 1], rtol=0, atol=1e-12)
        assert torch.allclose(single.upper, out.upper[b, h, n : n + 1, d : d + 1], rtol=0, atol=1e-12)


@family
def test_gradients_are_those_of_finite_differences(bounds: Bounds, weigh: Weigh) -> None:
    scores, _ = problem(3, 4)
    lower = scores.lower + 0.01  # nothing on a kink, nowhere of no width
    upper = lower + 0.5 + torch.rand_like(lower)
    values = torch.randn(3, 4, 2, dtype=torch.float64)
    if weigh is not softmax:  # rows that may die jump to zero
        lower, upper = lower.abs() + 0.1, lower.abs() + 0.1 + (upper - lower)
    inputs = tuple(x.clone().requires_grad_() for x in (lower, upper, values, values + torch.rand_like(values)))

    def both(lower: Tensor, upper: Tensor, least: Tensor, most: Tensor) -> tuple[Tensor, Tensor]:
        out = bounds(Interval(lower, upper), Interval(least, most))
        return out.lower, out.upper

    assert torch.autograd.gradcheck(both, inputs, eps=1e-6, atol=1e-6)


@family
def test_hidden_keys_do_not_count(bounds: Bounds, weigh: Weigh) -> None:
    scores, values = problem(20, 6)
    some = bounds(scores.map(lambda x: x[..., :4]), values[:, :4])
    hidden = torch.tensor([False] * 4 + [True] * 2)
    leaves = [x.masked_fill(hidden, -INF).requires_grad_() for x in (scores.lower, scores.upper)]
    out = bounds(Interval(*leaves), values)
    assert torch.allclose(out.lower, some.lower, rtol=0, atol=1e-11)
    assert torch.allclose(out.upper, some.upper, rtol=0, atol=1e-11)
    out.width.sum().backward()
    assert all(x.grad.isfinite().all() and (x.grad[..., 4:] == 0).all() for x in leaves)


@family
def test_a_row_that_sees_nothing_is_zero(bounds: Bounds, weigh: Weigh) -> None:
    leaf = torch.full((2, 3, 4), -INF, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    out = bounds(Interval(leaf, leaf), values)
    assert (out.width.abs() < 1e-300).all()
    assert out.contains(torch.zeros(2, 3, 5, dtype=torch.float64)).all()
    (out.lower + out.upper).sum().backward()
    assert leaf.grad.isfinite().all()
    assert values.grad.isfinite().all()


def test_scores_without_a_lower_end_reach_every_value() -> None:
    upper = torch.randn(10, 1, 6, dtype=torch.float64)
    values = torch.randn(10, 6, 1, dtype=torch.float64)
    out = softmax_bounds(Interval(torch.full_like(upper, -INF), upper), values)
    assert torch.allclose(out.upper, values.amax(1, keepdim=True), atol=1e-12)
    assert torch.allclose(out.lower, values.amin(1, keepdim=True), atol=1e-12)


def test_a_row_over_mass_that_may_die_has_zero_in_its_range() -> None:
    scores = Interval(torch.full((1, 3), -1.0), torch.full((1, 3), 1.0))
    out = relu_mass_bounds(scores, torch.tensor([[2.0], [3.0], [4.0]]))
    assert out.lower.item() <= 0
    assert out.upper.item() == pytest.approx(4.0)


@pytest.mark.parametrize("end", [INF, float("nan")])
def test_what_has_no_end_certifies_nothing(end: float) -> None:
    upper = torch.tensor([[0.0, end, 1.0]], dtype=torch.float64)
    out = softmax_bounds(Interval(torch.zeros(1, 3, dtype=torch.float64), upper), torch.randn(3, 2).double())
    assert out.upper.isnan().all()
    assert not out.contains(torch.zeros(1, 2)).any()


def test_both_ways_to_choose_agree() -> None:
    scores, values = problem(500, 12)
    near = softmax_bounds(scores, values)
    # A key that counts for nothing, but is far away: the sums need exponents.
    far = scores.map(lambda x: torch.nn.functional.pad(x, (0, 1), value=-200.0))
    out = softmax_bounds(far, torch.nn.functional.pad(values, (0, 0, 0, 1)))
    assert torch.allclose(out.lower, near.lower, rtol=0, atol=1e-11)
    assert torch.allclose(out.upper, near.upper, rtol=0, atol=1e-11)


def test_power_is_checked() -> None:
    scores, values = problem(1, 2)
    with pytest.raises(ValueError, match="power must be one of 1, 2, 4, 8, got 3"):
        relu_bounds(scores, values, power=3)
