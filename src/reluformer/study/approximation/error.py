"""The L1 distance of class probabilities from the indicator functions of the classes."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.study.approximation.boxes import CLASSES, Boxes

FRESH = 2**31  # seed of the points, which no run uses for its training samples
BLOCK = 4096  # points at a time


@torch.no_grad()
def l1_error(predict: Callable[[Tensor], Tensor], target: Boxes, points: int) -> tuple[float, float]:
    """Estimate ``sum_c integral |p_c(x) - 1_c(x)| dx`` over the unit cube, between 0 and 2, with its standard error.

    Args:
        predict: Function from points ``(N, dimension)`` to probabilities ``(N, classes)``.
        target: The boxes, which tell the class of every point.
        points: Number of points to draw, uniformly; every call draws the same ones.
    """
    random = torch.Generator().manual_seed(FRESH)
    found = []
    for start in range(0, points, BLOCK):
        x = torch.rand(min(BLOCK, points - start), target.lower.shape[-1], generator=random)
        indicators = F.one_hot(target.class_of(x), CLASSES)
        found.append((predict(x).double() - indicators).abs().sum(-1))
    distances = torch.cat(found)
    return float(distances.mean()), float(distances.std()) / math.sqrt(points)
