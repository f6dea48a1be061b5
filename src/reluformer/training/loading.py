"""Batches from a data set, prepared by worker processes beside the one that trains."""

import signal
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from reluformer.data.dataset import PackedDataset

AHEAD = 4  # batches that every worker prepares in advance


def longer_sides(examples: PackedDataset) -> Any:
    """Return the length of every example: that of its longer side."""
    return np.maximum(examples.source_lengths, examples.target_lengths)


def batches_of(examples: Any, sampler: Sampler[list[int]], collator: Any, workers: int, pin: bool) -> DataLoader[Any]:
    """Return a loader that draws nothing from PyTorch's global random generator, which belongs to the model."""
    return DataLoader(
        examples,
        batch_sampler=sampler,
        collate_fn=collator,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=pin,
        worker_init_fn=_leave_interrupts,
        generator=torch.Generator(),
    )


def _leave_interrupts(_: int) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the one that trains decides when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
