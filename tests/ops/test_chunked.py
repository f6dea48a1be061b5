"""The chunked back end against the specification: outputs, statistics and all gradients, in linear memory."""

import subprocess
import sys

import pytest
import torch

from reluformer import relu_attention, relu_attention_varlen
from reluformer.ops import chunked
from tests.ops.agreement import Case, assert_agrees, random_case

F64 = torch.float64
LENGTHS = [1, 63, 100, 257]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]

pytestmark = pytest.mark.usefixtures("poisoned_memory")


@pytest.fixture(params=[False, True], ids=["output", "statistics"])
def stats(request):
    return request.param


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a short sequence has inner blocks, edges and a rest."""
    for name, size in (("BLOCK", 16), ("HEADS_PER_THREAD", 1)):
        monkeypatch.setattr(chunked, name, size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n, causal, dtype, stats, device):
    assert_agrees(random_case(n=n, causal=causal, stats=stats, device=device), "chunked", dtype)


@pytest.mark.parametrize("options", [{"causal": True, "bias": True}, {"window": 300}], ids=str)
def test_a_long_sequence(options, stats, device):
    assert_agrees(random_case(n=2000, d=64, stats=stats, device=device, **options), "chunked")


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 20}, {"window": (5, 40)}], ids=str)
@pytest.mark.parametrize(("n", "m"), [(100, 63), (63, 100), (1, 257), (257, 1)])
def test_more_queries_or_more_keys(n, m, options, stats, device):
    """With more queries than keys, causal leaves the first queries without any key."""
    assert_agrees(random_case(n=n, m=m, stats=stats, device=device, **options), "chunked")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("window", [None, 1, 7, 30, (0, 50), (50, -1), (-1, 3)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_bands_that_cut_blocks(causal, window, stats, device):
    assert_agrees(random_case(n=100, m=119, causal=causal, window=window, stats=stats, device=device), "chunked")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("hq", "hk"), [(6, 6), (6, 2), (6, 1), (40, 2)])
@pytest.mark.parametrize("b", [1, 3])
def test_grouped_heads(b, hq, hk, stats, device):
    """Forty heads are more than a block has rows."""
    assert_agrees(random_case(b, hq, hk, n=50, bias=True, causal=True, stats=stats, device=device), "chunked")


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("power", [1, 2, 4, 8])
def test_power_and_alpha(power, alpha, stats, device):
    case = random_case(b=2, power=power, alpha=alpha, bias=True, causal=True, scale=0.3, stats=stats, device=device)
    assert_agrees(case, "chunked")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("shape", [(2, 4, 50, 70), (1, 4, 50, 70), (2, 1, 50, 70), (50, 70), (4, 1, 70), (2, 1, 1, 70)])
@pytest.mark.parametrize("kind", ["boolean", "float", "float with hidden keys"])
def test_masks(shape, kind, stats, device):
    seen = torch.rand(shape, device=device) > 0.3
    mask = seen if kind == "boolean" else torch.randn(shape, device=device)
    if kind == "float with hidden keys":
        mask = mask.masked_fill(~seen, -torch.inf)
    key_mask = torch.rand(2, 70, device=device) > 0.2
    for more in ({}, {"causal": True, "key_padding_mask": key_mask}):
        case = random_case(b=2, hq=4, hk=2, n=50, m=70, attn_mask=mask, stats=stats, device=device, **more)
        assert_agrees(case, "chunked")


def test_key_padding(stats, device):
    key_mask = torch.arange(100, device=device) < torch.tensor([[100], [37], [0]], device=device)  # the last sees none
    assert_agrees(random_case(b=3, key_padding_mask=key_mask, stats=stats, device=device), "chunked")


@pytest.mark.parametrize("shape", [(2, 2, 50, 70), (1, 2, 50, 70), (2, 1, 50, 70), (50, 70), (1, 70), (2, 1, 1, 1)])
@pytest.mark.usefixtures("small_blocks")
def test_gradient_of_a_float_mask(shape, device):
    q, k, v = (torch.randn(2, 2, n, 16, dtype=F64, device=device) for n in (50, 70, 70))
    weight = torch.randn(2, 2, 50, 16, dtype=F64, device=device)
    grads = {}
    for backend in ("reference", "chunked"):
        mask = torch.linspace(-1, 1, steps=torch.Size(shape).numel(), dtype=F64, device=device).view(shape)
        mask.requires_grad_()
        out, stats = relu_attention(q, k, v, attn_mask=mask, causal=True, return_stats=True, backend=backend)
        ((out * weight).sum() + stats.mass.sum() + stats.entropy.sum()).backward()
        grads[backend] = mask.grad
    torch.testing.assert_close(grads["chunked"], grads["reference"])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 9, "power": 2}], ids=str)
def test_packed_sequences_are_sequences_alone(options, device):
    lengths_q, lengths_k = [17, 1, 0, 50, 3], [17, 30, 4, 33, 0]
    cu_q, cu_k = (torch.tensor([0, *x], device=device).cumsum(0, dtype=torch.int32) for x in (lengths_q, lengths_k))
    gamma, bias = torch.rand(4, dtype=F64, device=device) + 0.5, torch.randn(4, dtype=F64, device=device)
    q, k, v = (
        torch.randn(sum(x), h, 16, dtype=F64, device=device)
        for x, h in ((lengths_q, 4), (lengths_k, 2), (lengths_k, 2))
    )
    leaves = [x.requires_grad_() for x in (q, k, v, gamma, bias)]
    packed, stats = relu_attention_varlen(
        q, k, v, cu_q, cu_k, 50, 33, gamma=gamma, bias=bias, return_stats=True, backend="chunked", **options
    )
    found = [packed, *stats]
    alone = []
    for q_i, k_i, v_i in zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True):
        heads_first = (x.transpose(0, 1)[None] for x in (q_i, k_i, v_i))
        out, stats = relu_attention(
            *heads_first, gamma=gamma, bias=bias, return_stats=True, backend="reference", **options
        )
        alone.append([x[0].transpose(0, 1) for x in (out, *stats)])
    expected = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
    loss_of = lambda out, mass, entropy, _: (out * q.detach().cos()).sum() + (mass * mass).sum() + entropy.sum()  # noqa: E731
    grads, expected_grads = (torch.autograd.grad(loss_of(*x), leaves) for x in (found, expected))
    for x, y in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(x, y)


FORGETTING = [
    {"n": 1},
    {"n": 100},
    {"n": 63, "m": 100, "bias": True},
    {"n": 100, "m": 63},
    {"n": 50, "hq": 6, "hk": 2, "power": 2},
    {"n": 60, "window": 30, "alpha": 1.0},
    {"n": 0},
    {"m": 0},
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("strength", [0.01, 1.0])
@pytest.mark.parametrize("options", FORGETTING, ids=str)
def test_forget_gates(options, strength, stats, device):
    options = {"n": 100, "hq": 2} | options
    log_forget = -strength * torch.rand(2, options["hq"], options.get("m", options["n"]), device=device)
    case = random_case(b=2, causal=True, log_forget=log_forget, stats=stats, device=device, **options)
    for dtype in (torch.float32, torch.bfloat16):
        assert_agrees(case, "chunked", dtype)


@pytest.mark.usefixtures("small_blocks")
def test_forget_gates_with_masks(stats, device):
    log_forget = -torch.rand(2, 4, 70, device=device)
    masks = {
        "key_padding_mask": torch.rand(2, 70, device=device) > 0.3,
        "attn_mask": torch.randn(2, 1, 50, 70, device=device),
    }
    for name, mask in masks.items():
        case = random_case(b=2, hq=4, hk=2, n=50, m=70, causal=True, log_forget=log_forget, stats=stats, device=device)
        case.tensors[name] = mask
        assert_agrees(case, "chunked")


@pytest.mark.usefixtures("small_blocks")
def test_forget_gates_by_finite_differences(device):
    q, k, v = (torch.randn(1, 2, x, 3, dtype=F64, device=device) for x in (18, 30, 30))
    log_forget = -torch.rand(1, 2, 30, dtype=F64, device=device)

    def function(q, k, v, log_forget):
        out, stats = relu_attention(q, k, v, causal=True, log_forget=log_forget, return_stats=True, backend="chunked")
        return out, stats.mass, stats.entropy

    assert torch.autograd.gradcheck(function, [x.requires_grad_() for x in (q, k, v, log_forget)], fast_mode=True)


@pytest.mark.usefixtures("small_blocks")
def test_what_is_forgotten_is_not_computed(monkeypatch, device):
    """With gates of e^-4 a query remembers five keys: blocks away from the diagonal are never made."""
    visited = []
    scores = chunked._Heads.scores
    monkeypatch.setattr(chunked._Heads, "scores", lambda *args: visited.append(args[2:]) or scores(*args))
    q, k, v = (torch.randn(1, 1, 160, 16, device=device) for _ in range(3))
    for strength, blocks in ((0.0, 10 * 11 // 2), (4.0, 10 + 9)):  # all up to the diagonal; it and one to its left
        visited.clear()
        log_forget = torch.full((1, 1, 160), -strength, device=device)
        relu_attention(q, k, v, causal=True, log_forget=log_forget, backend="chunked")
        assert len(visited) == blocks


def test_very_strong_forgetting(stats, device):
    """Gates of e^-20: nothing overflows, and what is left is the newest key."""
    log_forget = torch.full((1, 2, 300), -20.0, device=device)
    case = random_case(n=300, causal=True, log_forget=log_forget, alpha=0.0, stats=stats, device=device)
    found = case.run(relu_attention, torch.float32, "chunked")
    assert all(x.isfinite().all() for x in found.values())
    alone = Case(case.tensors | {"log_forget": torch.zeros_like(log_forget)}, case.options | {"window": 1}, stats)
    torch.testing.assert_close(found["out"], alone.run(relu_attention, torch.float32, "chunked")["out"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_scores_negative(dtype, stats, device):
    """Dead rows: zero outputs, zero statistics, zero gradients, nothing that is not a number."""
    q, k = torch.rand(1, 2, 100, 32, device=device), -torch.rand(1, 2, 100, 32, device=device)
    case = random_case(stats=stats, causal=True, device=device)
    case.tensors |= {"q": q, "k": k}
    assert_agrees(case, "chunked", dtype)
    found = case.run(relu_attention, dtype, "chunked")
    assert all((x == 0).all() for x in found.values())


def test_huge_half_precision_scores(stats, device):
    """Scores beyond the largest float16 are held in float32; only the result must fit."""
    q, k, v = (torch.randn(1, 2, 100, 64, device=device) for _ in range(3))
    case = Case({"q": 300 * q, "k": 300 * k, "v": v}, {"gamma": 1e4}, stats)
    found = case.run(relu_attention, torch.float16, "chunked")
    assert (300 * q @ (300 * k).mT / 8).max() > torch.finfo(torch.float16).max
    truth = Case({n: x.half() for n, x in case.tensors.items()}, case.options, stats).run(
        relu_attention, torch.float32, "reference"
    )
    for name in found.keys() - {"active"}:
        assert found[name].isfinite().all()
        torch.testing.assert_close(
            found[name].float(), truth[name], rtol=2e-3, atol=2e-3 * truth[name].abs().max().item()
        )


def layouts():
    """The same kind of tensors (2, 4, 100, 32) as users hold them."""
    yield "heads inside", [torch.randn(2, 100, 4, 32).transpose(1, 2) for _ in range(3)]
    yield "sliced qkv", list(torch.randn(2, 100, 4, 96).transpose(1, 2).split(32, dim=-1))
    yield "sliced projection", list(torch.randn(2, 100, 3, 4, 32).permute(2, 0, 3, 1, 4))
    yield (
        "expanded keys",
        [torch.randn(2, 4, 100, 32), *(torch.randn(2, 1, 100, 32).expand(2, 4, -1, -1) for _ in "kv")],
    )
    yield "transposed", [torch.randn(2, 4, 32, 100).mT for _ in range(3)]
    yield "every second", [torch.randn(2, 4, 200, 64)[:, :, ::2, ::2] for _ in range(3)]


@pytest.mark.parametrize(("name", "tensors"), list(layouts()), ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_layouts(name, tensors, dtype, stats, device):
    q, k, v = (x.to(device) for x in tensors)
    assert not all(x.is_contiguous() for x in (q, k, v))
    assert_agrees(Case({"q": q, "k": k, "v": v}, {"causal": True}, stats), "chunked", dtype)


@pytest.mark.parametrize(("b", "n", "m"), [(1, 5, 0), (1, 0, 5), (0, 5, 5), (1, 0, 0)])
def test_nothing_to_attend(b, n, m, device):
    q, k, v = (torch.randn(b, 2, x, 16, device=device, requires_grad=True) for x in (n, m, m))
    gamma, bias = (torch.ones(2, device=device, requires_grad=True) for _ in range(2))
    out, stats = relu_attention(q, k, v, gamma=gamma, bias=bias, return_stats=True, backend="chunked")
    assert out.shape == q.shape
    assert all((x == 0).all() for x in (out, *stats))
    for grad in torch.autograd.grad(out.sum() + stats.mass.sum() + stats.entropy.sum(), (q, k, v, gamma, bias)):
        assert (grad == 0).all()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("options", [{}, {"causal": True, "power": 2}, {"window": 12, "alpha": 1.0}], ids=str)
def test_finite_differences(options, device):
    b, hq, hk, n, m, d = 1, 4, 2, 18, 30, 3  # two blocks of rows and of keys
    q, k, v = (torch.randn(b, h, x, d, dtype=F64, device=device) for h, x in ((hq, n), (hk, m), (hk, m)))
    gamma, bias = torch.rand(hq, dtype=F64, device=device) + 0.5, torch.randn(hq, dtype=F64, device=device)
    mask = torch.randn(1, 1, n, m, dtype=F64, device=device)

    def function(q, k, v, gamma, bias, mask):
        out, stats = relu_attention(
            q, k, v, gamma=gamma, bias=bias, attn_mask=mask, return_stats=True, backend="chunked", **options
        )
        return out, stats.mass, stats.entropy

    leaves = [x.requires_grad_() for x in (q, k, v, gamma, bias, mask)]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


def test_same_bits_every_time(device):
    case = random_case(b=2, n=600, bias=True, device=device)
    first, second = (case.run(relu_attention, torch.float32, "chunked") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_training_after_inference(device):
    """Memory that is kept between calls may come from a call in inference mode."""
    q = torch.randn(1, 2, 700, 16, device=device)
    with torch.inference_mode():
        relu_attention(q, q, q, backend="chunked")
    q.requires_grad_()
    relu_attention(q, q, q, backend="chunked").sum().backward()
    assert q.grad.isfinite().all()


MEASURE = """
import resource, sys, torch
from reluformer import relu_attention

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # MiB

def step(n):
    q, k, v, g = torch.randn(4, 1, 8, n, 64).unbind()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    before = peak()
    out = relu_attention(q, k, v, causal=True, backend="chunked")
    forward = peak()
    grads = torch.autograd.grad(out, leaves, g)
    size = q.numel() * 4 / 2**20
    return forward - before - size, peak() - before - 4 * size

step(256)  # libraries load their kernels and start their threads
print(*step(8192))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of resident memory as Linux counts it")
def test_memory_is_linear():
    """Length 8192, 8 heads of 64: less than 64 MiB beyond inputs and outputs, where the scores would take 2 GiB."""
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    forward, both = (float(x) for x in result.stdout.split())
    assert forward < 64
    assert both < 64
