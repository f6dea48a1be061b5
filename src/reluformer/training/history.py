"""The evaluations of a run: which one was best, and how long ago."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a run, in order.

    Attributes:
        steps: Steps at which the model was evaluated.
        values: Values of the metric.
        higher: Whether higher is better.
    """

    steps: Sequence[int]
    values: Sequence[float]
    higher: bool

    @classmethod
    def of(cls, log: Sequence[dict[str, Any]], metric: str, higher: bool, after: int = 0) -> "Evaluations":
        """Take the evaluations after a step from a trainer's log."""
        found = [entry for entry in log if metric in entry and entry["step"] > after]
        return cls([entry["step"] for entry in found], [entry[metric] for entry in found], higher)

    @property
    def best(self) -> int | None:
        """Index of the best evaluation, the first of equals; NaN is never the best."""
        finite = [i for i, value in enumerate(self.values) if math.isfinite(value)]
        return (max if self.higher else min)(finite, key=self.values.__getitem__, default=None)

    @property
    def best_step(self) -> int | None:
        """Step of the best evaluation."""
        return None if self.best is None else self.steps[self.best]

    @property
    def without_gain(self) -> int:
        """Number of evaluations since the best."""
        return len(self.values) - (0 if self.best is None else self.best + 1)
