"""The loss of a batch of tokens."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

TokenLosses = Callable[..., tuple[Tensor, Tensor]]

IGNORED = -100  # label that is left out, as in PyTorch's own losses


def with_cost(loss: Tensor, cost: Tensor | None, labels: Tensor, items: Tensor | int | None) -> Tensor:
    """The loss plus the regularisation of its batch, weighted by the share it has in the ``items`` of an update."""
    if cost is None:
        return loss
    return loss + (cost if items is None else cost * (labels != IGNORED).sum() / items)


def token_losses(
    logits: Tensor, labels: Tensor, items: Tensor | int | None = None, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the labels ``(B, N)`` under ``logits (B, N, V)``, in float32: with label smoothing, and without.

    Labels of -100 are left out. Each is the mean over labels, or their sum divided by ``items`` where a batch is one of
    several that make an update. The one without smoothing is for monitoring, and is detached.
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
