"""Every way to compute a lookup against the weights written out."""

import pytest
import torch

from reluformer.memory import MemorySettings
from reluformer.memory.activations import ACTIVATIONS
from reluformer.memory.lookup import lookup, weights_of
from reluformer.memory.settings import SIGNED, SOFTMAX_ATTENTION

SIGNED_MASS = {(x, "mass") for x in SIGNED}


def case(hk=2, n=9, m=13):
    torch.manual_seed(0)
    q = torch.randn(2, 4, n, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, hk, m, 8, dtype=torch.float64)
    return q, k, v


MASKS = {
    "none": {},
    "causal": {"causal": True},
    "padding": {"key_mask": torch.arange(13) < torch.tensor([[13], [7]])},
    "padding, causal": {"key_mask": torch.arange(13) >= torch.tensor([[0], [11]]), "causal": True},
    "any": {"attn_mask": torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(1)) > 0.5},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(
    ("activation", "norm"),
    [(x, norm) for x in ACTIVATIONS for norm in ("none", "mass") if (x, norm) not in SIGNED_MASS],
)
def test_sums_values_by_the_weights(activation, norm, masks):
    q, k, v = case()
    bias = None if activation == "softmax" else torch.randn(4, dtype=torch.float64)
    settings = MemorySettings(activation, alpha=0.5, norm=norm)
    options = {"gamma": torch.rand(4, dtype=torch.float64) + 0.5, "bias": bias, **masks}
    out, none = lookup(q, k, v, settings, **options)
    again, stats = lookup(q, k, v, settings, **options, return_stats=True)
    weights = weights_of(q, k, settings, **options)
    assert none is None
    torch.testing.assert_close(out, weights @ v.repeat_interleave(2, dim=1))
    torch.testing.assert_close(again, out)
    torch.testing.assert_close(stats.mass, weights.sum(-1))


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("activation", ["relu", "relu_squared", "sigmoid", "softplus", "softmax"])
def test_mass_makes_distributions_whatever_the_scale(activation, n):
    q, k, v = case(n=n)
    q.requires_grad_()
    settings = MemorySettings(activation, norm="mass")
    gamma = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    out, _ = lookup(q, k, v, settings, gamma=gamma)
    torch.testing.assert_close(out, lookup(q, k, v, settings)[0])
    weights = weights_of(q, k, settings)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, n, dtype=torch.float64))
    ones, _ = lookup(q, k, torch.ones_like(v), settings)
    torch.testing.assert_close(ones, torch.ones_like(ones))
    (slope,) = torch.autograd.grad(ones.sum(), q)  # a mean of ones is one
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-12, rtol=0)
    with torch.no_grad():  # the way of decoding
        torch.testing.assert_close(lookup(q, k, v, settings, gamma=gamma)[0], out)


def test_a_dead_row_over_its_mass_is_zero_with_a_gradient():
    q, k, v = case(hk=4)
    q, k = -q.abs().requires_grad_(), k.abs()
    out, stats = lookup(q, k, v, MemorySettings(norm="mass"), return_stats=True)
    assert (out == 0).all()
    assert (stats.mass == 0).all()
    (slope,) = torch.autograd.grad(out.sum(), q)
    assert slope.isfinite().all()


def test_softmax_is_pytorch_s_own():
    q, k, v = case(hk=4)
    plain = MemorySettings("softmax", alpha=0.0, gamma="none")
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(lookup(q, k, v, plain)[0], expected)


def test_causal_softmax_is_one_graph_for_all_lengths():
    compiled = torch.compile(lookup, fullgraph=True, backend="eager")
    for n in (9, 5, 1):
        q, k, v = case(hk=4, n=n, m=n)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(compiled(q, k, v, SOFTMAX_ATTENTION, causal=True)[0], expected)


def test_a_temperature_divides_the_scores():
    q, k, v = case(hk=4)
    warm = MemorySettings("softmax", alpha=0.0, gamma="none", temperature=4.0)
    plain = MemorySettings("softmax", alpha=0.0, gamma="none")
    torch.testing.assert_close(lookup(q, k, v, warm)[0], lookup(q / 4, k, v, plain)[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_row_that_sees_nothing_is_zero(activation):
    q, k, v = case()
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1] = False
    q.requires_grad_()
    out, _ = lookup(q, k, v, MemorySettings(activation), key_mask=mask)
    out.sum().backward()
    assert (out[1] == 0).all()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("activation", ["relu", "relu_squared"])
def test_a_step_of_decoding_is_the_last_row(activation, masks):
    q, k, v = case()
    masks = masks | {name: mask[:, :, -1:] for name, mask in masks.items() if name == "attn_mask"}
    options = {"gamma": torch.rand(4, dtype=torch.float64) + 0.5, "bias": torch.randn(4, dtype=torch.float64)}
    settings = MemorySettings(activation, alpha=0.7)
    with torch.no_grad():
        step, _ = lookup(q[:, :, -1:], k, v, settings, **options, **masks)
    weights = weights_of(q[:, :, -1:], k, settings, **options, **masks)
    torch.testing.assert_close(step, weights @ v.repeat_interleave(2, dim=1))
