"""The digits of scikit-learn."""

import torch

from reluformer.data.digits import load_digits


def test_digits() -> None:
    pixels, labels = load_digits()
    assert pixels.shape == (1797, 8, 8)
    assert pixels.dtype == torch.float32
    assert (pixels.min(), pixels.max()) == (0, 1)
    assert labels.unique().tolist() == list(range(10))
