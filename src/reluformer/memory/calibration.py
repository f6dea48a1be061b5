"""Calibration: start gamma where the mean row of weights sums to 1.

ReLU attention hardly trains if its rows start with another mass. The right start comes from a formula for standard
normal scores, which a model applies when it is created, or from a batch of data.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reluformer.memory.activations import NORMALISED, mean_over_normal, weigh
from reluformer.memory.attention import Attention
from reluformer.memory.feedforward import KeyValueMemory
from reluformer.memory.scale import Gamma
from reluformer.memory.settings import MemorySettings

LEAST_MASS = 1e-6  # below it, weights of either sign cancel but for rounding, or nearly all rows are dead


@functools.cache
def expected_mass(settings: MemorySettings, keys: int, causal: bool = False) -> float:
    """Mean mass of a row at gamma 1, for standard normal scores over ``keys`` keys (causal: over 1 to ``keys``).

    The logits of a forget gate are taken to be independent and standard normal too, plus its bias.
    """
    with torch.device("cpu"):  # the model may be under construction on the meta device
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
    """Mean weight of a standard normal score plus the bias."""
    return mean_over_normal(lambda z: weigh(z + (settings.bias or 0.0), settings.activation, count))


def _kept(bias: float, counts: Tensor) -> Tensor:
    """Number of keys that a forget gate leaves of ``counts``: one ``d`` tokens back counts as ``E[gate] ** d``."""
    gate = mean_over_normal(lambda z: torch.sigmoid(z + bias))
    kept = (gate ** torch.arange(int(counts.max()), dtype=counts.dtype)).cumsum(0)
    return kept[counts.long() - 1]


def start_gamma(gamma: Gamma, mass: float) -> None:
    """Start gamma at this mean mass, unless the weights cancel or are almost all zero: then leave it as it is."""
    if mass > LEAST_MASS:
        gamma.start_at(mass)


def start_gammas(model: nn.Module, length: int) -> None:
    """Set the gamma of every memory of a model by the formula, for sequences of this length."""
    for module in model.modules():
        if isinstance(module, Attention):
            mass = expected_mass(module.settings, length + module.settings.slots_in_rows, module.causal)
        elif isinstance(module, KeyValueMemory):
            mass = expected_mass(module.settings, module.settings.slots)
        else:
            continue
        start_gamma(module.gamma, mass)


@contextmanager
def calibrating(model: nn.Module) -> Iterator[None]:
    """Context in which every memory sets its gamma from each input, before it computes its output.

    Padding is left out: an attention takes a ``query_mask``, and an FFN uses that of the last attention over positions
    of the same shape.
    """
    masks: dict[torch.Size, Tensor | None] = {}  # query_mask of the last attention, by the shape of the positions

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions = (args[0] if args else kwargs["x"]).shape[:-1]
        if isinstance(module, Attention):
            masks[positions] = kwargs.get("query_mask")
        else:
            kwargs = kwargs | {"query_mask": masks.get(positions)}
        module.calibrate_on(*args, **kwargs)  # type: ignore[operator]

    memories = [x for x in model.modules() if isinstance(x, Attention | KeyValueMemory)]
    if not memories:  # those of a converted model are of another kind: integration.calibrate sets them
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

    Call it with the model's own inputs: ``calibrate(model, **batch)``. It takes one forward pass, and the result is
    saved with the model.
    """
    training = model.training
    model.eval()
    try:
        with calibrating(model):
            model(*args, **batch)
    finally:
        model.train(training)
