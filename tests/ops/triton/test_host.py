"""Tensor maps are strict about strides and alignment; whatever a user brings is made to fit."""

import pytest
import torch

pytest.importorskip("triton")
from reluformer.ops.triton import host


def fits(x: torch.Tensor) -> bool:
    strides = [
        s * x.element_size() % 16 == 0 for s, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1
    ]
    return x.stride(-1) == 1 and x.data_ptr() % 16 == 0 and all(strides)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: x, id="plain"),
        pytest.param(lambda x: x.transpose(1, 2), id="heads inside rows"),
        pytest.param(lambda x: x[..., 1:], id="off the boundary"),
        pytest.param(lambda x: x.mT, id="turned"),
        pytest.param(lambda x: x[:1].expand(4, -1, -1, -1), id="broadcast"),
        pytest.param(lambda x: x[..., :20], id="ragged rows"),
    ],
)
def test_fit_for_tma_keeps_the_values(make, dtype):
    x = make(torch.randn(2, 3, 5, 24).to(dtype))
    fitted = host.fit_for_tma(x)
    assert fits(fitted)
    assert torch.equal(fitted, x)


def test_what_fits_is_not_copied():
    x = torch.randn(2, 5, 3, 32).transpose(1, 2)
    assert host.fit_for_tma(x) is x


def test_maps_ignore_strides_of_single_rows():
    x = torch.randn(1, 1, 1, 20)[..., :16]
    assert host.tensor_map(x, 16, 16).strides == [16, 16, 16, 1]


def test_broadcast_strides_are_zero_where_a_mask_repeats():
    mask = torch.ones(1, 4, 7, 9, dtype=torch.bool)
    assert host.broadcast_strides(mask, 4) == (0, 63, 9, 1)
    assert host.broadcast_strides(None, 2) == (0, 0)
