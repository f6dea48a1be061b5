"""Several linear layers of one input as a single matrix product: fewer, larger products, forwards and backwards."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def project(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """Outputs of all layers for ``x (..., width)``; by one product in training, where that pays.

    Concatenating the matrices copies them: little work beside a training batch, but as much as a decoding step takes to
    read them. Unless all layers are as PyTorch made them, without adapters or hooks, each is called by itself.
    """
    plain = [layer for layer in layers if type(layer) is nn.Linear and _is_plain(layer)]
    if torch.is_grad_enabled() and len(plain) == len(layers) > 1:
        weight = torch.cat([layer.weight for layer in plain])
        bias = torch.cat([layer.bias for layer in plain])
        return torch.split(F.linear(x, weight, bias), [layer.out_features for layer in plain], dim=-1)
    return [layer(x) for layer in layers]


def _is_plain(layer: nn.Linear) -> bool:
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    hooked = hooks or nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    own = all(type(x) in (nn.Parameter, Tensor) for x in (layer.weight, layer.bias))  # no quantised ones, for example
    return own and not hooked and "forward" not in layer.__dict__
