"""The kernels against the reference: on a GPU where there is one, else through Triton's interpreter."""

import pytest
import torch

from reluformer import relu_attention, relu_attention_varlen
from tests.ops.agreement import Case, assert_agrees, random_case

pytestmark = [pytest.mark.usefixtures("poisoned_memory")]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
pytest.importorskip("triton")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 63, 100, 257])
def test_odd_lengths(n, causal, dtype, device):
    assert_agrees(random_case(n=n, d=16, causal=causal, device=device), "triton", dtype)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_long_row(causal, device):
    assert_agrees(random_case(hq=1, n=2000, d=16, causal=causal, device=device), "triton", torch.bfloat16)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"n": 63, "m": 100, "causal": True}, id="fewer queries than keys"),
        pytest.param({"n": 100, "m": 63, "causal": True}, id="rows that see no key"),
        pytest.param({"n": 70, "m": 150, "window": 17, "causal": True}, id="causal window"),
        pytest.param({"window": (3, 20)}, id="lopsided window"),
        pytest.param({"hq": 4, "hk": 2, "causal": True}, id="grouped heads"),
        pytest.param({"hq": 4, "hk": 1}, id="one key head"),
        pytest.param({"bias": True, "causal": True}, id="bias"),
        pytest.param({"bias": True, "power": 2}, id="power 2"),
        pytest.param({"bias": True, "power": 4, "scale": 0.3}, id="power 4"),
        pytest.param({"bias": True, "power": 8, "scale": 0.3}, id="power 8"),
        pytest.param({"alpha": 0.0}, id="alpha 0"),
        pytest.param({"alpha": 1.0, "scale": 0.3}, id="alpha 1, own scale"),
        pytest.param({"gamma": False, "stats": False}, id="bare"),
        pytest.param({"d": 20}, id="head dim 20"),
        pytest.param({"d": 128}, id="head dim 128"),
        pytest.param({"d": 256, "n": 40}, id="head dim 256"),
        pytest.param({"n": 0}, id="no queries"),
        pytest.param({"m": 0}, id="no keys"),
        pytest.param({"b": 0}, id="no batch"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_options(options, dtype, device):
    options = {"d": 32, "n": 100} | options
    assert_agrees(random_case(device=device, **options), "triton", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks(dtype, device):
    def flips(*shape):
        return torch.rand(*shape, device=device) > 0.3

    padding = flips(2, 100)
    padding[0] = False  # a sequence of which nothing may be seen
    added = torch.randn(2, 80, 100, device=device)
    added[~flips(2, 80, 100)] = -torch.inf
    for options in (
        {"key_padding_mask": padding},  # zero keys instead of a mask
        {"key_padding_mask": padding, "causal": True, "window": 30},
        {"key_padding_mask": padding, "bias": True, "causal": True},  # a bias would lift them: the mask stays
        {"attn_mask": flips(80, 100)},
        {"attn_mask": flips(2, 2, 80, 100), "bias": True, "causal": True},
        {"attn_mask": flips(2, 1, 80, 100), "key_padding_mask": padding},
        {"attn_mask": added},
    ):
        assert_agrees(random_case(b=2, n=80, m=100, d=16, device=device, **options), "triton", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{"hk": 1}, {"causal": True}], ids=str)
def test_statistics_of_some_sequences(options, dtype, device):
    """Two launches, one with statistics and one without, into slices of one tensor."""
    assert_agrees(random_case(b=3, n=37, d=16, stats_batch=2, device=device, **options), "triton", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode(dtype, device):
    """A few queries against many keys: the keys are split, the parts added."""
    masks = {"key_padding_mask": torch.rand(2, 700, device=device) > 0.2}
    for options in (
        {"n": 1},
        {"n": 1, "hq": 8, "hk": 2},
        {"n": 3, "hq": 4, "hk": 1, "causal": True, "bias": True},
        {"n": 2, "causal": True, "window": 100, "power": 2},
        {"n": 1, "b": 2, **masks},
        {"n": 2, "b": 2, "attn_mask": torch.rand(2, 1, 2, 700, device=device) > 0.3, **masks},
    ):
        assert_agrees(random_case(m=700, d=32, device=device, **options), "triton", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 7, "power": 2}], ids=str)
