import pytest

from reluformer.data.shapes import Shapes, cost

SHAPES = Shapes(16384, 2048)


@pytest.mark.parametrize(
    ("longest", "length"),
    [(1, 8), (8, 8), (9, 16), (64, 64), (65, 72), (128, 128), (129, 144), (257, 288), (1000, 1024), (1025, 1152)],
)
def test_lengths_are_multiples_that_grow_with_the_length(longest, length):
    assert SHAPES.length(longest) == length


def test_little_is_padding_and_shapes_are_few():
    lengths = [SHAPES.length(n) for n in range(1, 1025)]
    assert all(n <= length < max(n + 8, 1.125 * n) for n, length in enumerate(lengths, 1))
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == 16 + 8 + 8 + 8  # up to 128 in steps of 8, then eight for every doubling


def test_rows_fill_the_budget():
    for length in (8, 72, 1024):
        rows = SHAPES.rows(length)
        assert cost(rows, length, 2048) <= 16384 < cost(rows + 1, length, 2048)
    assert SHAPES.rows(10**6) == 1
