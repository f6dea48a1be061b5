"""The laws behind gamma, by simulation, and unit mass once it is set."""

import math

import pytest
import torch
from torch import nn

from reluformer.memory import Attention, KeyValueMemory, MemorySettings, calibrate
from reluformer.memory.activations import ACTIVATIONS, weigh
from reluformer.memory.calibration import expected_mass, start_gammas
from reluformer.memory.dispatch import look_up
from tests.memory.calls import lookup


@pytest.mark.parametrize("n", [16, 128, 1024])
def test_the_lemma_relu_has_variance_n_over_2(n):
    x, v = torch.randn(2, 4000, n)
    assert (weigh(x, "relu", n) * v).sum(-1).var().item() == pytest.approx(n / 2, rel=0.15)


@pytest.mark.parametrize("n", [128, 1024])
def test_softmax_has_variance_e_over_n(n):
    x, v = torch.randn(2, 4000, n)
    assert (weigh(x, "softmax", n) * v).sum(-1).var().item() == pytest.approx(math.e / n, rel=0.15)


def test_the_paper_s_factor_starts_with_a_mass_of_sqrt_n_over_pi():
    assert expected_mass(MemorySettings(), 1024) == pytest.approx(math.sqrt(1024 / math.pi), rel=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "activation", ["relu", "relu_squared", "relu6", "sigmoid", "plain_sigmoid", "gelu", "softplus", "softmax"]
)
def test_the_formula_is_what_normal_scores_give(activation, causal):
    settings = MemorySettings(activation, alpha=0.5, bias=None if activation == "softmax" else 0.3)
    q, k = torch.randn(2, 4, 8, 64, 256)  # scores of variance one
    bias = None if settings.bias is None else torch.full((8,), settings.bias)
    _, stats = lookup(q[:, :, :64], k[:, :, :64], k[:, :, :64], settings, bias=bias, causal=causal, return_stats=True)
    assert stats.mass.mean().item() == pytest.approx(expected_mass(settings, 64, causal), rel=0.05)


@pytest.mark.parametrize("bias", [-1.0, 2.0])
@pytest.mark.parametrize("activation", ["relu", "relu_squared", "sigmoid", "softplus", "softmax"])
def test_the_formula_counts_what_was_forgotten(activation, bias):
    settings = MemorySettings(activation, alpha=0.5, forget=bias)
    torch.manual_seed(0)
    q, k = torch.randn(2, 64, 8, 32, 128)
    gates = torch.nn.functional.logsigmoid(torch.randn(64, 8, 32) + bias)
    _, stats = lookup(q, k, k, settings, causal=True, log_forget=gates, return_stats=True)
    assert stats.mass.mean().item() == pytest.approx(expected_mass(settings, 32, True), rel=0.03)
    if activation != "softmax":
        assert expected_mass(settings, 32, True) < 0.8 * expected_mass(MemorySettings(activation), 32, True)


def test_a_model_without_memories_is_refused():
    with pytest.raises(ValueError, match="model must hold an Attention or a KeyValueMemory, got Linear without"):
        calibrate(nn.Linear(2, 2), torch.ones(2))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_what_rounding_leaves_of_weights_that_cancel_is_no_mass(alpha):
    attention, x = Attention(64, 4, MemorySettings("identity", alpha=alpha, centred=True)), torch.randn(2, 50, 64)
    before = attention(x)[0]
    calibrate(attention, x)
    torch.testing.assert_close(attention(x)[0], before)


def test_a_gate_that_is_open_leaves_all():
    settings = MemorySettings(forget=60.0)
    assert expected_mass(settings, 64, True) == pytest.approx(expected_mass(MemorySettings(), 64, True))


def test_unit_mass_with_a_gate():
    attention = Attention(64, 4, MemorySettings(forget=1.0), causal=True)
    x, mask = torch.randn(2, 50, 64), torch.arange(50)[None] >= torch.tensor([[0], [7]])
    calibrate(attention, x, key_mask=mask, query_mask=mask)
    _, stats = attention(x, key_mask=mask, return_stats=True)
    mass = stats.mass.transpose(1, 2)[mask]  # (rows, heads)
    torch.testing.assert_close(mass.sum(0) / (mass > 0).sum(0), torch.ones(4))


