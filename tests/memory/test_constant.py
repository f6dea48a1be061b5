"""Bias and mass by a constant channel: what it says, whatever computes it."""

import pytest
import torch

from reluformer.memory import Attention, MemorySettings
from reluformer.memory.activations import FUSED
from reluformer.memory.constant import with_bias, with_constant
from tests.memory.calls import lookup, weights_of

WIDTH, HEADS, N = 32, 4, 9


def attention_of(activation="relu_eighth"):
    torch.manual_seed(0)
    settings = MemorySettings(
        activation, alpha=0.0, gamma="none", norm="mass", bias=8.0, constant_channel=True, query_key_norm=True
    )
    made = Attention(WIDTH, HEADS, settings, causal=True).double()
    torch.nn.init.uniform_(made.bias, 1.0, 9.0)
    return made


def definition(attention, x):
    """``relu(s + b) ** p`` over its sum, of all channels but the first, which is 1 in the sum."""
    q, k, v = (
        layer(x).view(2, N, HEADS, -1).transpose(1, 2) for layer in (attention.query, attention.key, attention.value)
    )
    q, k = attention.query_norm(q), attention.key_norm(k)
    scores = q[..., 1:] @ k[..., 1:].mT / (WIDTH // HEADS) ** 0.5 + attention.bias[:, None, None]
    weights = (scores.relu() ** FUSED[attention.settings.activation]).tril()
    mass = weights.sum(-1, keepdim=True)
    weights = weights / mass.where(mass > 0, 1.0)
    sums = torch.cat([weights.sum(-1, keepdim=True), weights @ v[..., 1:]], -1)
    return attention.output(sums.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("activation", FUSED)
def test_is_what_the_definition_says_with_gradients(activation):
    attention, x = attention_of(activation), torch.randn(2, N, WIDTH, dtype=torch.float64, requires_grad=True)
    out, expected = attention(x)[0], definition(attention, x)
    torch.testing.assert_close(out, expected)
    inputs, slope = [x, *attention.parameters()], torch.randn_like(out)
    for found, wanted in zip(*(torch.autograd.grad(y, inputs, slope) for y in (out, expected)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_statistics_are_those_of_the_weights():
    attention, x = attention_of(), torch.randn(2, N, WIDTH, dtype=torch.float64)
    out, stats = attention(x, return_stats=True)
    torch.testing.assert_close(out, attention(x)[0])
    torch.testing.assert_close(stats.mass, torch.ones_like(stats.mass))


def test_a_padded_key_counts_nowhere():
    attention, x = attention_of(), torch.randn(2, N, WIDTH, dtype=torch.float64)
    mask = torch.arange(N).expand(2, -1) < 6
    changed = torch.where(mask[..., None], x, torch.randn_like(x))
    first, second = (attention(x[:, :6], y, key_mask=mask)[0] for y in (x, changed))
    torch.testing.assert_close(first, second)


def test_queries_take_the_bias_to_every_score():
    q, k = torch.randn(2, 2, HEADS, 5, 8, dtype=torch.float64)
    bias, settings = torch.rand(HEADS, dtype=torch.float64), MemorySettings("relu", alpha=0.0)
    folded = weights_of(with_bias(q, bias, 8**-0.5), with_constant(k), settings)
    apart = weights_of(with_bias(q, torch.zeros_like(bias), 8**-0.5), with_constant(k), settings, bias=bias)
    torch.testing.assert_close(folded, apart)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_in_half_precision_by_the_kernels(causal, head_dim):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 300, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    q, k, v = with_bias(q, torch.full((4,), 8.0, device="cuda"), head_dim**-0.5), with_constant(k), with_constant(v)
    settings = MemorySettings("relu_eighth", norm="mass", bias=8.0, constant_channel=True)
    out, _ = lookup(q, k, v, settings, causal=causal, counted=True)
    expected = weights_of(q.double(), k.double(), settings, causal=causal) @ v.double()
    assert (out.double() - expected).norm() / expected.norm() < 0.01
