"""Pictures of two classes, bright and dark, as a folder."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("bright", "dark")


def pictures(count: int, seed: int = 0) -> list[tuple[Image.Image, int]]:
    """So many of each class, each of another size."""
    random = np.random.default_rng(seed)
    found = []
    for label in range(2):
        for i in range(count):
            low = 0 if label else 160
            pixels = random.integers(low, low + 90, (12 + i, 10, 3), dtype=np.uint8)
            found.append((Image.fromarray(pixels), label))
    return found


def write_folder(folder: Path, count: int = 10, seed: int = 0) -> Path:
    for i, (picture, label) in enumerate(pictures(count, seed)):
        place = folder / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{i}.png")
    return folder
