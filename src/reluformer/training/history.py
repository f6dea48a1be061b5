"""What the evaluations of a run say: which one was best, and how long ago."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evaluations:
    """Evaluations in order.

    Attributes:
        steps: When.
        values: Of the metric.
        higher: Whether higher is better.
    """

    steps: Sequence[int]
    values: Sequence[float]
    higher: bool

    @classmethod
    def of(cls, log: Sequence[dict[str, Any]], metric: str, higher: bool, after: int = 0) -> "Evaluations":
        """Those of a trainer's log that come after a step."""
        found = [entry for entry in log if metric in entry and entry["step"] > after]
        return cls([entry["step"] for entry in found], [entry[metric] for entry in found], higher)

    @property
    def best(self) -> int | None:
        """Number of the first of the best; what is not a number is never it."""
        best = None
        for i, value in enumerate(self.values):
            known = float("-inf" if self.higher else "inf") if best is None else self.values[best]
            if value > known if self.higher else value < known:
                best = i
        return best

    @property
    def best_step(self) -> int | None:
        """When it was best."""
        return None if self.best is None else self.steps[self.best]

    @property
    def without_gain(self) -> int:
        """How many have come since the best."""
        return len(self.values) - (0 if self.best is None else self.best + 1)
