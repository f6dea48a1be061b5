"""What sublayers are made of, as plain functions of rows: norms, linear layers that are joined, FFNs."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.models.quantising import Linear, quantise_rows
from reluformer.translation.engine import native

MakeLinear = Callable[..., Linear]  # weight, bias and relu, as in reluformer.models.quantising
Norm = Callable[[Tensor], Tensor]
FEW = 3  # rows: for more of them a dense product of int8 is faster than sums of the values that have a weight


class Frame:
    """The norm of a sublayer, before its memory or behind the sum of stream and memory."""

    def __init__(self, sublayer: Any) -> None:
        norm = normer(sublayer.norm)
        self.enter: Norm = norm if sublayer.before else same
        self.leave: Norm = same if sublayer.before else norm


def normer(module: nn.Module | None) -> Norm:
    """A norm, or nothing."""
    if isinstance(module, nn.LayerNorm):
        weight, bias = module.weight.detach().float(), module.bias.detach().float()
        return lambda x: F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
    if isinstance(module, nn.RMSNorm):
        return rms_normer(module.weight.detach().float(), module.eps)
    return same


def same(x: Tensor) -> Tensor:
    """What a norm is that is not there."""
    return x


def rms_normer(gain: Tensor, eps: float | None) -> Norm:
    """RMS norm over the last dimension, its gain broadcast: PyTorch's own takes five times as long for a few rows."""
    width = gain.shape[-1]
    gain = gain * math.sqrt(width)
    least = torch.tensor(math.sqrt(width * eps_of(eps)))
    return lambda x: x * gain / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot(least)


def eps_of(eps: float | None) -> float:
    """What PyTorch takes where a norm has none."""
    return torch.finfo(torch.float32).eps if eps is None else eps


class FeedForward(Frame):
    """An FFN of ReLU.

    Args:
        sublayer: Of the model.
        make: Makes its linear layers.
        compiled: Whether few rows read the int8 values of active slots alone, by step.c.
    """

    def __init__(self, sublayer: Any, make: MakeLinear, compiled: bool = False) -> None:
        super().__init__(sublayer)
        memory = sublayer.memory
        self.keys = make(memory.keys.weight, memory.keys.bias, relu=True)
        self.values = make(memory.values.weight, memory.values.bias)
        self.compiled = compiled
        if compiled:
            integers, scale = quantise_rows(memory.values.weight)
            bias = scale.new_zeros(len(scale)) if memory.values.bias is None else memory.values.bias.detach().float()
            self.slots = integers.T.contiguous(), scale[:, 0].contiguous(), bias  # (slots, width), (width,), (width,)

    def __call__(self, x: Tensor) -> Tensor:
        """The stream ``(rows, width)`` after it."""
        weights = self.keys(self.enter(x))
        if not self.compiled or len(x) > FEW:
            return self.leave(x + self.values(weights))
        return self.leave(native.sum_values(weights, *self.slots, x))


def joined(
    layers: list[nn.Linear],
    make: MakeLinear,
    factors: list[Any] | None = None,
    constants: list[Any] | None = None,
    orders: list[Any] | None = None,
) -> Linear:
    """Several linear layers as one, the outputs of each in an order, times a factor plus a constant.

    Factors and constants are ``(out,)`` or numbers, of the outputs as they stand then; an order is an index of them.
    """
    factors, constants = factors or [1.0] * len(layers), constants or [0.0] * len(layers)
    orders = orders or [slice(None)] * len(layers)
    weights, biases = [], []
    for layer, factor, constant, order in zip(layers, factors, constants, orders, strict=True):
        weights.append(layer.weight.detach().float()[order].mT.mul(factor).mT)
        biases.append(layer.bias.detach().float()[order] * factor + constant)
    return make(torch.cat(weights), torch.cat(biases))
