import torch

from reluformer.models.positions import Positions, positions_of, rotation


def test_padding_on_either_side_does_not_count():
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])
    found = positions_of(mask, 0, 5, mask.device)
    assert found[0, :3].tolist() == [0, 1, 2]
    assert found[1, 2:].tolist() == [0, 1, 2]
    assert positions_of(mask, 4, 1, mask.device).tolist() == [[2], [2]]
    assert positions_of(None, 4, 2, mask.device).tolist() == [[4, 5]]


def test_sinusoids_have_no_end():
    x = Positions("sinusoidal", 16, 8)(torch.zeros(1, 3, 16), torch.tensor([[0, 1, 100000]]))
    assert x[0, 0, :8].abs().max() == 0
    assert x.abs().max() <= 1


def test_rotated_products_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8)
    products = []
    for shift in (0, 5, 1000):
        turned, _ = rotation(torch.tensor([[3 + shift]]), 8)(q, k)
        _, other = rotation(torch.tensor([[shift]]), 8)(q, k)
        products.append((turned * other).sum())
    torch.testing.assert_close(torch.stack(products), products[0].expand(3), atol=1e-3, rtol=0)


def test_without_its_first_channel_a_product_hardly_depends_on_the_place():
    """Which a centred memory takes for a constant; were it the fastest, the one beside it would swing."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 100, 1, 64)

    def product(shift):
        turned, _ = rotation(torch.tensor([[3 + shift]]), 64)(q, k)
        _, other = rotation(torch.tensor([[shift]]), 64)(q, k)
        return (turned[..., 1:] * other[..., 1:]).sum(-1)

    assert (product(1000) - product(0)).abs().mean() < 0.15
