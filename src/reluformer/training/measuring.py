"""What is measured between two points of the curve, summed up on the device: reading it is what makes it wait."""

import time

from torch import Tensor


class Measures:
    """Sums by name, since an update and a time."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, step: int) -> None:
        """Forget everything; updates and seconds count from here."""
        self.sums: dict[str, Tensor] = {}
        self.step, self.time = step, time.perf_counter()

    def add(self, name: str, value: Tensor) -> None:
        """Add to a sum."""
        value = value.detach()
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def per_second(self, name: str) -> float:
        """A sum by the time that it took."""
        total = float(self.sums[name])  # when the device has come so far
        return total / (time.perf_counter() - self.time)
