"""The specification: against the definition written out as loops, and against finite differences."""

import itertools
import math

import pytest
import torch

from reluformer import relu_attention

F64 = torch.float64


def reference(*args, **options):
    return relu_attention(*args, backend="reference", **options)


def random_qkv(b=1, hq=2, hk=2, n=3, m=4, d=3, grad=False):
    shapes = ((b, hq, n, d), (b, hk, m, d), (b, hk, m, d))
    return [torch.randn(shape, dtype=F64, requires_grad=grad) for shape in shapes]


@pytest.mark.parametrize("power", [1, 2, 4, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("causal", [False, True])
def test_definition(power, alpha, causal):
    b, hq, hk, n, m, d = 2, 4, 2, 3, 5, 3
    q, k, v = random_qkv(b, hq, hk, n, m, d)
    gamma, bias = torch.rand(hq, dtype=F64) + 0.5, torch.randn(hq, dtype=F64)
    key_mask = torch.tensor([[True] * 5, [True, False, True, True, False]])
    out, stats = reference(
        q, k, v, gamma=gamma, bias=bias, power=power, alpha=alpha, causal=causal, key_padding_mask=key_mask, scale=0.7,
        return_stats=True,
    )  # fmt: skip
    for i_b in range(b):
        for h in range(hq):
            for i in range(n):
                seen = [j for j in range(m) if key_mask[i_b, j] and (not causal or j <= i + m - n)]
                head, w = h // (hq // hk), {}
                for j in seen:
                    score = 0.7 * (q[i_b, h, i] @ k[i_b, head, j]).item() + bias[h].item()
                    w[j] = max(score, 0.0) ** power / (gamma[h].item() * (max(len(seen), 1) / 2) ** alpha)
                row = sum((w[j] * v[i_b, head, j] for j in seen), torch.zeros(d, dtype=F64))
                torch.testing.assert_close(out[i_b, h, i], row)
                mass = sum(w.values())
                p = [x / mass for x in w.values() if x > 0]
                assert stats.mass[i_b, h, i].item() == pytest.approx(mass)
                assert stats.entropy[i_b, h, i].item() == pytest.approx(-sum(x * math.log(x) for x in p), abs=1e-12)
                assert stats.active[i_b, h, i].item() == len(p)


def attend_with_loops(q, k, v, gamma, bias, log_forget, key_mask, power, alpha):
    """Output, mass and entropy with forget gates, weight by weight: a key fades by every gate that it passes."""
    b, hq, n, d = q.shape
    hk, m = k.shape[1:3]
    outs, masses, entropies = [], [], []
    for i_b, h, i in itertools.product(range(b), range(hq), range(n)):
        head, here = h // (hq // hk), i + m - n
        seen = [j for j in range(here + 1) if key_mask[i_b, j]]
        row, weights = torch.zeros(d, dtype=F64), []
        for j in seen:
            weight = (q[i_b, h, i] @ k[i_b, head, j] / d**0.5 + bias[h]).clamp_min(0) ** power
            for passed in range(j + 1, here + 1):
                weight = weight * log_forget[i_b, h, passed].exp()
            weight = weight / (gamma[h] * (len(seen) / 2) ** alpha)
            row = row + weight * v[i_b, head, j]
            weights.append(weight)
        mass = sum(weights, torch.zeros((), dtype=F64))
        alive = [w / mass for w in weights if w > 0]
        outs.append(row)
        masses.append(mass)
        entropies.append(-sum((p * p.log() for p in alive), torch.zeros((), dtype=F64)))
    return torch.stack(outs).view(q.shape), *(torch.stack(x).view(b, hq, n) for x in (masses, entropies))


@pytest.mark.parametrize("power", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [2, 5])
def test_forget_gates(n, power):
    """Outputs, statistics and all gradients with grouped heads, padding, and as many queries as keys or fewer."""
    q, k, v = random_qkv(b=2, hq=4, hk=2, n=n, m=5, grad=True)
    gamma, bias = (torch.rand(4, dtype=F64) + 0.5).requires_grad_(), torch.randn(4, dtype=F64, requires_grad=True)
    log_forget = (-torch.rand(2, 4, 5, dtype=F64)).requires_grad_()
    key_mask = torch.tensor([[True] * 5, [True, False, True, True, False]])
    leaves = [q, k, v, gamma, bias, log_forget]
    out, stats = reference(
        q, k, v, gamma=gamma, bias=bias, power=power, alpha=0.7, causal=True, key_padding_mask=key_mask,
        log_forget=log_forget, return_stats=True,
    )  # fmt: skip
    found, expected = (out, *stats[:2]), attend_with_loops(*leaves, key_mask, power, 0.7)
    slopes = [torch.randn_like(x) for x in found]
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    for x, y in zip(
        torch.autograd.grad(found, leaves, slopes), torch.autograd.grad(expected, leaves, slopes), strict=True
    ):
        torch.testing.assert_close(x, y)


def test_gates_that_forget_nothing_change_no_bit():
    q, k, v = (x.float() for x in random_qkv(n=30, m=40, d=16))
    plain, stats = reference(q, k, v, causal=True, return_stats=True)
    gated, gated_stats = reference(q, k, v, causal=True, log_forget=torch.zeros(1, 2, 40), return_stats=True)
    for x, y in zip((gated, *gated_stats), (plain, *stats), strict=True):
        assert torch.equal(x, y)


def test_gates_that_forget_all_leave_the_newest_key():
    q, k, v = (x.requires_grad_() for x in random_qkv(n=6, m=6))
    log_forget = torch.full((1, 2, 6), -100.0, dtype=F64, requires_grad=True)
    out, stats = reference(q, k, v, causal=True, log_forget=log_forget, alpha=0.0, return_stats=True)
    torch.testing.assert_close(out, reference(q, k, v, causal=True, window=1, alpha=0.0))
    assert (stats.active <= 1).all()
    for grad in torch.autograd.grad(out.sum() + stats.mass.sum() + stats.entropy.sum(), (q, k, v, log_forget)):
        assert grad.isfinite().all()


def test_output_keeps_the_variance_of_the_values():
    q, k, v = (torch.randn(8, 1, 256, 64) for _ in range(3))
    assert reference(q, k, v).var().item() == pytest.approx(1.0, rel=0.1)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "causal, more queries than keys": {"causal": True, "n": 5, "m": 3},
    "window": {"window": 2, "n": 4},
    "power 2": {"power": 2},
    "alpha 1": {"alpha": 1.0},
    "grouped heads": {"hq": 4, "hk": 2},
    "key padding": {"key_padding_mask": torch.tensor([[True, False, True, True]])},
    "forget gates": {"causal": True, "forget": True, "n": 4, "m": 3},
    "boolean mask": {"attn_mask": torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])},
}