class Two(nn.Module):
    """Two attentions and an FFN, one after another: what the second sees depends on the first's gamma."""

    def __init__(self, settings, causal):
        super().__init__()
        self.first, self.second = (Attention(64, 4, settings, causal=causal) for _ in range(2))
        self.ffn = KeyValueMemory(64, MemorySettings(slots=32))

    def forward(self, x, mask=None):
        for attention in (self.first, self.second):
            x = x + attention(x, key_mask=mask, query_mask=mask)[0]
        return x + self.ffn(x)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [16, 128, 512, 2048])
def test_unit_mass_on_the_first_batch(length, causal):
    model = Two(MemorySettings(), causal)
    x = 3 * torch.randn(2, length, 64)
    mask = torch.arange(length)[None] < torch.tensor([[length], [length - 5]])
    calibrate(model, x, mask)
    masses = []
    for attention in (model.first, model.second):
        call = attention.lookup(x, key_mask=mask)
        _, stats = look_up(call, return_stats=True)
        mass = stats.mass.transpose(1, 2)[mask]  # (rows, heads)
        masses.append(mass.sum(0) / (mass > 0).sum(0))  # of the rows that are alive
        x = x + attention(x, key_mask=mask)[0]
    torch.testing.assert_close(torch.stack(masses), torch.ones(2, 4), atol=0.02, rtol=0)
    torch.testing.assert_close(model.ffn.weights(x)[mask].sum(-1).mean(), torch.tensor(1.0), atol=0.1, rtol=0)
    assert model.training


def test_unit_mass_over_all_heads_of_a_shared_gamma():
    attention = Attention(64, 4, MemorySettings(gamma="shared"))
    with torch.no_grad():
        attention.query.weight[:16] *= 5  # a head with more mass than the others
    x, mask = torch.randn(2, 30, 64), torch.arange(30)[None] < torch.tensor([[30], [20]])
    calibrate(attention, x, key_mask=mask, query_mask=mask)
    _, stats = attention(x, key_mask=mask, return_stats=True)
    mass = stats.mass.transpose(1, 2)[mask]  # (rows, heads)
    assert mass[mass > 0].mean().item() == pytest.approx(1, rel=1e-4)
    assert mass[:, 0].mean() > 2 * mass[:, 1:].mean()
    assert attention.gamma.log_gamma.shape == (1,)
    assert attention.gamma().shape == (4,)
    assert attention.gamma().is_contiguous()  # the kernels read one after another
    attention(x)[0].square().sum().backward()
    assert attention.gamma.log_gamma.grad.isfinite()


@pytest.mark.parametrize("gamma", ["learned", "shared"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_formula_sets_every_gamma(activation, gamma):
    model = Two(MemorySettings(activation, gamma=gamma), causal=False)
    start_gammas(model, 100)
    mass = expected_mass(model.first.settings, 100)
    expected = 1.0 if activation == "identity" else mass  # whose weights cancel: there is nothing to scale
    torch.testing.assert_close(model.second.gamma(), torch.full((4,), expected, dtype=torch.float32))


@pytest.mark.parametrize("gamma", ["learned", "shared"])
def test_a_dead_head_keeps_its_gamma(gamma):
    attention = Attention(8, 2, MemorySettings(bias=-1e6, gamma=gamma))
    calibrate(attention, torch.randn(1, 4, 8))
    assert attention.gamma().tolist() == [1.0, 1.0]


def test_padding_does_not_count_in_an_ffn_either():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(16, 2, MemorySettings())
            self.ffn = KeyValueMemory(16, MemorySettings(slots=8))

        def forward(self, x, mask=None):
            return self.ffn(x + self.attention(x, key_mask=mask, query_mask=mask)[0])

    layer, x = Layer(), torch.randn(2, 5, 16)
    calibrate(layer, x)
    alone = layer.ffn.gamma().clone()
    padded = torch.cat([x, 10 * torch.randn(2, 4, 16)], dim=1)
    calibrate(layer, padded, mask=(torch.arange(9) < 5).expand(2, -1))
    assert torch.allclose(layer.ffn.gamma(), alone, rtol=1e-5)


def test_padding_says_nothing_about_an_ffn_over_other_positions():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(16, 2, MemorySettings())
            self.ffn = KeyValueMemory(16, MemorySettings(slots=8))

        def forward(self, x, mask):
            return self.ffn(self.attention(x, key_mask=mask, query_mask=mask)[0][:, :3])

    model, x = Pooled(), torch.randn(2, 5, 16)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    calibrate(model, x, mask)
    mass = model.ffn.weights(model.attention(x, key_mask=mask)[0][:, :3]).sum(-1)
    torch.testing.assert_close(mass[mass > 0].mean(), torch.tensor(1.0))
