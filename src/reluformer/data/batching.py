"""Batches of similar length and cost, in an order determined by a seed and an epoch.

Padding is wasted work, so the lengths in a batch should be close; attention is quadratic, so a batch of long documents
must hold fewer tokens than one of sentences.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Sampler

from reluformer.data.shapes import Shapes, cost

POOL = 100  # batches whose examples are sorted together: with more, epochs look alike; with fewer, lengths mix


class CostBatches(Sampler[list[int]]):
    """A batch sampler: lists of indices whose padded cost stays within a budget.

    ``B`` sequences padded to ``n`` tokens cost ``B * n * (1 + n / quadratic)``: where ``n`` reaches ``quadratic``,
    attention costs as much as everything else.

    Args:
        lengths: Length of every example, that of the longer of source and target.
        budget: Maximum cost of a batch, in tokens of short sequences. An example that costs more is a batch by itself.
        quadratic: Length at which attention is half of the cost.
        seed: Seed that, together with the epoch, determines the order.
        shuffle: False for batches in order of length, longest first: for evaluation, and to run out of memory early.
        fixed: Whether batches have one of few shapes, those of :class:`~reluformer.data.shapes.Shapes`: all but the
            last of a pool then have as many sequences as fit into their shape.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        budget: int,
        quadratic: int = 2048,
        seed: int = 0,
        shuffle: bool = True,
        fixed: bool = False,
    ) -> None:
        for name, value in (("budget", budget), ("quadratic", quadratic)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        self.lengths = torch.as_tensor(lengths, dtype=torch.long)
        self.budget, self.quadratic, self.seed, self.shuffle = budget, quadratic, seed, shuffle
        self.shapes = Shapes(budget, quadratic) if fixed else None
        self.epoch = 0
        self._made: tuple[int, list[list[int]]] | None = None  # an epoch and its batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order."""
        self.epoch = epoch

    def cost(self, count: int, length: int) -> float:
        """Return the cost of ``count`` sequences padded to this length."""
        return cost(count, length, self.quadratic)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches())

    def __len__(self) -> int:
        return len(self._batches())

    def _batches(self) -> list[list[int]]:
        if self._made is None or self._made[0] != self.epoch:
            self._made = (self.epoch, self._make())
        return self._made[1]

    def _make(self) -> list[list[int]]:
        if not self.shuffle:
            return self._cut(self.lengths.argsort(descending=True, stable=True))
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=random)
        batches: list[list[int]] = []
        for pool in self._pools(order):
            batches += self._cut(pool[self.lengths[pool].argsort(stable=True)])
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]

    def _pools(self, order: Tensor) -> Sequence[Tensor]:
        """Split examples into runs that fill about ``POOL`` batches each."""
        lengths = self.lengths[order].double()
        filled = (lengths * (1 + lengths / self.quadratic)).cumsum(0)
        return torch.split(order, (filled / (POOL * self.budget)).long().bincount().tolist())

    def _cut(self, ordered: Tensor) -> list[list[int]]:
        """Cut ordered examples into batches, each as large as the budget allows."""
        if self.shapes is not None:
            return list(self._fill(ordered[self.lengths[ordered].argsort(descending=True, stable=True)], self.shapes))
        batches: list[list[int]] = []
        batch: list[int] = []
        longest = 0
        for i, length in zip(ordered.tolist(), self.lengths[ordered].tolist(), strict=True):
            padded = max(longest, length)
            if batch and self.cost(len(batch) + 1, padded) > self.budget:
                batches.append(batch)
                batch, padded = [], length
            batch.append(i)
            longest = padded
        # The remainder takes examples from the batch before: a batch of a few is a noisy update and a shape of its own.
        while batches and len(batches[-1]) > len(batch) + 1:
            longest = max(longest, int(self.lengths[batches[-1][-1]]))
            if self.cost(len(batch) + 1, longest) > self.budget:
                break
            batch.insert(0, batches[-1].pop())
        return [*batches, batch] if batch else batches

    def _fill(self, ordered: Tensor, shapes: Shapes) -> Iterator[list[int]]:
        """Fill batches with examples, longest first: the longest that is left decides on the shape of the next."""
        start = 0
        while start < len(ordered):
            rows = shapes.rows(shapes.length(int(self.lengths[ordered[start]])))
            yield ordered[start : start + rows].tolist()
            start += rows


class StagedBatches(Sampler[list[int]]):
    """The batches of a whole run, stage after stage, as one sequence of known length.

    Each stage goes over its own examples, epoch after epoch, for as many batches as it asks for. The sequence depends
    on the seed alone, so an interrupted run resumes by skipping the batches that it has seen.

    Args:
        stages: For every stage, the lengths of its examples and its number of batches. Indices continue from stage to
            stage, as in a concatenation of the data sets.
        budget: Maximum cost of a batch, as in :class:`CostBatches`.
        quadratic: Length at which attention is half of the cost.
        seed: Seed that determines the order.
        start: Number of batches to skip, those that an interrupted run has seen.
        fixed: Whether batches have one of few shapes, as in :class:`CostBatches`.
    """

    def __init__(
        self,
        stages: Sequence[tuple[Sequence[int], int]],
        budget: int,
        quadratic: int = 2048,
        seed: int = 0,
        start: int = 0,
        fixed: bool = False,
    ) -> None:
        for number, (lengths, batches) in enumerate(stages):
            if batches and not len(lengths):
                raise ValueError(f"stage {number} must have examples for its {batches} batches, got none")
        self.stages, self.budget, self.quadratic, self.seed, self.start = stages, budget, quadratic, seed, start
        self.fixed = fixed

    def __len__(self) -> int:
        """Return the number of batches of the whole run, whatever the start."""
        return sum(batches for _, batches in self.stages)

    def __iter__(self) -> Iterator[list[int]]:
        before = 0  # examples of earlier stages
        left_out = self.start
        for number, (lengths, batches) in enumerate(self.stages):
            if left_out < batches:
                source = CostBatches(lengths, self.budget, self.quadratic, self.seed + 7919 * number, fixed=self.fixed)
                for batch in itertools.islice(_epochs(source), left_out, batches):
                    yield [before + i for i in batch]
            left_out = max(left_out - batches, 0)
            before += len(lengths)


def _epochs(batches: CostBatches) -> Iterator[list[int]]:
    for epoch in itertools.count():
        batches.set_epoch(epoch)
        yield from batches
