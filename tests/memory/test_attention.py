import pytest
import torch

from reluformer import relu_attention
from reluformer.memory import Attention, MemorySettings
from reluformer.memory.activations import ACTIVATIONS
from reluformer.memory.settings import SOFTMAX_ATTENTION


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def test_self_attention_is_projections_around_the_operator():
    attention = Attention(32, 4, MemorySettings(bias=0.2), key_heads=2, causal=True)
    x = torch.randn(2, 9, 32)
    q, k, v = heads_of(attention.query(x), 4), heads_of(attention.key(x), 2), heads_of(attention.value(x), 2)
    inner = relu_attention(q, k, v, gamma=attention.gamma(), bias=attention.bias, causal=True)
    torch.testing.assert_close(attention(x)[0], attention.output(inner.transpose(1, 2).flatten(2)))


def test_softmax_is_that_of_pytorch():
    attention = Attention(32, 4, SOFTMAX_ATTENTION)
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([x.weight for x in (attention.query, attention.key, attention.value)]))
        theirs.in_proj_bias.copy_(torch.cat([x.bias for x in (attention.query, attention.key, attention.value)]))
        theirs.out_proj.load_state_dict(attention.output.state_dict())
    x, context = torch.randn(2, 5, 32), torch.randn(2, 8, 32)
    torch.testing.assert_close(attention(x, context)[0], theirs(x, context, context)[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_padding_changes_nothing(activation):
    attention = Attention(32, 4, MemorySettings(activation, slots=2)).eval()
    x = torch.randn(1, 6, 32)
    padded = torch.cat([x, torch.randn(1, 3, 32)], dim=1)
    mask = torch.arange(9)[None] < 6
    torch.testing.assert_close(attention(padded, key_mask=mask)[0][:, :6], attention(x)[0])


def test_persistent_slots_are_seen_by_all():
    attention = Attention(32, 4, MemorySettings("softmax", alpha=0.0, gamma="none", slots=5), causal=True).eval()
    x = torch.randn(1, 6, 32)
    q, k, v = (heads_of(f(x), 4) for f in (attention.query, attention.key, attention.value))
    k, v = torch.cat([attention.slots.keys[None], k], 2), torch.cat([attention.slots.values[None], v], 2)
    mask = torch.ones(6, 11, dtype=torch.bool).tril(5)
    inner = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attention(x)[0], attention.output(inner.transpose(1, 2).flatten(2)))


def test_query_key_norm_bounds_the_scores():
    attention = Attention(32, 4, MemorySettings(query_key_norm=True))
    call = attention._call(100 * torch.randn(2, 9, 32), None, None, None, None, None, None)
    rms = call["q"].square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms), atol=1e-3, rtol=0)


def test_statistics_only_if_asked_for(monkeypatch):
    asked = []

    def spy(*args, **kwargs):
        asked.append(kwargs["return_stats"])
        return relu_attention(*args, **kwargs)

    monkeypatch.setattr("reluformer.memory.lookup.relu_attention", spy)
    attention = Attention(32, 4, MemorySettings(slots=3), causal=True)
    x = torch.randn(2, 9, 32)
    plain, none = attention(x)
    out, stats = attention(x, return_stats=True)
    assert asked == [False, True]
    assert none is None
    torch.testing.assert_close(out, plain)
    assert stats.mass.shape == (2, 4, 9)


@pytest.mark.parametrize("norm", ["none", "mass"])
@pytest.mark.parametrize("causal", [False, True])
def test_softmax_has_its_share_and_no_more(causal, norm):
    attention = Attention(32, 4, MemorySettings(norm=norm, bias=0.5), key_heads=2, causal=causal)
    softmax = Attention(32, 4, SOFTMAX_ATTENTION, key_heads=2, causal=causal)
    softmax.load_state_dict(attention.state_dict(), strict=False)
    x, mask = torch.randn(2, 9, 32), torch.arange(9)[None] < torch.tensor([[9], [6]])

    def at(share):
        attention.softmax_share = None if share is None else torch.tensor(share)
        return attention(x, key_mask=mask, return_stats="mass_entropy")

    own, stats = at(None)
    soft, _ = softmax(x, key_mask=mask)
    assert torch.equal(at(0.0)[0], own)
    torch.testing.assert_close(at(0.25)[0], 0.25 * soft + 0.75 * own)
    assert torch.equal(at(1.0)[0], soft)
    assert torch.equal(at(1.0)[1].mass, stats.mass)  # the statistics are those of what it turns into
    assert not any("share" in name for name in attention.state_dict())


def test_counts_the_keys_in_sight():
    attention = Attention(32, 4, MemorySettings(slots=3), causal=True)
    mask = torch.arange(9)[None] >= torch.tensor([[0], [5]])
    assert attention.count(9, 9, None, mask.device)[0, 0].tolist() == [3 + i for i in range(1, 10)]
    assert attention.count(9, 9, mask, mask.device)[1, 0].tolist() == [3 + max(0, i - 5) for i in range(1, 10)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "heads must divide the width 32, got 5"),
        ({"heads": 4, "key_heads": 3}, "key_heads must divide the 4 heads, got 3"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Attention(32, settings=MemorySettings(), **options)
