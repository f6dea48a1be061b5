"""Bands, their blocks and their counts, each against the mask written out."""

import pytest
import torch

from reluformer.ops.visibility import UNBOUNDED, Band, band_mask, count_visible

CPU = torch.device("cpu")
BANDS = [Band(), Band(right=0), Band(left=2, right=2), Band(left=2, right=0), Band(left=0), Band(right=3), Band(0, 0)]
SIZES = [(1, 1), (5, 5), (4, 7), (7, 4), (1, 6), (6, 1), (3, 0), (0, 3)]


def picture(band: Band, n: int, m: int) -> list[str]:
    return ["".join(".x"[int(seen)] for seen in row) for row in band_mask(band, n, m, CPU)]


def test_causal_is_bottom_right_aligned():
    assert picture(Band(right=0), 3, 3) == ["x..", "xx.", "xxx"]
    assert picture(Band(right=0), 2, 4) == ["xxx.", "xxxx"]  # the last query sees all keys
    assert picture(Band(right=0), 4, 2) == ["..", "..", "x.", "xx"]  # the first queries see none


def test_window_bounds_both_sides():
    assert picture(Band(left=1, right=1), 4, 4) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert picture(Band(left=1, right=0), 4, 4) == ["x...", "xx..", ".xx.", "..xx"]
    assert picture(Band(left=0, right=UNBOUNDED), 3, 3) == ["xxx", ".xx", "..x"]


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_blocks_agree_with_the_mask(band, n, m):
    whole = band_mask(band, n, m, CPU)
    assert whole.shape == (n, m)
    for first in range(n):
        for stop in range(first + 1, n + 1):
            rows = slice(first, stop)
            start, end = band.key_range(first, stop - 1, n, m)
            assert 0 <= start <= end <= m
            assert not whole[rows, :start].any(), "a key before the range is seen"
            assert not whole[rows, end:].any(), "a key after the range is seen"
            for a in range(m):
                for b in range(a + 1, m + 1):
                    keys = slice(a, b)
                    assert band.covers(rows, keys, n, m) == bool(whole[rows, keys].all())
                    assert torch.equal(band_mask(band, n, m, CPU, rows, keys), whole[rows, keys])


@pytest.mark.parametrize("band", BANDS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_counts_are_sums_of_the_mask(band, n, m):
    seen = band_mask(band, n, m, CPU)[None, None]  # (1, 1, N, M)
    key_mask = torch.rand(2, m) > 0.4
    attn_mask = torch.rand(1, 3, n, m) > 0.4
    additive = torch.zeros(1, 3, n, m).masked_fill(~attn_mask, -torch.inf)
    keys = key_mask[:, None, None]
    for masks, visible in [
        ((None, None), seen),
        ((key_mask, None), seen & keys),
        ((None, attn_mask), seen & attn_mask),
        ((key_mask, attn_mask), seen & keys & attn_mask),
        ((key_mask, additive), seen & keys & attn_mask),
    ]:
        count = count_visible(band, n, m, *masks, CPU)
        assert count.dtype == torch.float32
        assert torch.equal(count, visible.sum(-1, dtype=torch.float32))
