"""Attention maps as figures: white for weights of exactly zero, grey for keys that may not be seen."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reluformer.data.files import written_file
from reluformer.report.maps import AttentionMap

# The lightest blue is not white, so that the smallest weight can be told from zero.
BLUES = ["#dbe7fd", "#7aa5f5", "#1d4ed8", "#0b1d57"]
REDS = ["#fde0d8", "#f2916f", "#d9622b", "#6b1f08"]
HIDDEN = "#e9ebee"
MOST_LABELS = 64  # most labels on an axis; if there are more, they are thinned
CELL = 0.17  # inches per token, which keeps labels legible


def draw_map(path: Path, drawn: AttentionMap) -> None:
    """Draw one map: queries from top to bottom, keys from left to right."""
    from matplotlib.figure import Figure

    n, m = drawn.weights.shape
    width, height = (min(max(CELL * x, 2.6), 11.0) for x in (m, n))
    figure = Figure(figsize=(width + 2.0, height + 1.5), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    image = _paint(axes, drawn)
    axes.set_title(f"{drawn.site}, layer {drawn.layer}, head {drawn.head}", fontsize=9, weight="bold", loc="left")
    _label(axes.xaxis, drawn.keys, rotation=90)
    _label(axes.yaxis, drawn.queries, rotation=0)
    axes.set_xlabel("key", fontsize=8, color="#6b7280")
    axes.set_ylabel("query", fontsize=8, color="#6b7280")
    axes.spines[:].set_color("#9aa3ad")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, pad=0.02)
    bar.set_label("weight (white: exactly 0)", fontsize=8, color="#6b7280")
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)
    with warnings.catch_warnings(), written_file(path) as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the box drawn in its place says as much
        figure.savefig(file, format="png")


def _paint(axes: Any, drawn: AttentionMap) -> Any:
    """Draw the weights as an image, shaded by their square root, so that one large weight leaves the rest visible."""
    import numpy as np
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap, ListedColormap

    weights = drawn.weights.float().numpy()
    largest = float(np.abs(weights).max(initial=0.0)) or 1.0
    signed = bool((weights < 0).any())
    colours = [*reversed(REDS), *BLUES] if signed else BLUES
    norm = FuncNorm(
        (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2), -largest * signed, largest
    )
    style = {"aspect": "auto", "interpolation": "nearest"}
    # NaN is not drawn: hidden keys are painted first, zeros stay white.
    hidden = np.where(drawn.visible.numpy(), np.nan, 1.0)
    axes.imshow(hidden, cmap=ListedColormap([HIDDEN]), vmin=0, vmax=1, **style)
    shown = np.where(weights == 0, np.nan, weights)
    return axes.imshow(shown, cmap=LinearSegmentedColormap.from_list("weights", colours), norm=norm, **style)


def _label(axis: Any, names: Sequence[str], rotation: int) -> None:
    """Label an axis with tokens; where there are too many, with every second, third, ... of them."""
    step = max(1, -(-len(names) // MOST_LABELS))
    places = range(0, len(names), step)
    # A token is no formula, even with dollar signs in it.
    axis.set_ticks(places, [_plain(names[i]) for i in places], rotation=rotation, parse_math=False)
    axis.set_tick_params(labelsize=7, length=0 if step == 1 else 2)


def _plain(token: str) -> str:
    """A token as a label: characters that cannot be printed are escaped, and long tokens are cut."""
    token = "".join(c if c.isprintable() else repr(c)[1:-1] for c in token)
    return token if len(token) <= 16 else token[:15] + "…"
