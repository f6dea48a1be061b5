"""Every way to compute a lookup against the weights written out."""

import pytest
import torch

from reluformer.memory import MemorySettings
from reluformer.memory.activations import ACTIVATIONS, NORMALISED
from reluformer.memory.settings import SIGNED, SOFTMAX_ATTENTION
from tests.memory.calls import lookup, weights_of

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
    "of heads": {"attn_mask": torch.rand(1, 4, 9, 13, generator=torch.Generator().manual_seed(2)) > 0.5},
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
    positive = weights.relu()
    shares = positive / positive.sum(-1, keepdim=True).clamp_min(1e-20)
    torch.testing.assert_close(stats.entropy, torch.special.entr(shares).sum(-1))
    torch.testing.assert_close(stats.active, (weights > 0).sum(-1).double())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_without_gamma_weights_are_still_divided_by_a_power_of_their_number(activation):
    q, k, v = case()
    settings = MemorySettings(activation, alpha=0.5, gamma="none")
    weights = weights_of(q, k, settings)
    torch.testing.assert_close(lookup(q, k, v, settings)[0], weights @ v.repeat_interleave(2, dim=1))
    bare = weights_of(q, k, MemorySettings(activation, alpha=0.0, gamma="none"))
    torch.testing.assert_close(weights, bare / (13 / 2) ** 0.5)


@pytest.mark.parametrize(
    ("activation", "norm"), [("relu", "none"), ("relu", "mass"), ("sigmoid", "none"), ("softmax", "none")]
)
def test_statistics_of_some_sequences_are_those_of_all_cut(activation, norm):
    q, k, v = case()
    settings = MemorySettings(activation, alpha=0.5, norm=norm)
    out, stats = lookup(q, k, v, settings, **MASKS["padding"], return_stats=True)
    again, some = lookup(q, k, v, settings, **MASKS["padding"], return_stats=True, stats_batch=1)
    torch.testing.assert_close(again, out)
    torch.testing.assert_close(tuple(some), tuple(x[:1] for x in stats))


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


@pytest.mark.parametrize("activation", NORMALISED)
@pytest.mark.parametrize("return_stats", [False, True])
def test_a_temperature_divides_the_scores(activation, return_stats):
    q, k, v = case(hk=4)
    warm = MemorySettings(activation, alpha=0.0, gamma="none", temperature=4.0)
    plain = MemorySettings(activation, alpha=0.0, gamma="none")
    found, expected = (lookup(x, k, v, y, return_stats=return_stats) for x, y in ((q, warm), (q / 4, plain)))
    torch.testing.assert_close(found, expected)


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


