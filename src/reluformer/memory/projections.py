"""Several linear layers of one input as one matrix product: fewer and larger ones, forwards and backwards."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def project(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """What each of the layers makes of ``x (..., width)``; as one product in training, where that pays.

    To put the matrices together is a copy of them, little beside a batch of training, but as much as a step of decoding
    is to read. Whatever is not as PyTorch made it, say, has an adapter or a hook, is called by itself.
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
