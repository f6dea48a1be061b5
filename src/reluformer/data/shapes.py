"""Shapes of batches, few enough that a CUDA graph can be recorded for each."""

from dataclasses import dataclass

MULTIPLE = 8  # that lengths and the vocabulary are rounded up to: tensor cores take no less
LENGTHS = 8  # between a power of two and the next, beyond 64: rounding up makes a length at most an eighth longer


@dataclass(frozen=True)
class Shapes:
    """Batches whose cost is close to a budget; their length, one of few, determines their number of rows.

    Attributes:
        budget: Maximum cost of a batch, in tokens of short sequences.
        quadratic: Length at which attention is half of the cost.
    """

    budget: int
    quadratic: int

    def length(self, longest: int) -> int:
        """Return the length that a batch is padded to if this is its longest sequence, source or target."""
        step = max(MULTIPLE, (1 << (longest - 1).bit_length()) // 2 // LENGTHS)
        return -(-longest // step) * step

    def rows(self, length: int) -> int:
        """Return the number of sequences of this length in a batch: as many as the budget allows, at least one."""
        return max(1, int(self.budget / cost(1, length, self.quadratic)))


def cost(count: int, length: int, quadratic: int) -> float:
    """Return the cost of ``count`` sequences padded to this length, in tokens of short sequences."""
    return count * length * (1 + length / quadratic)
