"""Centred scores, by whatever way they are computed, against their definition row by row."""

import pytest
import torch

from reluformer.memory import Attention, MemorySettings
from reluformer.memory.activations import FUSED
from reluformer.memory.constant import with_constant
from tests.memory.calls import lookup, weights_of

N, M, HEADS = 9, 13, 4
MASKS = {
    "none": {},
    "causal": {"causal": True},
    "padding": {"key_mask": torch.arange(M) < torch.tensor([[13], [7]])},
    "one key": {"key_mask": torch.arange(M) < torch.tensor([[13], [1]])},
    "padding, causal": {"key_mask": torch.arange(M) >= torch.tensor([[0], [3]]), "causal": True},
    "any": {"attn_mask": torch.rand(2, 1, N, M, generator=torch.Generator().manual_seed(1)) > 0.5},
    "of heads": {"attn_mask": torch.rand(1, HEADS, N, M, generator=torch.Generator().manual_seed(2)) > 0.5},
}


def case(hk=2):
    torch.manual_seed(0)
    q = torch.randn(2, HEADS, N, 8, dtype=torch.float64) + 1.0  # with something in common
    k, v = torch.randn(2, 2, hk, M, 8, dtype=torch.float64) + 1.0
    gamma, bias = torch.rand(2, HEADS, dtype=torch.float64) + 0.5
    return [x.requires_grad_() for x in (q, with_constant(k).detach(), v, gamma, bias)]


def slow(q, k, v, gamma, bias, power, masks):
    """One row after another, in the words of the definition."""
    rows = []
    for b in range(q.shape[0]):
        for h in range(HEADS):
            own = h * k.shape[1] // HEADS
            for i in range(N):
                seen = [j for j in range(M) if sees(b, h, i, j, **masks)]
                if not seen:
                    rows.append(torch.zeros_like(v[b, own, 0]))
                    continue
                scores = torch.stack([q[b, h, i] @ k[b, own, j] / q.shape[-1] ** 0.5 for j in seen])
                weights = (scores - scores.mean() + bias[h]).relu() ** power / (gamma[h] * (len(seen) / 2) ** 0.7)
                rows.append(weights @ v[b, own, seen])
    return torch.stack(rows).view(*q.shape[:3], v.shape[-1])


def sees(b, h, i, j, causal=False, key_mask=None, attn_mask=None):
    hidden = (causal and j > i + M - N) or (key_mask is not None and not key_mask[b, j])
    return not hidden and (attn_mask is None or bool(attn_mask.expand(2, HEADS, N, M)[b, h, i, j]))


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("activation", FUSED)
class TestIsWhatTheDefinitionSays:
    def test_with_gradients(self, activation, masks):
        inputs = case()
        q, k, v, gamma, bias = inputs
        settings = MemorySettings(activation, alpha=0.7, centred=True)
        out, _ = lookup(q, k, v, settings, gamma=gamma, bias=bias, **masks)
        expected = slow(*inputs, FUSED[activation], masks)
        torch.testing.assert_close(out, expected)
        slope = torch.randn_like(out)
        # The keys' constant is none of their parameters: nobody asks for its gradient.
        found, wanted = (list(torch.autograd.grad(x, inputs, slope)) for x in (out, expected))
        found[1], wanted[1] = found[1][..., 1:], wanted[1][..., 1:]
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y)

    def test_weights_written_out(self, activation, masks):
        q, k, v, gamma, bias = case()
        settings = MemorySettings(activation, alpha=0.7, centred=True)
        weights = weights_of(q, k, settings, gamma=gamma, bias=bias, **masks)
        expected = slow(q, k, v, gamma, bias, FUSED[activation], masks)
        torch.testing.assert_close(weights @ v.repeat_interleave(2, dim=1), expected)

    def test_a_step_of_decoding_is_the_last_row(self, activation, masks):
        q, k, v, gamma, bias = case()
        masks = masks | {name: mask[:, :, -1:] for name, mask in masks.items() if name == "attn_mask"}
        settings = MemorySettings(activation, alpha=0.7, centred=True)
        options = {"gamma": gamma, "bias": bias, **masks}
        with torch.no_grad():
            step, _ = lookup(q[:, :, -1:], k, v, settings, **options)
        weights = weights_of(q[:, :, -1:], k, settings, **options)
        torch.testing.assert_close(step, weights @ v.repeat_interleave(2, dim=1))


