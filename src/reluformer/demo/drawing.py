"""Attention on a page: whole maps as bitmaps, sentences as SVG drawings; both suit a light and a dark page.

A weight of exactly zero is not painted at all: the page shows through.
"""

import base64
import html
from io import BytesIO
from itertools import pairwise
from typing import Any

from reluformer.demo.heads import Head

INK = (37, 99, 235)  # visible on white and on black
FAINTEST = 0.14  # opacity of a weight above zero, however small
LEVELS = 32  # of opacity: the fewer, the smaller the file
CELL = 22  # size of a cell, in units of the drawing
ROOM = 96  # space for the tokens beside the cells
LONGEST = 12  # characters shown of a token


def whole_map(head: Head) -> str:
    """Draw every weight of a window as one dot, with lines between sentences."""
    n, m = head.map.weights.shape
    rows, columns = (_ends(side) for side in (head.queries.sentences, head.keys.sentences))
    lines = "".join(f"M0 {y}H{m}" for y in rows) + "".join(f"M{x} 0V{n}" for x in columns)
    label = html.escape(f"{_name(head)}: {n} rows, {m} keys")
    return (
        f'<svg class="map" viewBox="0 0 {m} {n}" role="img" aria-label="{label}">'
        f'<path class="grid" d="{lines}"/>'
        f'<image width="{m}" height="{n}" href="data:image/png;base64,{base64.b64encode(_png(head)).decode()}"/></svg>'
    )


def sentence_map(head: Head, sentence: int) -> str:
    """Draw the weights between a sentence and its translation, token by token."""
    rows, columns = (
        [i for i, number in enumerate(side.sentences) if number == sentence] for side in (head.queries, head.keys)
    )
    largest = float(head.map.weights[rows][:, columns].max()) or 1.0
    cells = []
    for y, i in enumerate(rows):
        for x, j in enumerate(columns):
            if (weight := float(head.map.weights[i, j])) > 0:
                place = f'x="{ROOM + x * CELL}" y="{ROOM + y * CELL}" width="{CELL - 1}" height="{CELL - 1}"'
                title = f"{_label(head, i)} ← {_label(head, j, key=True)}: {weight:.3f}"
                paint = f'fill-opacity="{_paint(weight / largest):.2f}"'
                cells.append(f"<rect {place} {paint}><title>{html.escape(title)}</title></rect>")
    names = [
        f'<text x="{ROOM - 6}" y="{ROOM + y * CELL + 15}" text-anchor="end">{html.escape(_label(head, i))}</text>'
        for y, i in enumerate(rows)
    ] + [
        f'<text transform="translate({ROOM + x * CELL + 15} {ROOM - 6}) rotate(-90)">'
        f"{html.escape(_label(head, j, key=True))}</text>"
        for x, j in enumerate(columns)
    ]
    width, height = ROOM + len(columns) * CELL, ROOM + len(rows) * CELL
    frame = f'<rect class="frame" x="{ROOM}" y="{ROOM}" width="{width - ROOM}" height="{height - ROOM}"/>'
    label = html.escape(f"{_name(head)}, sentence {sentence + 1}")
    return (
        f'<svg class="tokens" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{label}">'
        f"{frame}<g>{''.join(cells)}</g>{''.join(names)}</svg>"
    )


def _name(head: Head) -> str:
    return f"{head.map.site}, layer {head.map.layer}, head {head.map.head}"


def _label(head: Head, position: int, key: bool = False) -> str:
    """Return the token at a row or column; a row of the decoder has the name of the next token, which it writes."""
    names = head.map.keys if key else [*head.map.queries[1:], "</s>"]
    text = names[position].strip() or "·"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _ends(sentences: list[int]) -> list[int]:
    return [i for i, (a, b) in enumerate(pairwise(sentences), 1) if a != b]


def _paint(share: Any) -> Any:
    """Return the opacity of weights, by their square roots, so that one large weight leaves the rest visible."""
    return FAINTEST + (1 - FAINTEST) * share**0.5


def _png(head: Head) -> bytes:
    """Render the weights as a PNG of one colour in varying opacity."""
    import numpy as np
    from matplotlib.image import imsave

    weights = head.map.weights.clamp_min(0).float().numpy()
    shares = weights / (float(weights.max(initial=0.0)) or 1.0)
    paint = np.where(weights > 0, _paint(shares), 0.0)
    picture = np.empty((*weights.shape, 4), dtype=np.uint8)
    picture[..., :3] = INK
    picture[..., 3] = np.ceil(paint * LEVELS) * 255 // LEVELS
    file = BytesIO()
    imsave(file, picture, format="png")
    return file.getvalue()
