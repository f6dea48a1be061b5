"""The activation family: from scores over slots to weights.

Some act on each score alone (relu and its relatives), some normalise a row (softmax and its sparse relatives). All of
them give hidden slots weight 0, so that a row that sees nothing is all zeros.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_squared": lambda s: F.relu(s).square(),
    "relu_fourth": lambda s: F.relu(s).square().square(),
    "relu_eighth": lambda s: F.relu(s).square().square().square(),
    "relu6": F.relu6,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "identity": lambda s: s,
    "sigmoid": torch.sigmoid,  # weigh first subtracts the logarithm of the number of slots
    "plain_sigmoid": torch.sigmoid,  # of the score as it is
}
SPARSE = ("sparsemax", "entmax15")
NORMALISED = ("softmax", *SPARSE)
ACTIVATIONS = (*POINTWISE, *NORMALISED)
# Activations that relu_attention computes, and its power for each.
FUSED = {"relu": 1, "relu_squared": 2, "relu_fourth": 4, "relu_eighth": 8}

STEPS = 4001  # points of the numeric integral over the normal distribution, from -8 to 8


def require(activation: str) -> None:
    """Fail when a memory is created if its activation cannot be imported, and make ``torch.compile`` accept it."""
    if activation in SPARSE:
        # Dynamo cannot trace entmax's functions, and would leave everything that calls them uncompiled.
        torch.compiler.allow_in_graph(_entmax(activation))  # type: ignore[no-untyped-call]


def weigh(scores: Tensor, activation: str, count: Tensor | float, visible: Tensor | None = None) -> Tensor:
    """Weights of ``scores (..., N, M)``, before any scale.

    Args:
        scores: Scores over the last dimension.
        activation: A name in :data:`ACTIVATIONS`.
        count: Number of slots each row sees, ``(..., N, 1)`` or one number; sigmoid gives a score of 0 about 1 / count.
        visible: Boolean, True where a slot may be seen, broadcasts against the scores; None for all.
    """
    if activation in NORMALISED:
        return _normalise(scores, activation, visible)
    if activation == "sigmoid":
        scores = scores - torch.as_tensor(count, dtype=scores.dtype, device=scores.device).clamp_min(1).log()
    weights = POINTWISE[activation](scores)
    return weights if visible is None else weights.masked_fill(~visible, 0.0)


def mean_over_normal(function: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of a function of a standard normal score, by numeric integration."""
    with torch.device("cpu"):  # the model may be under construction on the meta device
        z = torch.linspace(-8, 8, STEPS, dtype=torch.float64)
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        return torch.trapezoid(density * function(z), z)


def _normalise(scores: Tensor, activation: str, visible: Tensor | None) -> Tensor:
    if scores.shape[-1] == 0:
        return scores
    if visible is not None:
        # A finite floor: sparse normalisers add up sorted scores, and a row that sees nothing must not become NaN.
        floor = -1e4 if scores.dtype == torch.float16 else -1e9
        scores = scores.masked_fill(~visible, floor)
    weights = scores.softmax(-1) if activation == "softmax" else _entmax(activation)(scores, dim=-1)
    return weights if visible is None else weights.masked_fill(~visible, 0.0)


def _entmax(name: str) -> Callable[..., Tensor]:
    try:
        import entmax
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'activation {name!r} needs entmax: pip install "reluformer[entmax]"', name="entmax"
        ) from error
    function: Callable[..., Tensor] = getattr(entmax, name)
    return function
