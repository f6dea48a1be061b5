"""The target: the unit cube cut into boxes, each of one class, so that classes are disjoint unions of boxes."""

from dataclasses import dataclass

import torch
from torch import Tensor

BOXES = 16
CLASSES = 4
MIDDLE = (0.35, 0.65)  # where a box may be cut, as a share of its side, so that none becomes too thin to be sampled


@dataclass(frozen=True)
class Boxes:
    """Half-open boxes ``[lower, upper)`` that fill the unit cube, ``(boxes, dimension)``, and the class of each."""

    lower: Tensor
    upper: Tensor
    classes: Tensor

    def class_of(self, x: Tensor) -> Tensor:
        """Return the class of every point of ``x (N, dimension)`` in ``[0, 1)``."""
        inside = ((x[:, None] >= self.lower) & (x[:, None] < self.upper)).all(-1)  # (N, boxes), one per row is True
        return self.classes[inside.int().argmax(-1)]

    def volumes(self) -> Tensor:
        """Return the volume of every class; they add up to 1."""
        of_boxes = (self.upper - self.lower).double().prod(-1)
        return torch.zeros(CLASSES, dtype=torch.float64).index_add(0, self.classes, of_boxes)


def cut_cube(dimension: int, seed: int = 0) -> Boxes:
    """Cut the largest box across its longest side, near the middle, until there are ``BOXES``; then assign classes."""
    random = torch.Generator().manual_seed(seed)
    boxes = [(torch.zeros(dimension), torch.ones(dimension))]
    while len(boxes) < BOXES:
        boxes.sort(key=lambda box: float((box[1] - box[0]).prod()))
        lower, upper = boxes.pop()
        sides = upper - lower
        axis = int(sides.argmax())
        share = torch.empty(()).uniform_(*MIDDLE, generator=random)
        cut = lower[axis] + share * sides[axis]
        below, above = upper.clone(), lower.clone()
        below[axis] = above[axis] = cut
        boxes += [(lower, below), (above, upper)]
    classes = torch.randperm(BOXES, generator=random) % CLASSES
    return Boxes(torch.stack([lower for lower, _ in boxes]), torch.stack([upper for _, upper in boxes]), classes)
