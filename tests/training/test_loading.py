import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
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


class Looking:
    """A collator that tells which of these modules its process has imported."""

    def __call__(self, examples: Any) -> set[str]:
        return {"of_the_parent", "transformers", "torch"} & sys.modules.keys()


def test_workers_inherit_nothing_and_import_little(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "of_the_parent", sys)
    monkeypatch.setitem(sys.modules, "transformers", sys)
    examples = PackedDataset(data, "train", 0)
    batches = CostBatches(longer_sides(examples), 3000)
    assert [seen == {"torch"} for seen in batches_of(examples, batches, Looking(), 1, False)] == [True] * len(batches)


class Interrupting:
    """A collator whose process is sent what Ctrl-C sends to all of a terminal."""

    def __call__(self, examples: Any) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return len(examples)


def test_workers_leave_interrupts_to_the_one_that_trains(data: Path) -> None:
    examples = PackedDataset(data, "train", 0)
    batches = CostBatches(longer_sides(examples), 3000)
    assert sum(batches_of(examples, batches, Interrupting(), 1, False)) == len(examples)
