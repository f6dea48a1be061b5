"""Row statistics: known values, dead rows, and sums that may be taken part by part."""

import math

import torch

from reluformer.ops.statistics import TINY, entropy_from_sums, row_sums


def entropy(r: torch.Tensor) -> torch.Tensor:
    total, r_log_r, _ = row_sums(r)
    return entropy_from_sums(total, r_log_r)


def test_known_entropies():
    rows = torch.tensor([[1.0, 1, 1, 1], [5, 5, 0, 0], [0, 3, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(entropy(rows), torch.tensor([math.log(4), math.log(2), 0.0], dtype=torch.float64))


def test_entropy_is_that_of_the_normalised_row_whatever_its_scale():
    r = torch.rand(5, 9, dtype=torch.float64)
    expected = torch.distributions.Categorical(probs=r).entropy()
    for scale in (1.0, 1e-6, 1e6):
        torch.testing.assert_close(entropy(scale * r), expected)


def test_sums_of_parts_add_up():
    r = torch.randn(4, 10, dtype=torch.float64).relu()
    for whole, left, right in zip(row_sums(r), row_sums(r[:, :3]), row_sums(r[:, 3:]), strict=True):
        torch.testing.assert_close(whole, left + right)


def test_active_counts_positive_weights():
    assert row_sums(torch.tensor([[0.0, 2.0, 0.5], [0.0, 0.0, 0.0]]))[2].tolist() == [2.0, 0.0]


def test_dead_rows_have_no_entropy_and_no_gradient():
    r = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    value = entropy(r)
    value.sum().backward()
    assert value.tolist() == [0.0, 0.0]
    assert r.grad.isfinite().all()


def test_zeros_beside_live_weights_have_finite_gradients():
    r = torch.tensor([[0.0, 1.0, 2.0, TINY]], dtype=torch.float64, requires_grad=True)
    entropy(r).sum().backward()
    assert r.grad.isfinite().all()


def test_gradcheck():
    r = (torch.rand(3, 5, dtype=torch.float64) + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(entropy, r)
    assert torch.autograd.gradgradcheck(entropy, r)
