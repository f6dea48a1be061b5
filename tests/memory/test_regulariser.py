import math

import pytest
import torch

from reluformer import AttentionStats
from reluformer.memory import Regulariser


def stats(mass, entropy):
    mass, entropy = (torch.tensor(x, dtype=torch.float64)[None, None].requires_grad_() for x in (mass, entropy))
    return AttentionStats(mass, entropy, mass.detach())


def test_unit_mass_and_low_entropy_cost_nothing():
    count = torch.tensor([[[8.0, 8.0]]])
    assert Regulariser(1.0, 1.0)([stats([1.0, 1.0], [0.3, 1.0])], count) == 0


def test_both_terms():
    rows = stats([math.e, math.exp(-3)], [2.0, 1.0])
    count = torch.tensor([[[10.0, 10.0]]])
    assert Regulariser(mass=0.5)([rows], count).item() == pytest.approx(0.5 * (1 + 3) / 2)
    excess = 2.0 - 0.7 * math.log(10)
    assert Regulariser(entropy=0.1)([rows], count).item() == pytest.approx(0.1 * excess / 2, rel=1e-6)


def test_sites_add_up():
    sites = [stats([2.0, 0.0], [0.0, 0.0]), stats([3.0, 4.0], [0.0, 0.0])]
    expected = math.log(2) + (math.log(3) + math.log(4)) / 2  # each the mean over its own live rows
    assert Regulariser(mass=1.0)(sites, torch.ones(1, 1, 2)).item() == pytest.approx(expected)


def test_padding_is_left_out():
    mask = torch.tensor([[True, False]])
    assert Regulariser(mass=1.0)([stats([2.0, 9.0], [0.0, 0.0])], torch.ones(1, 1, 2), mask).item() == pytest.approx(
        math.log(2)
    )


def test_dead_rows_and_single_keys_are_left_alone():
    rows = stats([0.0, 2.0], [0.0, 0.0])
    count = torch.tensor([[[5.0, 1.0]]])
    penalty = Regulariser(1.0, 1.0)([rows], count)
    assert penalty.item() == pytest.approx(math.log(2))  # the mean over the one row that is alive
    penalty.backward()
    assert rows.mass.grad.tolist() == [[[0.0, 0.5]]]


def test_no_row_alive():
    assert Regulariser(1.0, 1.0)([stats([0.0], [0.0])], torch.ones(1, 1, 1)) == 0


def test_costs_something_unless_off():
    assert not Regulariser().costs
    assert Regulariser(entropy=0.1).costs


@pytest.mark.parametrize(
    ("share", "batch", "measured"), [(0.25, 128, 32), (0.25, 5, 2), (0.5, 1, 1), (0.001, 7, 1), (1.0, 7, None)]
)
def test_a_share_of_the_sequences_is_at_least_one(share, batch, measured):
    assert Regulariser(1.0, share=share).sequences(batch) == measured


def test_halves_average_to_the_whole():
    """What is measured on some sequences is an unbiased estimate where all have as many rows."""
    mass, entropy = torch.rand(6, 2, 5, dtype=torch.float64) + 0.5, 3 * torch.rand(6, 2, 5, dtype=torch.float64)
    regulariser, count = Regulariser(0.3, 0.2, share=0.5), torch.arange(1.0, 6.0)[None, None]
    half = regulariser.sequences(6)
    costs = [regulariser([AttentionStats(mass[x], entropy[x], mass[x])], count) for x in (slice(half), slice(half, 6))]
    whole = regulariser([AttentionStats(mass, entropy, mass)], count)
    torch.testing.assert_close(sum(costs) / 2, whole)
    assert abs(costs[0] - costs[1]) > 1e-3


@pytest.mark.parametrize("share", [0, -0.5, 1.5, True, "half", math.nan])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(ValueError, match=f"share must be a number above 0 and at most 1, got {share!r}"):
        Regulariser(share=share)


@pytest.mark.parametrize("field", ["mass", "entropy", "ceiling"])
def test_errors_name_the_field(field):
    with pytest.raises(ValueError, match=f"{field} must be a number >= 0, got -1"):
        Regulariser(**{field: -1})
