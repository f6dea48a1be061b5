"""The loss of every target token, and how it changes with the token's position."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.data.batching import CostBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.models.loss import IGNORED

FIRST = 32  # tokens in the first bucket; each further bucket ends at twice the end of the one before


@torch.no_grad()
def target_losses(model: Any, examples: Any, cost: int) -> list[Tensor]:
    """Return the negative log-likelihood in nats of every target token, teacher forced: ``(tokens,)`` for each example.

    Args:
        model: Model, in eval mode.
        examples: Sequence of examples with ``input_ids`` and ``labels``.
        cost: Cost budget of a batch.
    """
    rows = [examples[i] for i in range(len(examples))]
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers in CostBatches([max(len(x["input_ids"]), len(x["labels"])) for x in rows], cost, shuffle=False):
        batch = {name: x.to(model.device) for name, x in Collator()([rows[i] for i in numbers]).items()}
        labels = batch.pop("labels")  # (B, N)
        logits = model(**batch, use_cache=False).logits.float()  # (B, N, V)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
        for i, row, kept in zip(numbers, losses.view_as(labels).double().cpu(), labels.cpu() != IGNORED, strict=True):
            found[i] = row[kept]
    return found


def mean_loss(losses: Sequence[Tensor]) -> float:
    """Return the mean loss over all tokens."""
    return float(torch.cat(list(losses)).mean())


def document_starts(examples: PackedDataset) -> list[int]:
    """Return, for each example, how many target tokens of its document precede it."""
    origins = [examples.origin(i) for i in range(len(examples))]
    starts: list[int] = []
    for i, (document, sentence) in enumerate(origins):
        before, earlier = origins[i - 1] if i else ("", sentence)
        continued = before == document and earlier < sentence
        starts.append(starts[-1] + int(examples.target_lengths[i - 1]) if continued else 0)
    return starts


def losses_by_position(losses: Sequence[Tensor], starts: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return mean loss and number of tokens in buckets of positions, keyed by the last position, counted from 1.

    Args:
        losses: Losses of every example, from :func:`target_losses`.
        starts: Position of the first token of each example, counted from 0.
    """
    positions = torch.cat([start + torch.arange(1, len(x) + 1) for x, start in zip(losses, starts, strict=True)])
    values = torch.cat(list(losses))
    means: dict[str, float] = {}
    tokens: dict[str, float] = {}
    begin, end = 0, FIRST
    while begin < int(positions.max()):
        chosen = (positions > begin) & (positions <= end)
        if chosen.any():
            means[str(end)], tokens[str(end)] = float(values[chosen].mean()), int(chosen.sum())
        begin, end = end, 2 * end
    return {"by_position": means, "tokens_by_position": tokens}
