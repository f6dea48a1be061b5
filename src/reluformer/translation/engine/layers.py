"""The parts of sublayers as plain functions of rows: norms, joined linear layers, FFNs."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.models.quantising import Linear, quantise_rows
from reluformer.translation.engine import native

MakeLinear = Callable[..., Linear]  # takes weight, bias and relu, as in reluformer.models.quantising
Norm = Callable[[Tensor], Tensor]
FEW = 3  # rows: for more, a dense int8 product is faster than sums over the values of active slots


class Frame:
    """The norm of a sublayer, before its memory or after the sum of stream and memory."""

    def __init__(self, sublayer: Any) -> None:
        norm = normer(sublayer.norm)
        self.enter: Norm = norm if sublayer.before else same
        self.leave: Norm = same if sublayer.before else norm


def normer(module: nn.Module | None) -> Norm:
    """Return a norm as a function; the identity if there is none."""
    if isinstance(module, nn.LayerNorm):
        weight, bias = module.weight.detach().float(), module.bias.detach().float()
        return lambda x: F.layer_norm(x, module.normalized_shape, weight, bias, module.eps)
    if isinstance(module, nn.RMSNorm):
        return rms_normer(module.weight.detach().float(), module.eps)
    return same


def same(x: Tensor) -> Tensor:
    """Return ``x`` itself, in place of a norm."""
    return x


def rms_normer(gain: Tensor, eps: float | None) -> Norm:
    """Return an RMS norm over the last dimension, its gain broadcast: for few rows five times as fast as PyTorch's."""
    width = gain.shape[-1]
    gain = gain * math.sqrt(width)
    least = torch.tensor(math.sqrt(width * eps_of(eps)))
    return lambda x: x * gain / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot(least)


def eps_of(eps: float | None) -> float:
    """Return the epsilon of a norm, or PyTorch's default where it has none."""
    return torch.finfo(torch.float32).eps if eps is None else eps


class FeedForward(Frame):
    """An FFN with ReLU.

    Args:
        sublayer: FFN sublayer of the model.
        make: Function that makes its linear layers.
        compiled: Whether step.c sums values for few rows, reading the int8 values of active slots alone.
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
        """Return the stream ``(rows, width)`` after this sublayer."""
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
    """Join several linear layers into one; the outputs of each are reordered, scaled, and shifted by a constant.

    An order is an index into the outputs; factors and constants, ``(out,)`` or numbers, apply to reordered outputs.
    """
    factors, constants = factors or [1.0] * len(layers), constants or [0.0] * len(layers)
    orders = orders or [slice(None)] * len(layers)
    weights, biases = [], []
    for layer, factor, constant, order in zip(layers, factors, constants, orders, strict=True):
        weights.append(layer.weight.detach().float()[order].mT.mul(factor).mT)
        biases.append(layer.bias.detach().float()[order] * factor + constant)
    return make(torch.cat(weights), torch.cat(biases))
