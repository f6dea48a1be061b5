"""Where gamma starts: so that the mean row of weights sums to 1.

ReLU attention hardly trains if its rows start with another mass. There are two ways to the right start: a formula for
scores that are standard normal, which a model applies when it is made, and a batch.
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reluformer.memory.activations import NORMALISED, weigh
from reluformer.memory.attention import Attention
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.scale import Gamma
from reluformer.memory.settings import MemorySettings

LEAST_MASS = 1e-6  # below it, weights of either sign cancel but for rounding, or nearly all rows are dead
STEPS = 4001  # of the numeric integral over the normal distribution, between -8 and 8


@functools.cache
def expected_mass(settings: MemorySettings, keys: int, causal: bool = False) -> float:
    """Mean mass of a row at gamma 1, if its scores are standard normal and it sees ``keys`` keys (causal: up to).

    With a forget gate its logits are standard normal too, plus its bias, and independent of each other.
    """
    with torch.device("cpu"):  # a model may be in the making on the meta device
        return _expected_mass(settings, keys, causal)


def _expected_mass(settings: MemorySettings, keys: int, causal: bool) -> float:
    counts = torch.arange(1 if causal else keys, keys + 1, dtype=torch.float64)
    kept = counts if settings.forget is None else _kept(settings.forget, counts)
    if settings.activation in NORMALISED:
        sums = torch.ones_like(counts)
    elif settings.activation == "sigmoid":
        sums = torch.stack([k * _mean(settings, float(c)) for k, c in zip(kept, counts, strict=True)])
    else:
        sums = kept * _mean(settings, float(keys))
    return float((sums / (counts / 2) ** settings.alpha).mean())


def _mean(settings: MemorySettings, count: float) -> Tensor:
    """Mean weight of a standard normal score, plus the bias."""
    return _normal_mean(lambda z: weigh(z + (settings.bias or 0.0), settings.activation, count))


def _kept(bias: float, counts: Tensor) -> Tensor:
    """How many keys of so many a forget gate leaves: a key ``d`` tokens back keeps the mean gate to the power ``d``."""
    gate = _normal_mean(lambda z: torch.sigmoid(z + bias))
    kept = (gate ** torch.arange(int(counts.max()), dtype=counts.dtype)).cumsum(0)
    return kept[counts.long() - 1]


def _normal_mean(function: Callable[[Tensor], Tensor]) -> Tensor:
    z = torch.linspace(-8, 8, STEPS, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return torch.trapezoid(density * function(z), z)


def start_gamma(gamma: Gamma, mass: float) -> None:
    """Let weights of this mean mass sum to 1; those that cancel, or are hardly ever there, stay as they are."""
    if mass > LEAST_MASS:
        gamma.start_at(mass)


def start_gammas(model: nn.Module, length: int) -> None:
    """Set the gamma of every memory of a model by the formula, for sequences of this length."""
    for module in model.modules():
        if isinstance(module, Attention):
            mass = expected_mass(module.settings, length + module.settings.slots, module.causal)
        elif isinstance(module, KeyValueMemory):
            mass = expected_mass(module.settings, module.settings.slots)
        else:
            continue
        start_gamma(module.gamma, mass)


@contextmanager
def calibrating(model: nn.Module) -> Iterator[None]:
    """While it lasts, every memory sets its gamma from what it is shown, before it answers.

    Padding is left out: an attention is told by its ``query_mask``, and an FFN follows one over the same positions.
    """
    masks: dict[torch.Size, Tensor | None] = {}  # of the last attention, by the shape of the positions

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = (args[0] if args else kwargs["x"]).shape[:-1]
        if isinstance(module, Attention):
            masks[positions] = kwargs.get("query_mask")
        else:
            kwargs = kwargs | {"query_mask": masks.get(positions)}
        module.calibrate_on(*args, **kwargs)  # type: ignore[operator]

    memories = [x for x in model.modules() if isinstance(x, Attention | KeyValueMemory)]
    if not memories:  # a converted model's are of another kind, which integration.calibrate knows
        raise ValueError(f"model must hold an Attention or a KeyValueMemory, got {type(model).__name__} without")
    handles = [x.register_forward_pre_hook(before, with_kwargs=True) for x in memories]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def calibrate(model: nn.Module, *args: Any, **batch: Any) -> None:
    """Set the gamma of every memory so that on this batch the mean mass of a live row is 1, site by site, head by head.

    Call it with what the model takes: ``calibrate(model, **batch)``. One forward pass; the result is stored with the
    model's parameters.
    """
    training = model.training
    model.eval()
    try:
        with calibrating(model):
            model(*args, **batch)
    finally:
        model.train(training)
