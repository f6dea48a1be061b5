import pytest
import torch

from reluformer import relu_attention
from reluformer.bench.contestants import contestants, flex_relu, obstacle


@pytest.mark.parametrize("causal", [False, True])
def test_all_relu_contestants_compute_the_same(causal: bool, device: torch.device) -> None:
    q, k, v = torch.randn(3, 2, 3, 130, 64, device=device)
    field = [c for c in contestants(device) if not c.softmax and not c.compiled]
    first, *others = ([x.float() for x in c.attend(q, k, v, causal)] for c in field)
    assert len(others) == 3
    for other in others:
        torch.testing.assert_close(other[0], first[0], rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_computes_the_same_uncompiled() -> None:
    q, k, v = torch.randn(3, 1, 2, 100, 16)
    expected = relu_attention(q, k, v)
    torch.testing.assert_close(flex_relu(q, k, v, None, torch.tensor(50.0).sqrt()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_flex_attention_computes_the_same(causal: bool) -> None:
    device = torch.device("cuda")
    inputs = [torch.randn(1, 2, 256, 64, device=device, requires_grad=True) for _ in range(3)]
    by_name = {c.name: c for c in contestants(device)}
    results = []
    for name in ("ReLU, FlexAttention", "ReLU, eager"):
        (out,) = by_name[name].attend(*inputs, causal)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)


def test_score_matrices_that_do_not_fit_are_not_tried() -> None:
    short, long = (torch.empty(1, 32, n, 64, device="meta", dtype=torch.bfloat16) for n in (128, 16384))
    by_name = {c.name: c for c in contestants(torch.device("cpu"))}
    assert obstacle(by_name["ReLU, eager"].score_matrices, short) is None
    assert "16.0 GiB" in str(obstacle(by_name["ReLU, eager"].score_matrices, long))
    assert obstacle(by_name["ReLU, this operator"].score_matrices, long) is None
