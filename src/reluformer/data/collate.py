"""Collation of examples of different lengths into tensors of one shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from reluformer.data.shapes import Shapes
from reluformer.data.tokenizer import BOS_ID, PAD_ID

IGNORED = -100  # label of padding; the models' own constant, which would bring transformers into every worker process


@dataclass(frozen=True)
class Collator:
    """Pads a batch to its longest example, rounded up to a multiple that suits the kernels.

    The target appears twice: as ``labels``, and shifted right by one behind ``<s>`` as ``decoder_input_ids``.

    Attributes:
        multiple: What lengths are rounded up to.
        shapes: Shapes that batches must have instead; None for any. Where examples are missing, sources are repeated,
            with no target: there is nothing to learn from these rows, but their attention is that of real text.
    """

    multiple: int = 1
    shapes: Shapes | None = None

    def __call__(self, examples: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        """Return tensors ``(B, N)``; the mask is True where the source is not padding."""
        sources, targets = ([example[name] for example in examples] for name in ("input_ids", "labels"))
        lengths = [self.padded(max(map(len, rows))) for rows in (sources, targets)]
        if self.shapes is not None:
            lengths = [self.shapes.length(max(map(len, (*sources, *targets))))] * 2
            missing = self.shapes.rows(lengths[0]) - len(examples)
            sources += [sources[i % len(examples)] for i in range(missing)]
            targets += [[] for _ in range(missing)]
        source, labels = _padded(sources, lengths[0], PAD_ID), _padded(targets, lengths[1], IGNORED)
        written = torch.full_like(labels, BOS_ID)
        written[:, 1:] = labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, PAD_ID)
        return {
            "input_ids": source,
            "attention_mask": source != PAD_ID,
            "decoder_input_ids": written,
            "labels": labels,
        }

    def padded(self, length: int) -> int:
        """Return the padded length of a batch whose longest example has that length."""
        return -(-length // self.multiple) * self.multiple


def _padded(rows: Sequence[Sequence[int]], length: int, value: int) -> Tensor:
    padded = np.full((len(rows), length), value)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    padded[np.arange(length) < lengths[:, None]] = np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum())
    return torch.from_numpy(padded)
