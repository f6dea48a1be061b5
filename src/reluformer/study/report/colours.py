"""The colours of lines: blues for ReLU, warm colours for softmax; each has a shade for a light and for a dark page."""

from collections.abc import Iterable

INK, GRID = "#1f2937", "#e5e7eb"
Family = tuple[tuple[str, str], ...]
# Pairs of shades: for a light page, for a dark page.
_BLUES: Family = (("#1d4ed8", "#7aa5f5"), ("#0891b2", "#4fd0e7"), ("#7c3aed", "#b79cf7"), ("#60a5fa", "#bcd6fd"))
_WARM: Family = (("#d9622b", "#f08c5a"), ("#c79a00", "#f0d25c"), ("#e11d48", "#fb7a95"), ("#8a4b1f", "#cf9a72"))
_OTHERS: Family = (
    ("#15803d", "#5fcf88"), ("#5b6470", "#aab3bd"), ("#a21caf", "#e08bea"), ("#65a30d", "#b5e264"),
    ("#0f766e", "#4fcabd"), ("#0b0f19", "#f3f4f6"), ("#9aa3ad", "#d5dbe1"), ("#be185d", "#f58fbb"),
)  # fmt: skip
_DARK = {light: dark for family in (_BLUES, _WARM, _OTHERS) for light, dark in family}
_DARK |= {INK: "#d7dce3", GRID: "#333a44"}


def colours(names: Iterable[str]) -> list[str]:
    """Return a colour for each name, from the family that the name implies; an exhausted family borrows from others."""
    free = {family: [light for light, _ in family] for family in (_BLUES, _WARM, _OTHERS)}
    found = []
    for name in names:
        own = _family(name)
        if not any(free.values()):  # more lines than colours: begin again
            free = {family: [light for light, _ in family] for family in free}
        family = own if free[own] else next(family for family in (_OTHERS, *free) if free[family])
        found.append(free[family].pop(0))
    return found


def _family(name: str) -> Family:
    lower = name.lower()
    if "relu" in lower:
        return _BLUES
    return _WARM if "softmax" in lower or lower == "transformer" else _OTHERS


def in_page(svg: str) -> str:
    """Return an SVG whose colours follow the page's mode, light or dark."""
    for light in _DARK:
        svg = svg.replace(light, f"var({_variable(light)})")
    return svg


def style_sheet(dark: bool) -> str:
    """Return the CSS variables that :func:`in_page` refers to, for one mode."""
    return "".join(f"{_variable(light)}:{shade if dark else light};" for light, shade in _DARK.items())


def _variable(light: str) -> str:
    return f"--c{light[1:]}"
