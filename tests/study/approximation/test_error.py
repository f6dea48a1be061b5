import itertools

import pytest
import torch
from torch import Tensor

from reluformer.study.approximation.boxes import CLASSES, Boxes, cut_cube
from reluformer.study.approximation.error import l1_error

CUTS = [0.0, 0.13, 0.4, 0.71, 1.0]  # of a predictor that is constant between them
LEVELS = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]])


def piecewise(x: Tensor) -> Tensor:
    return LEVELS[torch.bucketize(x[:, 0], torch.tensor(CUTS[1:-1]), right=True)]


def exact(target: Boxes) -> float:
    """The integral, piece of the predictor by interval of the target."""
    total = 0.0
    for (low, high), level in zip(itertools.pairwise(CUTS), LEVELS.tolist(), strict=True):
        for begin, end, label in zip(
            target.lower[:, 0].tolist(), target.upper[:, 0].tolist(), target.classes.tolist(), strict=True
        ):
            common = max(0.0, min(high, end) - max(low, begin))
            total += common * sum(abs(p - (c == label)) for c, p in enumerate(level))
    return total


def test_a_piecewise_constant_predictor_has_its_exact_error() -> None:
    target = cut_cube(1)
    error, standard_error = l1_error(piecewise, target, 2**16)
    assert 0 < standard_error < 0.005
    assert error == pytest.approx(exact(target), abs=4 * standard_error)


def test_the_standard_error_is_that_of_the_estimate() -> None:
    """Estimates from as many points differ by what it says: ten targets, ten errors against the exact ones."""
    scores = []
    for seed in range(10):
        target = cut_cube(1, seed)
        error, standard_error = l1_error(piecewise, target, 4096)
        scores.append((error - exact(target)) / standard_error)
    assert 0.3 < torch.tensor(scores).square().mean().sqrt() < 2


@pytest.mark.parametrize("dimension", [1, 4])
def test_ends_of_the_scale(dimension: int) -> None:
    target = cut_cube(dimension)

    def truth(x: Tensor) -> Tensor:
        return torch.eye(CLASSES)[target.class_of(x)]

    assert l1_error(truth, target, 5000) == (0.0, 0.0)
    assert l1_error(lambda x: truth(x).roll(1, -1), target, 5000) == (2.0, 0.0)
    assert l1_error(lambda x: torch.full((len(x), CLASSES), 1 / CLASSES), target, 5000)[0] == pytest.approx(1.5)
