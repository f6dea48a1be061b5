"""The loss of a batch of tokens."""

import torch.nn.functional as F
from torch import Tensor


def token_loss(
    logits: Tensor, labels: Tensor, items: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of the labels ``(B, N)`` under ``logits (B, N, V)``, in float32; a label of -100 is left out.

    The mean over labels, or their sum divided by ``items``: a batch may be one of several that make an update.
    """
    flat, target = logits.flatten(0, 1).float(), labels.flatten()
    if items is None:
        return F.cross_entropy(flat, target, label_smoothing=label_smoothing)
    return F.cross_entropy(flat, target, label_smoothing=label_smoothing, reduction="sum") / items
