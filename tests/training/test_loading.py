import os
import signal
from pathlib import Path
from typing import Any

import torch

from reluformer.data.batching import CostBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.training.loading import batches_of, longer_sides


def test_workers_make_the_same_batches_and_draw_nothing(data: Path) -> None:
    examples = PackedDataset(data, "train", 0)
    batches = CostBatches(longer_sides(examples), 300)
    before = torch.get_rng_state()
    alone, helped = (list(batches_of(examples, batches, Collator(), workers, False)) for workers in (0, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(alone) == len(batches)
    for one, other in zip(alone, helped, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


class Interrupting:
    """A collator whose process is sent what Ctrl-C sends to all of a terminal."""

    def __call__(self, examples: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return len(examples)


def test_workers_leave_interrupts_to_the_one_that_trains(data: Path) -> None:
    examples = PackedDataset(data, "train", 0)
    batches = CostBatches(longer_sides(examples), 3000)
    assert sum(batches_of(examples, batches, Interrupting(), 1, False)) == len(examples)
