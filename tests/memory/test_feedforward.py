import pytest
import torch
from torch import nn

from reluformer.memory import KeyValueMemory, MemorySettings
from reluformer.memory.activations import ACTIVATIONS, NORMALISED
from reluformer.memory.settings import SIGNED

FFN = MemorySettings(alpha=0.0, gamma="none", bias=0.0, slots=48)


def test_relu_is_the_ffn_of_a_transformer():
    memory = KeyValueMemory(16, FFN)
    ffn = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 16))
    ffn[0].load_state_dict(memory.keys.state_dict())
    ffn[2].load_state_dict(memory.values.state_dict())
    x = torch.randn(3, 7, 16)
    torch.testing.assert_close(memory(x), ffn(x))


def test_softmax_with_a_layer_norm():
    memory = KeyValueMemory(16, MemorySettings("softmax", alpha=0.0, gamma="none", norm="layer", slots=48))
    x = torch.randn(3, 7, 16)
    inner = torch.softmax(x @ memory.keys.weight.T, -1) @ memory.values.weight.T
    torch.testing.assert_close(memory(x), nn.functional.layer_norm(inner, (16,)))
    assert memory.keys.bias is None


@pytest.mark.parametrize("norm", ["none", "mass", "layer", "gated"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_kind_learns(activation, norm):
    if norm == "mass" and activation in SIGNED:
        pytest.skip("weights that may be negative have no mass to divide by")
    memory = KeyValueMemory(16, MemorySettings(activation, norm=norm, bias=0.1, slots=24))
    memory(torch.randn(5, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in memory.parameters())


def test_mass_makes_distributions():
    memory = KeyValueMemory(16, MemorySettings(norm="mass", bias=0.1, slots=24))
    x = torch.randn(5, 16)
    scores = torch.relu(memory.keys(x))
    torch.testing.assert_close(memory.weights(x), scores / scores.sum(-1, keepdim=True))
    assert memory.gamma() is None  # it would cancel


def test_divided_by_gamma_and_the_slots():
    memory = KeyValueMemory(16, MemorySettings(alpha=1.0, gamma="fixed", slots=24))
    memory.gamma.start_at(3.0)
    x = torch.randn(5, 16)
    torch.testing.assert_close(memory.weights(x), torch.relu(memory.keys(x)) / (3 * 12))
    assert not list(memory.gamma.parameters())


def test_without_gamma_divided_by_the_slots_alone():
    memory = KeyValueMemory(16, MemorySettings(alpha=1.0, gamma="none", slots=24))
    x = torch.randn(5, 16)
    torch.testing.assert_close(memory.weights(x), torch.relu(memory.keys(x)) / 12)


@pytest.mark.parametrize("activation", NORMALISED)
def test_a_temperature_divides_the_scores(activation):
    memory = KeyValueMemory(16, MemorySettings(activation, alpha=0.0, gamma="none", temperature=4.0, slots=24))
    plain = KeyValueMemory(16, MemorySettings(activation, alpha=0.0, gamma="none", slots=24))
    plain.load_state_dict(memory.state_dict())
    x = torch.randn(5, 16)
    torch.testing.assert_close(memory.weights(x), plain.weights(x / 4))


def test_needs_slots():
    with pytest.raises(ValueError, match="slots must be at least 1 in a key-value memory, got 0"):
        KeyValueMemory(16, MemorySettings())


@pytest.mark.parametrize("part", ["centred", "query_key_norm", "token_shift", "output_gate"])
def test_refuses_what_only_attention_has(part):
    with pytest.raises(ValueError, match=f"{part} must be False in a key-value memory: it is a part of attention"):
        KeyValueMemory(16, MemorySettings(slots=4, **{part: True}))


def test_has_no_slots_of_another_activation():
    expected = "slot_activation must be None in a key-value memory: it is a part of attention, got 'relu'"
    with pytest.raises(ValueError, match=expected):
        KeyValueMemory(16, MemorySettings(slots=4, slot_activation="relu"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_dead_row_over_its_mass_is_zero_in_half_precision_too(dtype):
    ffn = KeyValueMemory(4, MemorySettings(norm="mass", slots=3)).to(dtype)
    torch.nn.init.ones_(ffn.keys.weight)
    assert torch.equal(ffn(-torch.ones(1, 4, dtype=dtype)), torch.zeros(1, 4, dtype=dtype))


@pytest.mark.parametrize(("activation", "size"), [("relu_squared", 400), ("relu_eighth", 4)])
def test_powers_in_half_precision_have_the_range_of_float32(activation, size):
    torch.manual_seed(0)
    ffn = KeyValueMemory(64, MemorySettings(activation, norm="mass", alpha=0.0, slots=256, bias=0.0))
    x = size * torch.randn(2, 5, 64)
    expected = ffn(x)
    found = ffn.half()(x.half())
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, atol=5e-3, rtol=5e-2)
