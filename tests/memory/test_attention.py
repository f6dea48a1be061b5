import pytest
import torch

from reluformer import relu_attention
from reluformer.memory import Attention, MemorySettings, calibrate
from reluformer.memory.activations import ACTIVATIONS
from reluformer.memory.settings import POWER_ATTENTION, SOFTMAX_ATTENTION


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def test_self_attention_is_projections_around_the_operator():
    attention = Attention(32, 4, MemorySettings(bias=0.2), key_heads=2, causal=True)
    x = torch.randn(2, 9, 32)
    q, k, v = heads_of(attention.query(x), 4), heads_of(attention.key(x), 2), heads_of(attention.value(x), 2)
    inner = relu_attention(q, k, v, gamma=attention.gamma(), bias=attention.bias, causal=True)
    torch.testing.assert_close(attention(x)[0], attention.output(inner.transpose(1, 2).flatten(2)))


def test_statistics_of_some_sequences():
    attention, x = Attention(32, 4, MemorySettings(), causal=True), torch.randn(5, 9, 32)
    out, stats = attention(x, return_stats=True)
    again, some = attention(x, return_stats=True, stats_batch=2)
    torch.testing.assert_close(again, out)
    torch.testing.assert_close(tuple(some), tuple(x[:2] for x in stats))
    attention.calibrate_on(x, return_stats="mass_entropy", stats_batch=2)
    mass = attention(x, return_stats=True)[1].mass.transpose(0, 1)  # (H, B, N)
    means = torch.stack([rows[rows > 0].mean() for rows in mass])
    torch.testing.assert_close(means, torch.ones(4))  # gamma takes in all sequences nevertheless


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
    call = attention.lookup(100 * torch.randn(2, 9, 32))
    rms = call.q.square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms), atol=1e-3, rtol=0)


def test_statistics_only_if_asked_for(monkeypatch):
    asked = []

    def spy(*args, **kwargs):
        asked.append(kwargs["return_stats"])
        return relu_attention(*args, **kwargs)

    monkeypatch.setattr("reluformer.memory.fused.relu_attention", spy)
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


def slow_pro(attention, x):
    """Forgetting attention with all parts of the Pro block, head by head and query by query."""
    settings, d = attention.settings, attention.head_dim
    q, k, v = (layer(x) for layer in (attention.query, attention.key, attention.value))
    forget = torch.sigmoid(attention.forget.project(x))  # (B, N, H)
    heads = []
    for h in range(attention.heads):
        own, kept = slice(h * d, h * d + d), h * attention.key_heads // attention.heads
        theirs = slice(kept * d, kept * d + d)
        shares = [torch.sigmoid(layer(x)[..., kept, None]) for layer in (attention.shift.key, attention.shift.value)]
        keys, values = (
            share * torch.nn.functional.pad(y[..., theirs], (0, 0, 1, 0))[:, :-1] + (1 - share) * y[..., theirs]
            for share, y in zip(shares, (k, v), strict=True)
        )
        queries, keys = attention.query_norm(q[..., own]), attention.key_norm(keys)
        rows = []
        for i in range(x.shape[1]):
            scores = (keys[:, : i + 1] @ queries[:, i, :, None])[..., 0] / d**0.5
            fades = torch.stack([forget[:, j + 1 : i + 1, h].log().sum(-1) for j in range(i + 1)], -1)
            if settings.activation == "softmax":
                weights = (scores + fades).softmax(-1)
            else:
                weights = scores.relu() * fades.exp() / attention.gamma()[h] / ((i + 1) / 2) ** settings.alpha
            row = (weights[..., None] * values[:, : i + 1]).sum(1)
            rows.append(row / (row.square().mean(-1, keepdim=True) + torch.finfo(row.dtype).eps).sqrt())
        heads.append(torch.stack(rows, 1) * attention.norm.weight[own])
    return attention.output(torch.cat(heads, -1) * torch.sigmoid(x @ attention.gate.weight.T))