def test_packed_sequences(options, dtype, device):
    def bounds(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    tensors = {
        "q": torch.randn(100, 4, 32, device=device),
        "k": torch.randn(130, 2, 32, device=device),
        "v": torch.randn(130, 2, 32, device=device),
        "gamma": torch.rand(4, device=device) + 0.5,
        "bias": torch.randn(4, device=device) * 0.3,
    }
    packing = {
        "cu_seqlens_q": bounds(0, 5, 5, 70, 100),  # a sequence without queries,
        "cu_seqlens_k": bounds(0, 8, 20, 20, 130),  # and one without keys
        "max_seqlen_q": 65,
        "max_seqlen_k": 110,
    }
    assert_agrees(Case(tensors, options | packing), "triton", dtype, relu_attention_varlen)


@pytest.mark.parametrize("options", [{"causal": True, "hk": 2}, {"bias": True}, {"window": 9}], ids=str)
def test_deterministic_backward(options, device):
    """The deterministic kernels agree with the reference, and with themselves to the bit."""
    case = random_case(hq=4, n=100, m=130, device=device, **options)
    torch.use_deterministic_algorithms(True)
    try:
        assert_agrees(case, "triton", torch.bfloat16)
        first, second = (case.run(relu_attention, torch.bfloat16, "triton") for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_dead_rows_have_finite_statistics_and_gradients(device):
    case = random_case(n=40, d=16, device=device)
    case.tensors["q"] = torch.ones_like(case.tensors["q"])
    case.tensors["k"] = -torch.ones_like(case.tensors["k"])  # every score is negative
    found = case.run(relu_attention, torch.float32, "triton")
    assert all(x.isfinite().all() for x in found.values())
    assert all((found[name] == 0).all() for name in ("out", "mass", "entropy", "active", "dq", "dk", "dv"))


@pytest.mark.parametrize("n", [1, 90])
def test_huge_float16_scores_do_not_overflow(n, device):
    """A score of 10^5 is beyond float16; the weight it becomes is not."""
    q, k = (torch.full((1, 1, size, 64), 111.0, device=device, dtype=torch.float16) for size in (n, 300))
    v = torch.randn(1, 1, 300, 64, device=device, dtype=torch.float16)
    out = relu_attention(q, k, v, gamma=1e5, alpha=1.0, backend="triton")
    exact = relu_attention(q.float(), k.float(), v.float(), gamma=1e5, alpha=1.0, backend="reference")
    assert out.isfinite().all()
    torch.testing.assert_close(out.float(), exact, rtol=2e-3, atol=2e-3)


def test_strange_strides(device):
    """Heads inside rows, slices of one projection, columns that are not contiguous: all give the same."""
    qkv = torch.randn(2, 50, 3, 4, 24, device=device)  # (B, N, 3, H, D), as one linear layer makes it
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    plain = relu_attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True, backend="triton")
    torch.testing.assert_close(relu_attention(q, k, v, causal=True, backend="triton"), plain)
    turned = [x.mT.contiguous().mT for x in (q, k, v)]
    torch.testing.assert_close(relu_attention(*turned, causal=True, backend="triton"), plain)
    shared = k[:1].expand(2, -1, -1, -1)
    torch.testing.assert_close(
        relu_attention(q, shared, shared, backend="triton"),
        relu_attention(q, shared, shared, backend="reference"),
        rtol=1e-4,
        atol=1e-5,
    )


def test_masks_and_boundaries_that_are_not_contiguous(device):
    q, k, v = (torch.randn(2, 2, 20, 16, device=device) for _ in range(3))
    bias = torch.tensor([0.1, -0.2], device=device)
    padding = (torch.rand(20, 2, device=device) > 0.3).T
    for queries in (q, q[:, :, :5]):
        found, exact = (
            relu_attention(queries, k, v, bias=bias, key_padding_mask=padding, backend=name)
            for name in ("triton", "reference")
        )
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    bounds = torch.tensor([[0, 0], [5, 7], [12, 9], [40, 40]], dtype=torch.int32, device=device)
    packed = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]  # (40, 2, 16)
    found, exact = (relu_attention_varlen(*packed, *bounds.T, 28, 31, backend=name) for name in ("triton", "reference"))
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 20], ids=["decoding", "training"])
def test_a_mask_that_reaches_beyond_int32(n, device):
    b, m, apart = 3, 256, 2**30  # bytes from the mask of one sequence to the next; what lies between is never touched
    memory = torch.empty(2 * apart + n * m, dtype=torch.bool, device=device)
    mask = memory.as_strided((b, 1, n, m), (apart, 0, m, 1))
    mask.copy_(torch.rand(b, 1, n, m) > 0.3)
    assert_agrees(random_case(b=b, n=n, m=m, d=16, device=device, attn_mask=mask), "triton")


@pytest.mark.parametrize("name", ["gamma", "bias"])
def test_one_value_for_all_heads(name, device):
    q, k, v = (torch.randn(1, 4, 30, 16, device=device) for _ in range(3))
    around = torch.tensor([2.0, 3.0, 4.0, 5.0], device=device)  # what a kernel would read that knows no strides
    out = relu_attention(q, k, v, **{name: around[:1].expand(4)}, backend="triton")
    torch.testing.assert_close(out, relu_attention(q, k, v, **{name: around[:1].repeat(4)}, backend="reference"))
