"""One product instead of several changes nothing but the time it takes."""

import copy

import pytest
import torch
from torch import nn

from reluformer.memory import Attention, MemorySettings
from reluformer.memory.projections import project


def layers(*widths: int) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(8, width).double() for width in widths]


def test_is_what_the_layers_make_with_gradients() -> None:
    made, x = layers(8, 4, 4), torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    together, apart = project(x, *made), [layer(x) for layer in made]
    inputs = [x, *(weight for layer in made for weight in layer.parameters())]
    slopes = [torch.randn_like(y) for y in apart]
    for found, wanted in zip(together, apart, strict=True):
        torch.testing.assert_close(found, wanted)
    for found, wanted in zip(*(torch.autograd.grad(y, inputs, slopes) for y in (together, apart)), strict=True):
        torch.testing.assert_close(found, wanted)


def test_without_gradients_nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = layers(8, 4), torch.randn(2, 5, 8, dtype=torch.float64)
    monkeypatch.setattr(torch, "cat", None)
    with torch.no_grad():
        assert [y.shape[-1] for y in project(x, *made)] == [8, 4]


class Adapted(nn.Linear):
    """As adapters do it: a class of its own in the place of the layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("kind", ["adapter", "hook", "pre-hook", "hook of all modules", "replaced"])
def test_what_is_not_plain_is_called_by_itself(kind: str) -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2, MemorySettings("softmax", alpha=0.0, gamma="none"))
    plain, x = copy.deepcopy(attention), torch.randn(2, 5, 8)
    value, every = attention.value, None
    if kind == "adapter":
        value.__class__ = Adapted
    elif kind == "hook":
        value.register_forward_hook(lambda _, __, out: out + 1)
    elif kind == "pre-hook":
        value.register_forward_pre_hook(lambda *_: (x + torch.linalg.pinv(value.weight) @ torch.ones(8),))
    elif kind == "hook of all modules":
        every = nn.modules.module.register_module_forward_hook(
            lambda layer, _, out: out + 1 if layer is value else None
        )
    else:
        value.forward = lambda y: nn.Linear.forward(value, y) + 1  # type: ignore[method-assign]
    nn.init.zeros_(attention.output.bias)
    found, _ = attention(x)
    if every is not None:
        every.remove()
    shift = attention.output.weight.sum(1)  # weights of a row sum to 1, so 1 more in all values is 1 more in the sums
    torch.testing.assert_close(found, plain(x)[0] - plain.output.bias + shift, atol=1e-4, rtol=1e-4)


class Stored(torch.Tensor):
    """As quantised weights are: a tensor of another kind, which knows nothing but how to be multiplied."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        assert func is not torch.cat
        return super().__torch_function__(func, types, args, kwargs or {})


def test_weights_of_another_kind_are_left_to_their_layers() -> None:
    made, x = layers(8, 4), torch.randn(2, 5, 8, dtype=torch.float64)
    wanted = project(x, *made)
    made[0].weight = nn.Parameter(made[0].weight.detach().as_subclass(Stored))  # type: ignore[type-var]
    for found, expected in zip(project(x, *made), wanted, strict=True):
        torch.testing.assert_close(found.as_subclass(torch.Tensor), expected)