PRO = {"forget": 0.5, "token_shift": True, "output_gate": True, "norm": "rms", "query_key_norm": True}


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("activation", ["relu", "softmax"])
class TestPro:
    def make(self, activation, key_heads):
        torch.manual_seed(0)
        settings = MemorySettings(activation, gamma="none" if activation == "softmax" else "learned", **PRO)
        attention = Attention(32, 4, settings, key_heads, causal=True).double()
        for p in attention.parameters():
            torch.nn.init.normal_(p, std=0.3)
        return attention, torch.randn(2, 7, 32, dtype=torch.float64, requires_grad=True)

    def test_block_is_what_the_formulas_say(self, activation, key_heads):
        attention, x = self.make(activation, key_heads)
        found, expected = attention(x)[0], slow_pro(attention, x)
        torch.testing.assert_close(found, expected)
        inputs, upstream = (x, *attention.parameters()), torch.randn_like(found)
        grads = (torch.autograd.grad(out, inputs, upstream) for out in (found, expected))
        for grad, want in zip(*grads, strict=True):
            torch.testing.assert_close(grad, want, atol=1e-7, rtol=1e-5)

    def test_pieces_with_a_store_are_the_whole(self, activation, key_heads):
        attention, x = self.make(activation, key_heads)
        kept, last = [], []

        def store(make):
            kept.append(make())
            return tuple(torch.cat(side, 2) for side in zip(*kept, strict=True))

        def carry(kv):
            last.append(kv[:, :, -1:])
            return last[-2] if len(last) > 1 else None

        with torch.no_grad():
            pieces = [attention(part, store=store, carry=carry)[0] for part in x.split([3, 1, 2, 1], 1)]
            torch.testing.assert_close(torch.cat(pieces, 1), attention(x)[0])

    def test_padding_changes_nothing(self, activation, key_heads):
        attention, x = self.make(activation, key_heads)
        padded = torch.cat([torch.randn(2, 3, 32, dtype=torch.float64), x], 1)
        mask = (torch.arange(10) >= 3).expand(2, -1)
        torch.testing.assert_close(attention(padded, key_mask=mask)[0][:, 3:], attention(x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"heads": 4, "settings": MemorySettings(forget=1.0)},
            "forget needs causal attention, got 1.0 where it",
        ),
        ({"heads": 4, "settings": MemorySettings(token_shift=True)}, "token_shift needs causal attention, got True"),
        ({"heads": 5}, "heads must divide the width 32, got 5"),
        ({"heads": 4, "key_heads": 3}, "key_heads must divide the 4 heads, got 3"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Attention(32, **{"settings": MemorySettings(), **options})


def test_a_mask_of_pairs_may_leave_out_leading_dimensions():
    attention, x = Attention(32, 4, MemorySettings(slots=2)), torch.randn(2, 9, 32)
    pairs = torch.rand(9, 9) > 0.4
    expected, _ = attention(x, attn_mask=pairs[None, None])
    for mask in (pairs, pairs[None]):
        torch.testing.assert_close(attention(x, attn_mask=mask)[0], expected)


@pytest.mark.parametrize("shape", [(1, 1, 1, 5), (2, 1, 5, 1), (5, 1)])
def test_slots_beside_a_mask_that_broadcasts(shape):
    attention, x = Attention(32, 4, MemorySettings(slots=3)), torch.randn(2, 5, 32)
    mask = torch.rand(shape) < 0.5
    whole = torch.broadcast_to(mask, (2, 1, 5, 5))
    torch.testing.assert_close(attention(x, attn_mask=mask)[0], attention(x, attn_mask=whole)[0])


@pytest.mark.parametrize("name", ["key_mask", "attn_mask"])
@pytest.mark.parametrize("kind", [torch.long, torch.float32])
@pytest.mark.parametrize("settings", [MemorySettings(), SOFTMAX_ATTENTION], ids=["relu", "softmax"])
def test_masks_are_boolean(name, kind, settings):
    mask = torch.ones((2, 5) if name == "key_mask" else (5, 5), dtype=kind)
    with pytest.raises(ValueError, match=f"{name} must be boolean, True where a key may be seen, got {kind}"):
        Attention(32, 4, settings)(torch.randn(2, 5, 32), **{name: mask})


@pytest.mark.parametrize("activation", ["softmax", "sparsemax", "entmax15"])
def test_what_no_constant_changes_has_no_bias_to_learn(activation):
    """Whoever trains on many GPUs is refused parameters without a gradient."""
    pytest.importorskip("entmax")
    attention = Attention(32, 4, MemorySettings(activation, bias=1.0))
    attention(torch.randn(2, 5, 32))[0].sum().backward()
    assert all(x.grad is not None for x in attention.parameters())
    assert attention.bias is None


@pytest.mark.parametrize("shape", [(2, 4), (2, 6), (1, 5)])
@pytest.mark.parametrize("settings", [MemorySettings(), MemorySettings(slots=3), SOFTMAX_ATTENTION])
def test_a_mask_is_for_all_keys(settings, shape):
    """One that is too short would be taken for one that hides the rest, as room in a store is hidden."""
    message = rf"key_mask must have shape \(B, M\) = \(2, 5\), got \({shape[0]}, {shape[1]}\)"
    with pytest.raises(ValueError, match=message):
        Attention(32, 4, settings)(torch.randn(2, 5, 32), key_mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("padding", [None, torch.arange(7) < torch.tensor([[7], [4]])], ids=["none", "some"])
def test_consecutive_sequences_may_share_what_a_store_holds(padding):
    attention, x, context = (
        Attention(32, 4, MemorySettings(), key_heads=2),
        torch.randn(6, 3, 32),
        torch.randn(2, 7, 32),
    )
    mask = None if padding is None else padding.repeat_interleave(3, dim=0)
    expected, _ = attention(x, context.repeat_interleave(3, dim=0), key_mask=mask)
    found, stats = attention(x, context, key_mask=mask, store=lambda make: make(), return_stats=True)
    torch.testing.assert_close(found, expected)
    assert stats is None


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_a_context_of_another_batch_is_refused(batch):
    with pytest.raises(ValueError, match=f"context must have as many sequences as x, 4, got {batch}"):
        Attention(32, 4, MemorySettings())(torch.randn(4, 5, 32), torch.randn(batch, 7, 32))


@pytest.mark.parametrize(
    ("heads", "key_heads", "what"), [(0, None, "heads must divide"), (4, 0, "key_heads must divide")]
)
def test_heads_there_must_be(heads, key_heads, what):
    with pytest.raises(ValueError, match=what):
        Attention(32, heads, MemorySettings(), key_heads=key_heads)


@pytest.mark.parametrize("lengths", [(0, 5, 7), (2, 0, 7), (2, 5, 0), (0, 1, 3), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        *(MemorySettings(name) for name in ("relu", "softmax", "sigmoid", "sparsemax")),
        MemorySettings(norm="rms", slots=2, query_key_norm=True),
        POWER_ATTENTION,
    ],
    ids=lambda x: f"{x.activation}, {x.norm}",
)
def test_nothing_in_is_nothing_out(settings, graded, lengths):
    if settings.activation == "sparsemax":
        pytest.importorskip("entmax")
    b, n, m = lengths
    x, context = torch.randn(b, n, 32), torch.randn(b, m, 32)
    seen = torch.ones(b, m, dtype=torch.bool)
    module = Attention(32, 4, settings, key_heads=2)
    with torch.set_grad_enabled(graded):
        for options in ({}, {"key_mask": seen}, {"return_stats": True}):
            out, stats = module(x, context, **options)
            assert out.shape == (b, n, 32)
            assert out.isfinite().all()
            assert stats is None or stats.mass.shape == (b, 4, n)
        assert module(x)[0].shape == (b, n, 32)


@pytest.mark.parametrize("queries", [1, 20])
def test_a_gamma_beyond_float16_divides_in_float16(queries):
    attention, x = Attention(32, 4, MemorySettings("relu_eighth", alpha=0.0, bias=4.0)), torch.randn(2, 20, 32)
    calibrate(attention, x)
    assert attention.gamma().min() > torch.finfo(torch.float16).max
    expected, _ = attention(x[:, :queries], x)
    out, _ = attention.half()(x[:, :queries].half(), x.half())
    torch.testing.assert_close(out.float(), expected, atol=0.01, rtol=0.01)
