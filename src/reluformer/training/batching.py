"""Batches of similar lengths and like cost, in an order that a seed and an epoch decide.

Padding is wasted, so lengths in a batch should be close; attention is quadratic, so a batch of long documents must hold
fewer tokens than one of sentences.
"""

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

POOL = 100  # batches that are sorted by length together: more, and epochs look alike; fewer, and lengths are mixed


class CostBatches(Sampler[list[int]]):
    """A batch sampler: lists of indices whose padded cost stays within a budget.

    ``B`` sequences padded to ``n`` tokens cost ``B * n * (1 + n / quadratic)``: where ``n`` reaches ``quadratic``,
    attention costs as much as everything else.

    Args:
        lengths: Of every example, the longer of source and target.
        budget: Most cost of a batch, in tokens of short sequences. A longer example comes alone.
        quadratic: The length at which attention is half of the cost.
        seed: Together with the epoch decides the order.
        shuffle: False for batches of the sorted lengths, longest first: for evaluation, and to run out of memory early.
    """

    def __init__(
        self, lengths: Sequence[int], budget: int, quadratic: int = 2048, seed: int = 0, shuffle: bool = True
    ) -> None:
        for name, value in (("budget", budget), ("quadratic", quadratic)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an int >= 1, got {value!r}")
        self.lengths = torch.as_tensor(lengths, dtype=torch.long)
        self.budget, self.quadratic, self.seed, self.shuffle = budget, quadratic, seed, shuffle
        self.epoch = 0
        self._made: tuple[int, list[list[int]]] | None = None  # for this epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order."""
        self.epoch = epoch

    def cost(self, count: int, length: int) -> float:
        """What ``count`` sequences padded to this length cost."""
        return count * length * (1 + length / self.quadratic)

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
            return self._cut(self.lengths.argsort(descending=True, stable=True).tolist())
        random = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=random).tolist()
        lengths = self.lengths.tolist()
        batches: list[list[int]] = []
        for pool in self._pools(order, lengths):
            batches += self._cut(sorted(pool, key=lengths.__getitem__))
        return [batches[i] for i in torch.randperm(len(batches), generator=random).tolist()]

    def _pools(self, order: list[int], lengths: list[int]) -> Iterator[list[int]]:
        """Runs of examples that fill about ``POOL`` batches."""
        pool: list[int] = []
        filled = 0.0
        for i in order:
            pool.append(i)
            filled += self.cost(1, lengths[i])
            if filled >= POOL * self.budget:
                yield pool
                pool, filled = [], 0.0
        if pool:
            yield pool

    def _cut(self, ordered: list[int]) -> list[list[int]]:
        """Batches of neighbours, as many as the budget allows."""
        lengths = self.lengths
        batches: list[list[int]] = []
        batch: list[int] = []
        longest = 0
        for i in ordered:
            length = max(longest, int(lengths[i]))
            if batch and self.cost(len(batch) + 1, length) > self.budget:
                batches.append(batch)
                batch, length = [], int(lengths[i])
            batch.append(i)
            longest = length
        return [*batches, batch] if batch else batches
