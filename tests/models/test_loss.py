"""The loss of tokens against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F

from reluformer.models.loss import IGNORED, token_losses, with_cost


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("items", [None, 7, torch.tensor(7)], ids=str)
def test_with_and_without_smoothing(smoothing: float, items: torch.Tensor | int | None) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (2, 5))
    labels[0, 3:] = IGNORED
    loss, nll = token_losses(logits, labels, items, smoothing)
    reduction = "mean" if items is None else "sum"
    flat, target = logits.flatten(0, 1).float(), labels.flatten()
    expected, plain = (
        F.cross_entropy(flat, target, label_smoothing=x, reduction=reduction) / (items or 1) for x in (smoothing, 0.0)
    )
    torch.testing.assert_close((loss, nll), (expected, plain.detach()))
    torch.testing.assert_close(torch.autograd.grad(loss, logits), torch.autograd.grad(expected, logits))
    assert not nll.requires_grad


@pytest.mark.parametrize("items", [7, torch.tensor(7)], ids=str)
def test_a_batch_brings_its_share_of_the_regularisation(items: torch.Tensor | int) -> None:
    loss, cost, labels = torch.tensor(2.0), torch.tensor(0.7), torch.tensor([[1, 2, IGNORED], [3, IGNORED, IGNORED]])
    assert with_cost(loss, None, labels, items) is loss
    torch.testing.assert_close(with_cost(loss, cost, labels, None), loss + cost)
    torch.testing.assert_close(with_cost(loss, cost, labels, items), loss + 3 / 7 * cost)