def inputs_and_function(options, stats):
    """Leaves q, k, v, gamma, bias, a float mask and gates, and the function of them to differentiate."""
    options = dict(options)
    forget = options.pop("forget", False)
    sizes = {name: options.pop(name) for name in ("hq", "hk", "n", "m") if name in options}
    q, k, v = random_qkv(**sizes, grad=True)
    gamma = (torch.rand(q.shape[1], dtype=F64) + 0.5).requires_grad_()
    bias = torch.randn(q.shape[1], dtype=F64, requires_grad=True)
    more = {}
    if "attn_mask" not in options:
        more["attn_mask"] = torch.randn(q.shape[2], k.shape[2], dtype=F64, requires_grad=True)
    if forget:
        more["log_forget"] = (-torch.rand(*q.shape[:2], k.shape[2], dtype=F64)).requires_grad_()
    leaves = [q, k, v, gamma, bias, *more.values()]

    def function(q, k, v, gamma, bias, *rest):
        more_leaves = dict(zip(more, rest, strict=True))
        result = reference(q, k, v, gamma=gamma, bias=bias, return_stats=stats, **more_leaves, **options)
        return (result[0], result[1].mass, result[1].entropy) if stats else result

    return leaves, function


@pytest.mark.parametrize("stats", [False, True], ids=["output", "statistics"])
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name, stats):
    leaves, function = inputs_and_function(OPTIONS[name], stats)
    assert torch.autograd.gradcheck(function, leaves)


@pytest.mark.parametrize("stats", [False, True], ids=["output", "statistics"])
@pytest.mark.parametrize("name", OPTIONS)
def test_second_gradients(name, stats):
    leaves, function = inputs_and_function(OPTIONS[name], stats)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_masks_that_say_the_same_give_the_same():
    q, k, v = random_qkv(b=2, n=5, m=5)
    key_mask = torch.rand(2, 5) > 0.3
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    band = triangle.triu(-1)  # own position and one to the left

    def same(x, y):
        for a, b in zip((x[0], *x[1]), (y[0], *y[1]), strict=True):
            torch.testing.assert_close(a, b)

    same(reference(q, k, v, causal=True, return_stats=True), reference(q, k, v, attn_mask=triangle, return_stats=True))
    same(
        reference(q, k, v, causal=True, window=2, return_stats=True),
        reference(q, k, v, attn_mask=band, return_stats=True),
    )
    same(
        reference(q, k, v, key_padding_mask=key_mask, return_stats=True),
        reference(q, k, v, attn_mask=key_mask[:, None, None].expand(2, 1, 5, 5), return_stats=True),
    )
    same(
        reference(q, k, v, attn_mask=band, return_stats=True),
        reference(q, k, v, attn_mask=torch.zeros(5, 5, dtype=F64).masked_fill(~band, -torch.inf), return_stats=True),
    )


def test_grouped_heads_are_repeated_keys():
    q, k, v = random_qkv(hq=6, hk=2)
    repeated = (x.repeat_interleave(3, dim=1) for x in (k, v))
    torch.testing.assert_close(reference(q, k, v), reference(q, *repeated))


def test_rows_without_keys_and_rows_without_weight_are_zero():
    q, k, v = random_qkv(n=4, m=2, grad=True)
    unseen, stats = reference(q, k, v, causal=True, return_stats=True)  # the first two queries see no key
    for x in (unseen, *stats):
        assert (x[:, :, :2] == 0).all()
    dead, dead_stats = reference(q, k, v, bias=torch.full((2,), -100.0, dtype=F64), return_stats=True)
    for x in (dead, *dead_stats):
        assert (x == 0).all()
    loss = sum(x.sum() for x in (unseen, dead, *stats[:2], *dead_stats[:2]))
    for grad in torch.autograd.grad(loss, (q, k, v)):
        assert grad.isfinite().all()