def test_in_a_store_with_room_for_more():
    q, k, v, gamma, _ = case()
    settings = MemorySettings("relu", centred=True)
    room = torch.zeros(2, 2, 6, 8, dtype=torch.float64)
    with torch.no_grad():
        step, _ = lookup(q[:, :, -1:], k, v, settings, gamma=gamma)
        more = (torch.cat([x, room], dim=2) for x in (k, v))
        again, _ = lookup(q[:, :, -1:], *more, settings, gamma=gamma, limit=torch.tensor([M - 1]))
    torch.testing.assert_close(again, step)


def test_what_keys_have_in_common_changes_nothing_and_no_row_is_dead():
    q, k, v, _, _ = case()
    settings = MemorySettings("relu", centred=True)
    out, stats = lookup(q, k, v, settings, return_stats=True)
    shifted, _ = lookup(q, with_constant(k + 100 * torch.randn(8, dtype=torch.float64)), v, settings)
    torch.testing.assert_close(shifted, out)
    assert (stats.active > 0).all()
    _, plain = lookup(q, k - 100, v, MemorySettings("relu"), return_stats=True)
    assert (plain.active == 0).any()


@pytest.mark.parametrize("slots", [0, 3])
def test_causal_attention_sees_no_later_token(slots):
    torch.manual_seed(0)
    attention = Attention(32, 4, MemorySettings("relu_squared", bias=2.0, centred=True, slots=slots), causal=True)
    x = torch.randn(2, 7, 32)
    changed = torch.cat([x[:, :5], torch.randn(2, 2, 32)], dim=1)
    torch.testing.assert_close(attention(changed)[0][:, :5], attention(x)[0][:, :5])
    assert not torch.allclose(attention(changed)[0][:, 5:], attention(x)[0][:, 5:])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", ["relu", "relu_squared", "relu_fourth", "relu_eighth"])
def test_the_mass_comes_with_the_sums(activation, causal):
    """Values with a constant give it; statistics would too."""
    q, k, v, _, bias = case()
    v, settings = with_constant(v), MemorySettings(activation, centred=True, norm="mass", bias=2.0)
    out, _ = lookup(q, k, v, settings, bias=bias, causal=causal, counted=True)
    measured, stats = lookup(q, k, v, settings, bias=bias, causal=causal, return_stats=True)
    torch.testing.assert_close(out, measured)
    weights = weights_of(q, k, settings, bias=bias, causal=causal)
    torch.testing.assert_close(out, weights @ v.repeat_interleave(2, dim=1))
    again = lookup(q, k, v, settings, bias=bias, causal=causal, counted=True, return_stats=True, stats_batch=1)[1]
    for x, y in zip(again, stats, strict=True):
        torch.testing.assert_close(x, y[:1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize(
    "settings",
    [{"alpha": 1.0}, *({"activation": name, "norm": "mass"} for name in ("relu_fourth", "relu_eighth"))],
    ids=str,
)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_in_half_precision_by_the_kernels(causal, head_dim, settings):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 300, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    k, v, bias = with_constant(k + 1), with_constant(v), torch.ones(4, device="cuda")
    settings = MemorySettings(centred=True, bias=1.0, **settings)
    out, _ = lookup(q, k, v, settings, bias=bias, causal=causal, counted=True)
    expected = weights_of(q.double(), k.double(), settings, bias=bias.double(), causal=causal) @ v.double()
    error = (out.double() - expected).norm() / expected.norm()
    assert error < 0.01
