import pytest
import torch

from reluformer import relu_attention
from reluformer.ops.padding import hide_keys, rescale
from reluformer.ops.visibility import UNBOUNDED, Band


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("power", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_zero_keys_are_hidden_keys(alpha, power, causal):
    q, k, v = (torch.randn(3, 4, 20, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = torch.rand(3, 20) > 0.4
    mask[1] = False  # nothing to see
    options = {"alpha": alpha, "power": power, "causal": causal, "gamma": 1.7, "return_stats": True}
    expected = relu_attention(q, k, v, key_padding_mask=mask, backend="reference", **options)
    found = relu_attention(q, hide_keys(k, mask), v, backend="reference", **options)
    found = rescale(*found, mask, Band(UNBOUNDED, 0 if causal else UNBOUNDED), alpha)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(tuple(found[1]), tuple(expected[1]))
    slope = torch.randn_like(q)
    grads = [
        torch.autograd.grad((out * slope).sum() + stats.mass.sum() + stats.entropy.sum(), (q, k, v))
        for out, stats in (expected, found)
    ]
    for with_mask, without in zip(*grads, strict=True):
        torch.testing.assert_close(without, with_mask)
