"""Figures as text: mean and deviation, numbers of cells, times."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def spread(values: Sequence[float], digits: int) -> str:
    """Format mean ± standard deviation over seeds, with the same decimals; a single value has no deviation."""
    if not values:
        return "n/a"
    mean = statistics.fmean(values)
    style = _style(mean, digits)
    return f"{mean:{style}}" if len(values) < 2 else f"{mean:{style}} ± {statistics.stdev(values):{style}}"


def _style(value: float, digits: int) -> str:
    """Return a format with ``digits`` decimals: fewer for large numbers, where they are noise, more for small ones."""
    power = math.floor(math.log10(abs(value))) if value else 0
    if power >= 0:
        return f",.{min(digits, max(0, 5 - power))}f"
    needed = 1 - power  # shows two significant digits
    return f".{max(digits, needed)}f" if needed <= digits + 3 else ".1e"


def duration(seconds: float) -> str:
    """Format a time for people to read."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(statuses: Mapping[str, int]) -> str:
    """Format the number of cells by status: "5 done, 1 diverged"."""
    return ", ".join(f"{count} {status}" for status, count in statuses.items() if count) or "no cells"


def reason(error: Any, longest: int = 160) -> str:
    """Return the last line of an error, shortened to fit a table."""
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
