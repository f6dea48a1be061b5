"""Numbers of a head against loops over every pair of tokens, in Python's own floats."""

import math
from dataclasses import astuple

import pytest
import torch

from reluformer.study.experiments._heads import BEYOND, FAR, Head, describe, mean_head, strangeness


def brute_force(weights: list[list[float]], marks: list[bool], stops: list[bool]) -> Head:
    n, live = len(weights), 0
    far = beyond = on_marks = on_stops = distance = entropy = 0.0
    for i, row in enumerate(weights):
        mass = sum(max(w, 0.0) for w in row)
        if not mass:
            continue
        live += 1
        for j, w in enumerate(row):
            share = max(w, 0.0) / mass
            far += share if abs(i - j) >= FAR * n else 0.0
            beyond += share if abs(i - j) > BEYOND else 0.0
            on_marks += share if marks[j] else 0.0
            on_stops += share if stops[j] else 0.0
            distance += share * abs(i - j)
            entropy -= share * math.log(share) if share else 0.0
    return Head(*(x / live for x in (far, beyond, on_marks, on_stops, distance, entropy)))


@pytest.mark.parametrize("n", [1, 7, 300])
def test_numbers_of_a_head(n: int) -> None:
    random = torch.Generator().manual_seed(n)
    weights = torch.randn(n, n, generator=random, dtype=torch.float64).relu()
    weights[0] = 1.0
    if n > 1:
        weights[n // 2] = 0.0  # a dead row
    marks, stops = torch.rand(2, n, generator=random) < 0.3
    expected = brute_force(weights.tolist(), marks.tolist(), stops.tolist())
    assert astuple(describe(weights, marks, stops)) == pytest.approx(astuple(expected), rel=1e-9, abs=1e-12)


def test_a_head_that_never_speaks_has_zeros() -> None:
    none = torch.zeros(4, dtype=torch.bool)
    assert describe(torch.zeros(4, 4), none, none) == Head(0, 0, 0, 0, 0, 0)


def test_strange_is_what_the_twin_has_nothing_like() -> None:
    near, usual, lone = Head(0.1, 0, 0.2, 0.3, 10, 2), Head(0.2, 0, 0.2, 0.3, 20, 3), Head(0.9, 0, 0.1, 0.1, 400, 5)
    assert strangeness([near, lone, usual], [usual, near])[::2] == [0, 0]
    found = strangeness([near, lone], [usual, near])
    # Each number in units of its deviation over all four heads, the Euclidean distance, the smaller of the two.
    columns = list(zip(*map(astuple, (near, lone, usual, near)), strict=True))
    means = [sum(column) / 4 for column in columns]
    deviations = [
        (sum((x - mean) ** 2 for x in column) / 4) ** 0.5 for column, mean in zip(columns, means, strict=True)
    ]

    def apart(one: Head, other: Head) -> float:
        both = zip(astuple(one), astuple(other), deviations, strict=True)
        return sum(((x - y) / d) ** 2 for x, y, d in both if d) ** 0.5

    assert found == pytest.approx([0, min(apart(lone, usual), apart(lone, near))])


def test_mean_head() -> None:
    assert mean_head([Head(0, 0, 0, 0, 0, 1), Head(1, 0.5, 0, 0, 10, 3)]) == Head(0.5, 0.25, 0, 0, 5, 2)
