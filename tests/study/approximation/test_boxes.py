import itertools

import pytest
import torch

from reluformer.study.approximation.boxes import BOXES, CLASSES, cut_cube


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_boxes_are_disjoint_and_fill_the_cube(dimension: int) -> None:
    target = cut_cube(dimension)
    boxes = list(zip(target.lower.double(), target.upper.double(), strict=True))
    assert len(boxes) == BOXES
    for (low, high), (other_low, other_high) in itertools.combinations(boxes, 2):
        common = (torch.minimum(high, other_high) - torch.maximum(low, other_low)).clamp_min(0).prod()
        assert common == 0
    assert float(sum((high - low).prod() for low, high in boxes)) == pytest.approx(1, abs=1e-6)
    assert set(target.classes.tolist()) == set(range(CLASSES))


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
def test_every_point_has_one_class_and_classes_their_volumes(dimension: int) -> None:
    target = cut_cube(dimension)
    count = 20_000
    x = torch.rand(count, dimension, generator=torch.Generator().manual_seed(1))
    found = target.class_of(x)
    for point, label in zip(x[:200], found, strict=False):  # box by box, in plain Python
        holding = [
            int(c)
            for low, high, c in zip(target.lower, target.upper, target.classes, strict=True)
            if all(a <= v < b for a, v, b in zip(low.tolist(), point.tolist(), high.tolist(), strict=True))
        ]
        assert holding == [int(label)]
    shares = torch.bincount(found, minlength=CLASSES).double() / count
    volumes = target.volumes()
    assert float(volumes.sum()) == pytest.approx(1, abs=1e-6)
    assert ((shares - volumes).abs() < 4 * (volumes * (1 - volumes) / count).sqrt()).all()


def test_the_target_is_that_of_its_seed() -> None:
    assert torch.equal(cut_cube(3).upper, cut_cube(3).upper)
    assert not torch.equal(cut_cube(3).upper, cut_cube(3, seed=1).upper)
