from io import BytesIO

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from reluformer.png import COLOURS, png_of


def test_few_colours_look_the_same() -> None:
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    axes.imshow(np.random.default_rng(0).random((30, 40)), cmap="viridis")
    axes.set_title("a title in black on white")
    figure.savefig(BytesIO(), dpi=150)  # some styles move things a little after the first drawing
    full = BytesIO()
    figure.savefig(full, format="png", dpi=150)
    small = png_of(figure, dpi=150)
    before, after = (Image.open(file).convert("RGB") for file in (full, BytesIO(small)))
    assert len(before.getcolors(1 << 24)) > COLOURS >= len(after.getcolors(1 << 24))
    assert before.size == after.size
    assert after.getpixel((0, 0)) == (255, 255, 255)
    assert np.abs(np.asarray(before, int) - np.asarray(after, int)).max() < 16
    assert len(small) < 0.7 * len(full.getvalue())
