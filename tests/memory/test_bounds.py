"""Bounds of whole memories: every output of an input in the ball is inside."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reluformer.memory import Attention, KeyValueMemory, MemorySettings
from reluformer.memory.bounds import attention_bounds, feedforward_bounds, linear_bounds, lookup_bounds
from reluformer.ops.intervals import Interval

WIDTH = 12
SAMPLES = 300
SETTINGS: dict[str, dict[str, Any]] = {
    "relu": {"bias": 0.1},
    "relu squared, fixed gamma": {"activation": "relu_squared", "gamma": "fixed", "alpha": 1.0},
    "relu over mass": {"norm": "mass", "bias": 0.3},
    "power 8 over mass": {"activation": "relu_eighth", "norm": "mass"},
    "softmax": {"activation": "softmax", "alpha": 0.0, "gamma": "none"},
    "softmax, scaled": {"activation": "softmax", "temperature": 2.0},
}
every = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def samples(ball: Interval) -> Tensor:
    """Points in the ball, ``(SAMPLES, ...)``: half of them corners."""
    part = torch.rand(SAMPLES, *ball.shape, dtype=torch.float64)
    part[::2] = part[::2].round()
    return ball.lower + part * ball.width


@every
@pytest.mark.parametrize("radius", [1e-3, 0.1, 2.0])
def test_feedforward_is_sound(settings: dict[str, Any], radius: float) -> None:
    memory = KeyValueMemory(WIDTH, MemorySettings(**settings | {"slots": 20})).double().eval()
    ball = Interval.around(torch.randn(3, 5, WIDTH), radius)
    out = feedforward_bounds(memory, ball)
    assert out.shape == (3, 5, WIDTH)
    with torch.no_grad():
        assert out.contains(memory(samples(ball))).all()


@every
@pytest.mark.parametrize("radius", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_sound(settings: dict[str, Any], radius: float, causal: bool) -> None:
    attention = Attention(WIDTH, 4, MemorySettings(**settings | {"slots": 2}), key_heads=2, causal=causal)
    attention = attention.double().eval()
    ball = Interval.around(torch.randn(2, 6, WIDTH), radius)
    seen = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    out = attention_bounds(attention, ball, key_mask=seen)
    points = samples(ball)
    with torch.no_grad():
        found, _ = attention(points.flatten(0, 1), key_mask=seen.repeat(SAMPLES, 1))
    assert out.contains(found.view(SAMPLES, 2, 6, WIDTH)).all()


@every
def test_attention_to_another_sequence_is_sound(settings: dict[str, Any]) -> None:
    attention = Attention(WIDTH, 2, MemorySettings(**settings)).double().eval()
    x, context = (Interval.around(torch.randn(1, n, WIDTH), 0.1) for n in (3, 7))
    mask = torch.rand(1, 1, 3, 7) < 0.6
    mask[..., 1, :] = False  # a row that sees nothing
    out = attention_bounds(attention, x, context, attn_mask=mask)
    with torch.no_grad():
        found, _ = attention(samples(x)[:, 0], samples(context)[:, 0], attn_mask=mask.expand(SAMPLES, -1, -1, -1))
    assert out.contains(found).all()
    assert torch.allclose(out.upper[:, 1], attention.output.bias)


@every
def test_a_point_gives_the_forward_pass(settings: dict[str, Any]) -> None:
    attention = Attention(WIDTH, 2, MemorySettings(**settings)).double().eval()
    memory = KeyValueMemory(WIDTH, MemorySettings(**settings | {"slots": 20})).double().eval()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    for out, found in (
        (attention_bounds(attention, Interval.of(x)), attention(x)[0]),
        (feedforward_bounds(memory, Interval.of(x)), memory(x)),
    ):
        assert out.width.max() < 1e-10
        assert torch.allclose(out.lower, found, rtol=1e-6)  # the count's factor is float32 in some of them


def test_folding_the_output_projection_is_tighter() -> None:
    attention = Attention(WIDTH, 2, MemorySettings(activation="softmax", alpha=0.0, gamma="none")).double().eval()
    ball = Interval.around(torch.randn(2, 6, WIDTH), 0.1)

    def heads(layer: nn.Linear) -> Interval:
        return linear_bounds(layer, ball).map(lambda t: t.view(2, 6, 2, -1).transpose(1, 2))

    parts = lookup_bounds(heads(attention.query), heads(attention.key), heads(attention.value), attention.settings)
    loose = linear_bounds(attention.output, parts.map(lambda t: t.transpose(1, 2).flatten(2)))
    tight = attention_bounds(attention, ball)
    assert (tight.lower >= loose.lower - 1e-10).all()
    assert (tight.upper <= loose.upper + 1e-10).all()
    assert tight.width.mean() < 0.8 * loose.width.mean()


@every
def test_bounds_have_gradients_for_every_weight(settings: dict[str, Any]) -> None:
    attention = Attention(WIDTH, 2, MemorySettings(**settings | {"slots": 2}))
    out = attention_bounds(attention, Interval.around(torch.randn(2, 4, WIDTH), 0.1))
    out.width.sum().backward()
    for name, parameter in attention.named_parameters():
        if name == "output.bias" or (name == "bias" and settings.get("activation") == "softmax"):
            continue  # which moves both ends, or nothing
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"activation": "gelu"},
            "activation to be one of relu, relu_squared, relu_fourth, relu_eighth, softmax, got 'gelu'",
        ),
        ({"norm": "layer"}, "norm to be none or mass, got 'layer'"),
        ({"query_key_norm": True}, "query_key_norm = False, got True"),
        ({"centred": True}, "centred = False, got True"),
        ({"constant_channel": True, "norm": "mass", "bias": 1.0}, "constant_channel = False, got True"),
        ({"forget": 0.5}, "forget = None, got 0.5"),
        ({"token_shift": True}, "token_shift = False, got True"),
        ({"output_gate": True}, "output_gate = False, got True"),
    ],
)
def test_what_has_no_bounds_is_refused(settings: dict[str, Any], words: str) -> None:
    attention = Attention(WIDTH, 2, MemorySettings(**settings), causal=True)
    with pytest.raises(ValueError, match=words):
        attention_bounds(attention, Interval.around(torch.randn(1, 2, WIDTH), 0.1))
    attention = Attention(WIDTH, 2, MemorySettings())
    attention.softmax_share = torch.tensor(0.5)
    with pytest.raises(ValueError, match="softmax_share"):
        attention_bounds(attention, Interval.around(torch.randn(1, 2, WIDTH), 0.1))


def test_a_row_of_small_scores_over_its_mass_is_inside() -> None:
    attention = Attention(1, 1, MemorySettings("relu_eighth", norm="mass")).double()
    with torch.no_grad():
        for layer in (attention.query, attention.key, attention.value, attention.output):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
    x = torch.full((1, 1, 1), 0.15, dtype=torch.float64)  # a score of 0.0225
    bounds = attention_bounds(attention, Interval.around(x, 1e-6))
    assert bounds.lower <= attention(x)[0] <= bounds.upper
