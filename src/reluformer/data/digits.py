"""Scikit-learn's handwritten digits: real images that ship with a package, for experiments offline."""

from functools import cache

import torch
from torch import Tensor

from reluformer.data.files import DataError


@cache
def load_digits() -> tuple[Tensor, Tensor]:
    """Return 1797 images ``(N, 8, 8)``, float32 from 0 to 1, and the digits that they show ``(N,)``."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise DataError('digits needs scikit-learn: pip install "reluformer[vision]"') from error
    pixels, labels = datasets.load_digits(return_X_y=True)  # (N, 64), from 0 to 16
    return torch.tensor(pixels, dtype=torch.float32).view(-1, 8, 8) / 16, torch.tensor(labels)
