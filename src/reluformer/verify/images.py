"""Images to train and verify on: scikit-learn's digits, or a file of your own."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.data.digits import load_digits

DIGITS = "digits"
EVERY = 5  # every fifth image is for testing


class Images(NamedTuple):
    """Images as ``pixels (N, rows, columns)`` in ``[0, 1]``, float32, and their ``labels (N,)``."""

    pixels: Tensor
    labels: Tensor


def read_images(name: str) -> Images:
    """All images of ``"digits"``, or of a ``.npz`` file with ``pixels (N, rows, columns)`` and ``labels (N,)``."""
    return Images(*load_digits()) if name == DIGITS else _file(name)


def split(images: Images) -> tuple[Images, Images]:
    """Split images into those for training and those for testing, always in the same way."""
    for_test = torch.arange(len(images.labels)) % EVERY == 0
    return Images(*(x[~for_test] for x in images)), Images(*(x[for_test] for x in images))


def _file(name: str) -> Images:
    import numpy as np

    if not Path(name).is_file():
        raise ValueError(f"takes {DIGITS} or a .npz file, there is no file {name!r}")
    if not zipfile.is_zipfile(name):
        raise ValueError(f"takes {DIGITS} or a .npz file, as numpy.savez writes it, and {name!r} is none, or broken")
    try:
        with np.load(name, allow_pickle=False) as arrays:
            pixels, labels = torch.tensor(arrays["pixels"]).float(), torch.tensor(arrays["labels"]).long()
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot read pixels and labels from {name!r}: {reason}") from None
    if pixels.dim() != 3 or labels.shape != pixels.shape[:1] or not len(labels):
        shapes = f"{tuple(pixels.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"{name!r} must hold pixels (N, rows, columns) and labels (N,), got {shapes}")
    if not bool(((pixels >= 0) & (pixels <= 1)).all()) or int(labels.min()) < 0:
        raise ValueError(f"{name!r} must hold pixels from 0 to 1 and labels from 0 on")
    return Images(pixels, labels)
