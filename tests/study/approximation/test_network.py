import pytest
import torch

from reluformer.study.approximation.boxes import CLASSES, cut_cube
from reluformer.study.approximation.error import l1_error
from reluformer.study.approximation.network import Network, train_network
from reluformer.study.experiment import Diverged

MEMORIES = [{"activation": "relu"}, {"activation": "softmax"}, {"activation": "softmax", "norm": "layer"}]


def test_relu_is_one_hidden_layer_of_so_many_units() -> None:
    torch.manual_seed(0)
    network = Network(2, {"activation": "relu"}, slots=8)
    x = torch.rand(50, 2)
    first, keys, values, last = network.lift, network.memory.keys, network.memory.values, network.head
    # The linear maps merged: an 8 x 2 and a 4 x 8 matrix are all that is left.
    inner = keys.weight @ first.weight * 12**0.5
    bias = keys.weight @ (first.bias - first.weight.sum(-1) * 3**0.5) + keys.bias
    outer, end = last.weight @ values.weight, last.weight @ values.bias + last.bias
    expected = (x @ inner.T + bias).relu() @ outer.T + end
    torch.testing.assert_close(network(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(network.predict(x), expected.softmax(-1), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("memory", MEMORIES, ids=["relu", "softmax", "softmax and norm"])
def test_training_brings_the_error_down(memory: dict[str, str]) -> None:
    torch.manual_seed(0)
    target = cut_cube(2)
    network = Network(2, memory, slots=32)
    before, _ = l1_error(network.predict, target, 2000)
    train_network(network, target, steps=150, seed=0)
    after, _ = l1_error(network.predict, target, 2000)
    assert before > 1.2
    assert after < 0.75 * before
    assert network.predict(torch.rand(3, 2)).shape == (3, CLASSES)


def test_a_loss_that_is_no_number_is_told() -> None:
    network = Network(1, {"activation": "relu"}, slots=4)
    torch.nn.init.constant_(network.head.bias, float("nan"))
    with pytest.raises(Diverged, match="not a number"):
        train_network(network, cut_cube(1), steps=1, seed=0)
