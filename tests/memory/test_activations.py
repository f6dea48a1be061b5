import sys

import pytest
import torch

from reluformer.memory import Attention, MemorySettings
from reluformer.memory.activations import ACTIVATIONS, NORMALISED, SPARSE, weigh


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hidden_slots_have_no_weight_and_no_influence(activation):
    scores = torch.randn(3, 5, 20, dtype=torch.float64)
    visible = torch.rand(3, 5, 20) > 0.4
    visible[0, 0] = False  # a row that sees nothing
    count = visible.sum(-1, keepdim=True).double()
    weights = weigh(scores, activation, count, visible)
    assert (weights[~visible] == 0).all()
    assert weights.isfinite().all()
    row = visible[1, 2]
    alone = weigh(scores[1, 2, row], activation, count[1, 2])
    torch.testing.assert_close(weights[1, 2, row], alone)


@pytest.mark.parametrize("activation", NORMALISED)
def test_normalised_rows_sum_to_one(activation):
    weights = weigh(3 * torch.randn(4, 30), activation, 30.0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))


def test_sparse_normalisers_make_zeros():
    scores = 3 * torch.randn(50, 30)
    zeros = {name: (weigh(scores, name, 30.0) == 0).float().mean().item() for name in NORMALISED}
    assert zeros["softmax"] == 0 < zeros["entmax15"] < zeros["sparsemax"]


def test_sigmoid_starts_at_one_over_n():
    assert weigh(torch.zeros(1, 8), "sigmoid", 8.0)[0, 0].item() == pytest.approx(1 / 9)  # 1 / (1 + n)


def test_plain_sigmoid_asks_for_no_number_of_slots():
    scores = torch.tensor([[-2.0, 0.0, 2.0]])
    torch.testing.assert_close(weigh(scores, "plain_sigmoid", 99.0), 1 / (1 + (-scores).exp()))


def test_relu6_is_relu_with_a_ceiling():
    scores = torch.tensor([[-3.0, 0.0, 2.5, 6.0, 9.0]])
    assert weigh(scores, "relu6", 5.0).tolist() == [[0.0, 0.0, 2.5, 6.0, 6.0]]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(activation):
    scores = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: weigh(s, activation, 6.0), scores)


def test_entmax_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "entmax", None)
    with pytest.raises(ModuleNotFoundError, match=r"activation 'sparsemax' needs entmax: pip install"):
        Attention(8, 2, MemorySettings("sparsemax"))


@pytest.mark.parametrize("activation", SPARSE)
def test_compiled_in_one_graph_with_all_around_it(activation):
    attention = Attention(16, 2, MemorySettings(activation), causal=True)
    x = torch.randn(2, 7, 16)
    seen = torch.arange(7) < torch.tensor([[7], [4]])
    grads = []
    for call in (attention, torch.compile(attention, fullgraph=True, backend="aot_eager")):
        attention.zero_grad()
        call(x, key_mask=seen)[0].square().sum().backward()
        grads.append([p.grad for p in attention.parameters()])
    torch.testing.assert_close(*grads)
