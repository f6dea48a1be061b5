"""The loss of a batch of tokens."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

TokenLosses = Callable[..., tuple[Tensor, Tensor]]

IGNORED = -100  # a label that is none, as in PyTorch's own losses


def with_cost(loss: Tensor, cost: Tensor | None, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """A loss with the regularisation of its batch, which counts by its share of the ``items`` of an update."""
    if cost is None:
        return loss
    return loss + (cost if items is None else cost * (labels != IGNORED).sum() / items)


def token_losses(
    logits: Tensor, labels: Tensor, items: Tensor | int | None = None, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the labels ``(B, N)`` under ``logits (B, N, V)``, in float32: with label smoothing, and without.

    A label of -100 is left out. The mean over labels, or their sum divided by ``items``: a batch may be one of several
    that make an update. What is without smoothing is to be looked at, and has no gradient of its own.
    """
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels must have the shape of the logits' tokens, {tuple(logits.shape[:-1])}, got {tuple(labels.shape)}"
        )
    target = labels.flatten()
    log_p = F.log_softmax(logits.flatten(0, 1).float(), -1)  # (B * N, V)
    counts = target != IGNORED
    items = counts.sum() if items is None else items
    nll = F.nll_loss(log_p, target, ignore_index=IGNORED, reduction="sum") / items
    if not label_smoothing:
        return nll, nll.detach()
    even = -log_p.mean(-1).where(counts, 0.0).sum() / items
    return (1 - label_smoothing) * nll + label_smoothing * even, nll.detach()
