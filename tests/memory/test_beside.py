"""Slots that all sequences share against a copy of them before the keys of each: sums, statistics, gradients."""

import pytest
import torch

from reluformer.memory import Attention, MemorySettings
from reluformer.memory import beside as module
from reluformer.memory.beside import MANY, is_better
from reluformer.memory.dispatch import look_up
from reluformer.memory.lookup import Lookup, joined
from reluformer.memory.settings import EIGHTH_ATTENTION, POWER_ATTENTION, SOFTMAX_ATTENTION

RELU = MemorySettings(bias=0.5)
KINDS = {
    "ReLU": RELU,
    "ReLU, no bias": MemorySettings(),
    "ReLU over its mass": MemorySettings("relu_squared", norm="mass", bias=1.0),
    "power 8": EIGHTH_ATTENTION,
    "softmax": SOFTMAX_ATTENTION,
    "softmax, scaled, cooled": MemorySettings("softmax", alpha=0.3, temperature=0.5),
}
SIGHTS = {
    "all": {},
    "causal": {"causal": True},
    "padding": {"key_mask": "some"},
    "causal, padding": {"causal": True, "key_mask": "some"},
    "pairs": {"attn_mask": "some"},
}


def lookup(settings, dtype=torch.float64, sight=None, b=3, n=7, m=7, slots=MANY, heads=4, key_heads=2, d=16):
    torch.manual_seed(0)

    def tensor(*shape):
        return torch.randn(shape, dtype=dtype, requires_grad=True)

    sight = dict(sight or {})
    if "key_mask" in sight:
        sight["key_mask"] = torch.arange(m) < torch.tensor([[m], [m - 3], [0]])  # one that sees slots alone
    if "attn_mask" in sight:
        sight["attn_mask"] = torch.rand(b, 1, n, m) > 0.5
    k, v, keys, values = (
        tensor(b, key_heads, m, d),
        tensor(b, key_heads, m, d),
        *(tensor(key_heads, slots, d) for _ in range(2)),
    )
    bias = None if settings.bias is None else torch.full((heads,), settings.bias, requires_grad=True)
    gamma = None if settings.gamma == "none" else torch.linspace(1, 2, heads).requires_grad_()
    counted = settings.constant_channel
    if counted:
        with torch.no_grad():
            for x in (k, v, keys, values):
                x[..., 0] = 1
    return Lookup(
        tensor(b, heads, n, d), k, v, settings, gamma=gamma, bias=bias, counted=counted, slots=(keys, values), **sight
    )


def leaves(call):
    return [x for x in (call.q, call.k, call.v, *call.slots, call.gamma, call.bias) if x is not None]


@pytest.mark.parametrize("sight", SIGHTS.values(), ids=SIGHTS)
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_is_what_copies_give(settings, sight):
    call = lookup(settings, sight=sight)
    assert is_better(call, False)
    (mine, _), (theirs, _) = look_up(call), look_up(joined(call))
    torch.testing.assert_close(mine, theirs)
    grad = torch.randn_like(mine)
    for own, other in zip(
        *(torch.autograd.grad(x, leaves(call), grad, materialize_grads=True) for x in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("stats_batch", [None, 2])
@pytest.mark.parametrize("level", [True, "mass_entropy"])
@pytest.mark.parametrize("name", ["ReLU", "ReLU over its mass", "power 8"])
def test_statistics(name, level, stats_batch):
    call = lookup(KINDS[name], sight=SIGHTS["causal, padding"])
    (out, mine), (_, theirs) = (look_up(x, return_stats=level, stats_batch=stats_batch) for x in (call, joined(call)))
    assert out.shape == call.q.shape
    for own, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(own, other)
    if name == "ReLU":
        for own, other in zip(
            *(torch.autograd.grad([x.mass.sum(), x.entropy.sum()], leaves(call)[:2]) for x in (mine, theirs)),
            strict=True,
        ):
            torch.testing.assert_close(own, other)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("sight", ["all", "padding"])
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
@torch.no_grad()
def test_a_step_of_decoding(settings, sight, n):
    call = lookup(settings, sight=SIGHTS[sight], n=n)
    torch.testing.assert_close(look_up(call)[0], look_up(joined(call))[0])


def cast(call, dtype, device):
    def to(x):
        return x.detach().to(device, dtype).requires_grad_()

    per_head = {name: x if x is None else x.to(device) for name, x in (("gamma", call.gamma), ("bias", call.bias))}
    return call._replace(q=to(call.q), k=to(call.k), v=to(call.v), slots=tuple(map(to, call.slots)), **per_head)


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_half_precision_errs_no_more_than_copies_do(settings, device):
    """Against float64, sums and gradients: at most twice the error of the copies' way, and a rounding."""
    half = cast(lookup(settings, sight=SIGHTS["causal"], n=40, m=40, d=64), torch.bfloat16, device)
    exact = cast(half, torch.float64, "cpu")

    def run(call, copied):
        out, _ = look_up(joined(call) if copied else call)
        grad = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype, device=out.device).expand_as(out)
        return [x.double().cpu() for x in (out, *torch.autograd.grad(out, [call.q, call.k, call.v, *call.slots], grad))]

    for right, mine, theirs in zip(run(exact, True), run(half, False), run(half, True), strict=True):
        error, allowed = ((x - right).norm() / right.norm() for x in (mine, theirs))
        assert error <= 2 * allowed + torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["half precision", "autocast"])
@torch.no_grad()
def test_large_scores_of_softmax(dtype):
    """Of which the share of a sequence depends on the last digits, in kernels of half precision, too."""
    call = lookup(SOFTMAX_ATTENTION, n=40, m=MANY)
    call = cast(call._replace(q=10 * call.q), torch.bfloat16, "cpu")
    right = look_up(joined(cast(call, torch.float64, "cpu")))[0]
    call = cast(call, dtype, "cpu")
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = ((look_up(x)[0].double() - right).norm() / right.norm() for x in (call, joined(call)))
    assert mine <= 2 * theirs + torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize(
    "call",
    [
        lookup(RELU, slots=MANY - 1),
        lookup(RELU, dtype=torch.float16),
        lookup(RELU, m=0),
        lookup(MemorySettings(centred=True, bias=1.0)),
        lookup(MemorySettings("sigmoid")),
    ],
    ids=["few slots", "float16", "no keys", "centred", "sigmoid"],
)
def test_others_are_copied(call):
    assert not is_better(call, False)
    assert look_up(call)[0].shape == call.q.shape


def test_softmax_of_long_sequences_and_its_statistics_are_copied(monkeypatch):
    call = lookup(SOFTMAX_ATTENTION)
    assert not is_better(call, True)
    monkeypatch.setattr(module, "LONGEST", 6)
    assert not is_better(call, False)


@pytest.mark.parametrize("settings", [RELU, POWER_ATTENTION, SOFTMAX_ATTENTION], ids=["ReLU", "power 8", "softmax"])
def test_nobody_copies_slots(settings, monkeypatch):
    """A layer of many slots, trained and asked token by token."""
    monkeypatch.setattr("reluformer.memory.dispatch.joined", lambda call: pytest.fail("copied"))
    torch.manual_seed(0)
    layer = Attention(32, 4, MemorySettings.of("", settings.to_dict() | {"slots": MANY}), causal=True)
    x = torch.randn(2, 5, 32)
    out, _ = layer(x)
    out.sum().backward()
    assert layer.slots.keys.grad.abs().sum() > 0
    with torch.no_grad():
        last, _ = layer(x[:, -1:], x)
    torch.testing.assert_close(last, out[:, -1:])
