"""Measurements between two points of the curve, summed on the device: only reading a sum waits for the device."""

import time

from torch import Tensor


class Measures:
    """Sums by name, since a certain step and time."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, step: int) -> None:
        """Reset all sums; updates and seconds count from here."""
        self.sums: dict[str, Tensor] = {}
        self.step, self.time = step, time.perf_counter()

    def add(self, name: str, value: Tensor) -> None:
        """Add a value to a sum."""
        value = value.detach()
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def per_second(self, name: str) -> float:
        """Return a sum divided by the seconds since the reset."""
        total = float(self.sums[name])  # waits for the device, so the time below includes its work
        return total / (time.perf_counter() - self.time)
