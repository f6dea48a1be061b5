"""Batches from a data set, prepared by worker processes beside the one that trains."""

import multiprocessing
import signal
from multiprocessing import forkserver
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from reluformer.data.dataset import PackedDataset
from reluformer.data.workers import deaf

AHEAD = 4  # batches that every worker prepares in advance
# Forks of the process that trains would inherit locks that its many threads may hold, and wait for them for ever.
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
PRELOADED = "reluformer.data.collate"  # what takes time to import: workers then start at once


def longer_sides(examples: PackedDataset) -> Any:
    """Return the length of every example: that of its longer side."""
    return np.maximum(examples.source_lengths, examples.target_lengths)


def batches_of(examples: Any, sampler: Sampler[list[int]], collator: Any, workers: int, pin: bool) -> DataLoader[Any]:
    """Return a loader that draws nothing from PyTorch's global random generator, which belongs to the model."""
    if workers and METHOD == "forkserver":
        multiprocessing.set_forkserver_preload([PRELOADED])
        with deaf():  # which the workers inherit
            forkserver.ensure_running()
    return DataLoader(
        examples,
        batch_sampler=sampler,
        collate_fn=collator,
        num_workers=workers,
        multiprocessing_context=METHOD if workers else None,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=pin,
        worker_init_fn=_leave_interrupts,
        generator=torch.Generator(),
    )


def _leave_interrupts(_: int) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the one that trains decides when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
