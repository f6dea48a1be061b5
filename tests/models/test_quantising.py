"""Rows of int8 are the nearest there are, and what multiplies them is what multiplies floats, nearly."""

import pytest
import torch
import torch.nn.functional as F

from reluformer.models.quantising import (
    can_multiply_integers,
    dequantise_rows,
    float_linear,
    integer_linear,
    quantise_rows,
    relative_error,
)

integers_only = pytest.mark.skipif(not can_multiply_integers(), reason="PyTorch has no int8 matrices here")


@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (64, 33), (5, 1000)])
def test_rows_are_rounded_to_the_nearest(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(shape) * torch.logspace(-6, 6, shape[0])[:, None]
    integers, scale = quantise_rows(matrix)
    assert integers.dtype == torch.int8
    assert scale.shape == (shape[0], 1)
    assert integers.abs().amax(1).eq(127).all()  # every row uses all of its range
    exact, made = matrix.double(), integers.double() * scale.double()
    assert ((exact - made).abs() <= scale.double() * 0.5001).all()
    torch.testing.assert_close(dequantise_rows(integers, scale).double(), made)


def test_quantised_once_more_they_are_the_same() -> None:
    torch.manual_seed(1)
    integers, scale = quantise_rows(torch.randn(300, 65))
    again, scale_again = quantise_rows(dequantise_rows(integers, scale))
    assert torch.equal(integers, again)
    torch.testing.assert_close(scale, scale_again)


def test_zeros_stay_zeros() -> None:
    integers, scale = quantise_rows(torch.zeros(2, 3))
    assert dequantise_rows(integers, scale).eq(0).all()
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])) == pytest.approx(0.2)


@integers_only
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "out", "width"), [(1, 5, 7), (3, 40, 64), (65, 17, 129)])
def test_integer_products(rows: int, out: int, width: int, bias: bool, relu: bool) -> None:
    torch.manual_seed(2)
    weight, offset = torch.randn(out, width), torch.randn(out) if bias else None
    x = torch.randn(rows, width)
    exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    found = integer_linear(weight, offset, relu)(x)
    assert found.dtype == torch.float32
    # Both sides are rounded to half a step: of 254 over the range of a row, and of 127 or 255 over that of all inputs.
    steps = weight.abs().amax(1) / 127, (x.max() - x.min()) / 127
    bound = 0.5 * (steps[0] * x.abs().sum(1, keepdim=True) + steps[1] * (weight.abs() + steps[0][:, None]).sum(1))
    assert ((found - (exact.relu() if relu else exact)).abs() <= bound + 1e-4).all()
    assert relative_error(exact, integer_linear(weight, offset)(x)) < 0.02


@pytest.mark.parametrize("relu", [False, True])
def test_float_products(relu: bool) -> None:
    torch.manual_seed(3)
    weight, bias, x = torch.randn(9, 5), torch.randn(9), torch.randn(4, 5)
    exact = F.linear(x, weight, bias)
    exact = exact.relu() if relu else exact
    torch.testing.assert_close(float_linear(weight, bias, torch.float32, relu)(x), exact)
    half = float_linear(weight, bias, torch.bfloat16, relu)(x)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, atol=0.1, rtol=0.02)
