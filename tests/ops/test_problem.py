"""A problem in two parts, sequences with statistics and sequences without: the same as all of it, cut afterwards."""

import pytest
import torch
from torch import Tensor

from reluformer import relu_attention
from tests.ops.agreement import Case, random_case

pytestmark = pytest.mark.usefixtures("poisoned_memory")
BATCH, MEASURED = 5, 2
HEADS, N, M = 2, 11, 13


@pytest.fixture(params=["reference", "chunked", "triton"])
def backend(request):
    if request.param == "triton":
        pytest.importorskip("triton")
    return request.param


def seen(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) > 0.3


def added(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).masked_fill(~seen(*shape), -torch.inf)


CASES = {
    "plain": {},
    "one scale for all": {"gamma": False},
    "grouped heads": {"hk": 1, "causal": True},
    "a band": {"window": (3, 6), "alpha": 1.0},
    "bias, power 2": {"bias": True, "power": 2, "causal": True},
    "power 4": {"power": 4, "scale": 0.3},
    "power 8": {"power": 8, "scale": 0.3},
    "padding": {"key_padding_mask": seen(BATCH, M)},
    "padding under a bias": {"key_padding_mask": seen(BATCH, M), "bias": True, "causal": True},
    "a mask for each": {"attn_mask": seen(BATCH, 1, N, M)},
    "a mask for all": {"attn_mask": seen(N, M), "hk": 1},
    "an added mask for each": {"attn_mask": added(BATCH, HEADS, N, M), "bias": True},
    "an added mask for all": {"attn_mask": added(1, HEADS, N, M)},
    "forget gates": {"log_forget": -seen(BATCH, HEADS, M).float(), "causal": True},
    "rows off the boundaries of tensor maps": {"d": 7},
    "no queries": {"n": 0},
    "no keys": {"m": 0},
}


def case_of(options: dict[str, object], device: torch.device) -> Case:
    options = {"b": BATCH, "hq": HEADS, "n": N, "m": M, "d": 16} | options
    options = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options.items()}
    return random_case(device=device, **options)


def cut(sequences: int):
    """The operator, with the statistics of these sequences cut out of those of all."""

    def attention(*args, **kwargs):
        out, stats = relu_attention(*args, **kwargs)
        return out, type(stats)(*(x[:sequences] for x in stats))

    return attention


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], **tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_is_all_of_it_cut_afterwards(options, backend, device):
    """Output, statistics and every gradient."""
    dtype = torch.float32 if backend == "triton" else torch.float64
    case = case_of(options, device)
    expected = case.run(cut(MEASURED), dtype, backend)
    some = Case(case.tensors, case.options | {"stats_batch": MEASURED})
    found = some.run(relu_attention, dtype, backend)
    assert found["mass"].shape == (MEASURED, HEADS, case.tensors["q"].shape[2])
    assert_same(found, expected)


@pytest.mark.parametrize("measured", [1, 4, BATCH])
def test_any_number_of_sequences(measured, backend, device):
    dtype = torch.float32 if backend == "triton" else torch.float64
    case = case_of({"bias": True}, device)
    some = Case(case.tensors, case.options | {"stats_batch": measured})
    assert_same(some.run(relu_attention, dtype, backend), case.run(cut(measured), dtype, backend))


def test_decoding(backend, device):
    """Few queries against many keys, which Triton splits."""
    q, k, v = (torch.randn(BATCH, HEADS, n, 16, device=device) for n in (2, 257, 257))
    options = {"causal": True, "key_padding_mask": seen(BATCH, 257).to(device), "backend": backend}
    with torch.no_grad():
        expected = cut(MEASURED)(q, k, v, return_stats=True, **options)
        found = relu_attention(q, k, v, return_stats=True, stats_batch=MEASURED, **options)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, backend, device):
    case = case_of({"causal": True, "hk": 1}, device)
    some = Case(case.tensors, case.options | {"stats_batch": MEASURED})
    rounding = 4 * torch.finfo(dtype).eps
    expected = case.run(cut(MEASURED), dtype, backend)
    assert_same(some.run(relu_attention, dtype, backend), expected, rtol=rounding, atol=rounding)


