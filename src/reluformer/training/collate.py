"""Collation of examples of different lengths into tensors of one shape."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.data.tokenizer import BOS_ID, PAD_ID
from reluformer.models.loss import IGNORED


@dataclass(frozen=True)
class Collator:
    """Pads a batch to its longest example, rounded up to a multiple that suits the kernels.

    The target appears twice: as ``labels``, and shifted right by one behind ``<s>`` as ``decoder_input_ids``.
    """

    multiple: int = 1

    def __call__(self, examples: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        """Return tensors ``(B, N)``; the mask is True where the source is not padding."""
        source = self._padded([example["input_ids"] for example in examples], PAD_ID)
        labels = self._padded([example["labels"] for example in examples], IGNORED)
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

    def _padded(self, rows: Sequence[Sequence[int]], value: int) -> Tensor:
        padded = torch.full((len(rows), self.padded(max(map(len, rows)))), value)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = torch.tensor(row)
        return padded