def slow_forgetting(q, k, v, settings, gamma, log_forget, visible):
    """Sums over the keys of every query, one after another, in the words of the definition."""
    batch, heads, n, _ = q.shape
    m, groups = k.shape[2], heads // k.shape[1]
    rows = []
    for b in range(batch):
        for h in range(heads):
            for i in range(n):
                p, total, mass = i + m - n, 0.0, 0.0
                seen = [j for j in range(p + 1) if visible is None or visible[b, j]]
                for j in seen:
                    faded = log_forget[b, h, [t for t in range(j + 1, p + 1) if t in seen]].sum()
                    score = q[b, h, i] @ k[b, h // groups, j] / q.shape[-1] ** 0.5
                    if settings.activation == "softmax":
                        weight = torch.exp(score + faded)
                    else:
                        weight = score.relu() ** (2 if settings.activation == "relu_squared" else 1) * faded.exp()
                        weight = weight / (gamma[h] * (len(seen) / 2) ** settings.alpha)
                    total, mass = total + weight * v[b, h // groups, j], mass + weight
                if settings.activation == "softmax" or settings.norm == "mass":
                    total = total / (mass if mass > 0 else 1)
                rows.append(total if seen else torch.zeros_like(q[b, h, i]))
    return torch.stack(rows).view_as(q)


FORGETTING = [
    MemorySettings("relu", forget=0.0),
    MemorySettings("relu_squared", alpha=1.0, forget=0.0),
    MemorySettings("relu", norm="mass", forget=0.0),
    MemorySettings("softmax", alpha=0.0, gamma="none", forget=0.0),
]
PADDING = {"none": None, "left": torch.arange(7) >= torch.tensor([[0], [2]])}


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING.keys())
@pytest.mark.parametrize("n", [1, 3, 7])
@pytest.mark.parametrize("settings", FORGETTING, ids=lambda x: f"{x.activation}, {x.norm}")
class TestForgetting:
    def case(self, n, padding):
        q, k, v = case(n=n, m=7)
        log_forget = torch.nn.functional.logsigmoid(torch.randn(2, 4, 7, dtype=torch.float64))
        if padding is not None:
            log_forget = log_forget.masked_fill(~padding[:, None], 0.0)
        gamma = torch.rand(4, dtype=torch.float64) + 0.5
        return [x.requires_grad_() for x in (q, k, v, log_forget, gamma)]

    def test_is_what_the_definition_says(self, settings, n, padding):
        q, k, v, log_forget, gamma = inputs = self.case(n, padding)
        scale = {} if settings.activation == "softmax" else {"gamma": gamma}
        found, _ = lookup(q, k, v, settings, log_forget=log_forget, causal=True, key_mask=padding, **scale)
        expected = slow_forgetting(q, k, v, settings, gamma, log_forget, padding)
        torch.testing.assert_close(found, expected)
        upstream = torch.randn_like(found)
        if settings.norm == "mass" or settings.activation == "softmax":
            inputs = inputs[:-1]  # gamma cancels
        grads = (torch.autograd.grad(x, inputs, upstream) for x in (found, expected))
        for grad, want in zip(*grads, strict=True):
            torch.testing.assert_close(grad, want)

    def test_in_a_store_with_room_for_more(self, settings, n, padding):
        """Queries that stand before the room see what they would see without it, one alone and several at once."""
        q, k, v, log_forget, gamma = (x.detach() for x in self.case(n, padding))
        scale = {} if settings.activation == "softmax" else {"gamma": gamma}
        expected = slow_forgetting(q, k, v, settings, gamma, log_forget, padding)
        roomy = [torch.nn.functional.pad(x, (0, 0, 0, 4)) for x in (k, v)]
        mask = None if padding is None else torch.nn.functional.pad(padding, (0, 4))
        options = {"limit": torch.arange(7 - n, 7), "key_mask": mask, **scale}
        gates = torch.nn.functional.pad(log_forget, (0, 4))
        with torch.no_grad():
            torch.testing.assert_close(lookup(q, *roomy, settings, log_forget=gates, **options)[0], expected)
        out, stats = lookup(q, *roomy, settings, log_forget=gates, return_stats=True, **options)
        torch.testing.assert_close(out, expected)
        assert stats.mass.shape == (2, 4, n)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates_that_are_open_change_nothing(activation):
    q, k, v = case(n=5, m=9)
    plain, _ = lookup(q, k, v, MemorySettings(activation), causal=True)
    gates = torch.zeros(2, 4, 9, dtype=torch.float64)
    found, _ = lookup(q, k, v, MemorySettings(activation, forget=0.0), causal=True, log_forget=gates)
    torch.testing.assert_close(found, plain)


@pytest.mark.parametrize("activation", [x for x in ACTIVATIONS if x != "sigmoid"])  # its weights know n
def test_a_token_may_forget_all_but_itself(activation):
    q, k, v = case(n=1, m=9)
    gates = torch.zeros(2, 4, 9, dtype=torch.float64)
    gates[..., -1] = -1e3
    found, _ = lookup(q, k, v, MemorySettings(activation, alpha=0.0, forget=0.0), causal=True, log_forget=gates)
    alone, _ = lookup(q, k[:, :, -1:], v[:, :, -1:], MemorySettings(activation, alpha=0.0))
    torch.testing.assert_close(found, alone)


def test_weights_of_a_memory_that_forgets_need_its_gates():
    q, k, _ = case()
    with pytest.raises(ValueError, match=r"fades must be given where settings.forget is 0.0, got None"):
        weights_of(q, k, MemorySettings(forget=0.0), causal=True)


@pytest.mark.parametrize(("activation", "power"), [("relu_fourth", 4.0), ("relu_eighth", 8.0)])
@pytest.mark.parametrize("n", [1, 40], ids=["a step", "many rows"])
def test_a_power_over_its_mass_does_not_overflow(n, activation, power):
    """Scores of 40 to the fourth are more than float16 can hold."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 16)
    q = 20 * q[:, :, :n]
    settings, bias = MemorySettings(activation, norm="mass", bias=power), torch.full((2,), power)
    half = [x.half() for x in (q, k, v)]
    with torch.no_grad():
        out, _ = lookup(*half, settings, bias=bias.half())
    assert out.dtype == torch.float16
    weights = weights_of(half[0].double(), half[1].double(), settings, bias=bias.double())
    assert (q @ k.mT / 4).max() > 40
    torch.testing.assert_close(out.double(), weights @ half[2].double(), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_power_that_nothing_divides_does_not_overflow(backend):
    """As in slots apart, whose values make up for it. Scores of 5 to the eighth are more than float16 can hold."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 1, 2, 40, 16) * torch.tensor([1.5, 1, 1e-3]).view(3, 1, 1, 1, 1)).half()
    settings = MemorySettings("relu_eighth", alpha=0.0, gamma="none")
    out, _ = lookup(q, k, v, settings, backend=backend)
    weights = weights_of(q.double(), k.double(), settings)
    assert weights.max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(out.double(), weights @ v.double(), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("activation", ["relu", "relu_squared", "relu_fourth", "relu_eighth"])
@pytest.mark.parametrize("training", [False, True], ids=["a step", "all rows"])
def test_small_scores_over_their_mass_are_a_distribution_whatever_is_padded(activation, training):
    settings, one = MemorySettings(activation, norm="mass"), torch.ones(1, 1, 1, 1)
    padding = {"key_mask": torch.arange(16)[None] < 1}
    with torch.set_grad_enabled(training):
        alone, _ = lookup(0.02 * one, one, 3 * one, settings)
        padded, _ = lookup(0.02 * one, one.expand(1, 1, 16, 1), 3 * one.expand(1, 1, 16, 1), settings, **padding)
    torch.testing.assert_close(alone, 3 * one)
    torch.testing.assert_close(padded, 3 * one)


@pytest.mark.parametrize(
    "settings", [{"activation": "relu_eighth", "bias": 1.0}, {"activation": "relu_fourth", "bias": 4.0}]
)
def test_a_step_in_half_precision_has_the_range_of_all_rows(settings):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 2000, 16).half()
    settings = MemorySettings(**settings)
    options = {"gamma": torch.full((2,), 1e3).half(), "bias": torch.full((2,), settings.bias).half()}
    with torch.no_grad():
        step, _ = lookup(q[:, :, -1:], k, v, settings, **options)
    weights = weights_of(q[:, :, -1:].double(), k.double(), settings, **{x: y.double() for x, y in options.items()})
    torch.testing.assert_close(step.double(), weights @ v.double(), atol=5e-2, rtol=5e-3)
