"""The sums of forget gates: exact over long sequences, aligned with the queries, and what they have forgotten."""

import math

import pytest
import torch

from reluformer import relu_attention
from reluformer.ops.forgetting import FAINTEST, accumulate, at_keys, at_queries, first_kept


@pytest.mark.parametrize("strength", [1e-4, 0.7])
def test_sums_keep_the_digits_of_differences(strength):
    """Over 16384 gates: float32 sums of strong ones are wrong in the third digit, and neighbours differ by less."""
    log_forget = -strength * torch.rand(1, 1, 16384)
    c = accumulate(log_forget)[0, 0].tolist()
    gates = log_forget[0, 0].double().tolist()
    for j, i in ((0, 16383), (9000, 9001), (16000, 16383), (16382, 16383)):
        assert c[i] - c[j] == pytest.approx(math.fsum(gates[j + 1 : i + 1]), rel=1e-9)


@pytest.mark.parametrize(("backend", "queries"), [("chunked", 20), ("triton", 3)])
@pytest.mark.parametrize("strength", [1e-4, 0.7])
def test_long_sequences_keep_them_in_every_back_end(strength, backend, queries, device):
    """The last queries over 16384 keys, in float32, against float64."""
    if backend == "triton":
        pytest.importorskip("triton")
    q, k, v = (torch.randn(1, 1, size, 16, device=device) for size in (queries, 16384, 16384))
    log_forget = -strength * torch.rand(1, 1, 16384, device=device)
    found = relu_attention(q, k, v, causal=True, log_forget=log_forget, alpha=0.0, backend=backend)
    wide = [x.double() for x in (q, k, v)]
    exact = relu_attention(*wide, causal=True, log_forget=log_forget.double(), alpha=0.0, backend="reference")
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5 * exact.abs().max().item())


@pytest.mark.parametrize(("n", "m"), [(4, 4), (2, 5), (5, 2), (3, 0), (0, 3)])
def test_queries_stand_at_the_last_keys(n, m):
    c = torch.arange(1.0, m + 1).view(1, 1, m)
    expected = [max(i + m - n + 1, 0) for i in range(n)]  # 0 for those before the first key
    assert at_queries(c, n).flatten().tolist() == expected
    x, y = torch.randn(1, 1, n), torch.randn(1, 1, m)
    torch.testing.assert_close((at_keys(x, m) * y).sum(), (x * at_queries(y, n)).sum())  # one is the other's adjoint


def test_first_kept_is_the_first_that_some_head_remembers():
    log_forget = -torch.rand(2, 3, 200, dtype=torch.float64)
    log_forget[:, 1] *= 5
    c = accumulate(log_forget)
    for block, kept in enumerate(first_kept(c, 150, 16)):
        position = block * 16 + 50
        faded = c[..., position, None] - c  # (B, H, M)
        remembered = (faded >= FAINTEST).any(0).any(0)
        assert kept == remembered.nonzero()[0].item()