def test_deterministic(backend, device):
    case = case_of({"causal": True, "bias": True}, device)
    case.options["stats_batch"] = MEASURED
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (case.run(relu_attention, torch.float32, backend) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert_same(first, case.run(relu_attention, torch.float32, "reference"), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(BATCH, 1, N, M), (1, HEADS, N, M), (N, M)])
def test_gradient_of_a_mask(shape, backend, device):
    q, k, v = (torch.randn(BATCH, HEADS, n, 16, device=device) for n in (N, M, M))
    mask = torch.randn(shape, device=device, requires_grad=True)
    slope = torch.randn(BATCH, HEADS, N, 16, device=device)
    grads = []
    for attention, options in ((cut(MEASURED), {}), (relu_attention, {"stats_batch": MEASURED})):
        out, stats = attention(q, k, v, attn_mask=mask, return_stats=True, backend=backend, **options)
        loss = (out * slope).sum() + stats.mass.square().sum() + stats.entropy.sum()
        grads.append(torch.autograd.grad(loss, mask)[0])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_layouts(backend, device):
    """Heads inside rows, and a batch that is not the outermost dimension."""
    qkv = torch.randn(N, BATCH, 3, HEADS, 16, device=device)  # (N, B, 3, H, D)
    q, k, v = (x.permute(1, 2, 0, 3).requires_grad_() for x in qkv.unbind(2))
    found = []
    for tensors in ([q, k, v], [x.detach().contiguous().requires_grad_() for x in (q, k, v)]):
        out, stats = relu_attention(*tensors, return_stats=True, stats_batch=MEASURED, backend=backend)
        grads = torch.autograd.grad(out.square().sum() + stats.entropy.sum(), tensors)
        found.append((out, *stats, *grads))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_other_sequences_do_without_statistics(backend, device):
    """They cost what they do where none are asked for, so they are the same to the last bit."""
    case = case_of({"causal": True}, device)
    plain = Case(case.tensors, case.options, stats=False).run(relu_attention, torch.float32, backend)
    case.options["stats_batch"] = MEASURED
    found = case.run(relu_attention, torch.float32, backend)
    for name in ("out", "dk", "dv") if device.type == "cuda" else ("out", "dq", "dk", "dv"):
        assert torch.equal(found[name][MEASURED:], plain[name][MEASURED:])
    assert not torch.equal(found["dk"][:MEASURED], plain["dk"][:MEASURED])  # these feel theirs


def test_statistics_that_nobody_uses(backend, device):
    q, k, v = (torch.randn(BATCH, HEADS, N, 16, device=device, requires_grad=True) for _ in range(3))
    out, _ = relu_attention(q, k, v, return_stats=True, stats_batch=MEASURED, backend=backend)
    expected = relu_attention(q, k, v, backend=backend)
    grads = (torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, expected))
    for found, want in zip(*grads, strict=True):
        torch.testing.assert_close(found, want)


def test_autocast(backend, device):
    q, k, v = (torch.randn(BATCH, HEADS, N, 16, device=device, requires_grad=True) for _ in range(3))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out, stats = relu_attention(q, k, v, return_stats="mass_entropy", stats_batch=MEASURED, backend=backend)
    assert out.dtype == torch.bfloat16
    assert stats.mass.dtype == torch.float32
    assert [tuple(x.shape) for x in stats] == [(MEASURED, HEADS, N), (MEASURED, HEADS, N), (0,)]
    (stats.mass.sum() + stats.entropy.sum()).backward()
    assert (q.grad[:MEASURED] != 0).any(-1).all()
    assert (q.grad[MEASURED:] == 0).all()
