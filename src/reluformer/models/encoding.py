"""The pass through a stack of self-attention layers, and the cost of their attention."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from reluformer.memory.attention import Rotation
from reluformer.memory.regulariser import Regulariser
from reluformer.ops import AttentionStats

CostOf = Callable[[Regulariser, Sequence[AttentionStats], Tensor, Tensor | None], Tensor]


def encode(
    layers: nn.ModuleList,
    x: Tensor,
    regulariser: Regulariser | None,
    cost_of: CostOf,
    mask: Tensor | None = None,
    rotate: Rotation | None = None,
    query_mask: Tensor | None = None,
    **more: Any,
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """The stream ``x (B, N, width)`` after the layers, the input of each of them, and the sum of their costs.

    ``mask (B, M)`` says which keys are not padding, and ``query_mask (B, N)`` which queries are not; without the latter
    the end of ``mask`` does. ``rotate`` rotates queries and keys by their positions. Other options go to the layers.
    """
    n = x.shape[1]
    if query_mask is None and mask is not None:
        query_mask = mask[:, -n:]
    options = {"key_mask": mask, "query_mask": query_mask, "rotate": rotate, **asked(regulariser, x.shape[0]), **more}
    entered, sites = [], []
    for layer in layers:
        entered.append(x)
        x, stats = layer(x, **options)
        sites.append(stats)
    cost = None
    if regulariser is not None and sites:
        first: Any = layers[0]
        cost = cost_of(regulariser, sites, first.self_attention.memory.count(n, n, mask, x.device), query_mask)
    return x, entered, cost


def asked(regulariser: Regulariser | None, batch: int) -> dict[str, Any]:
    """Options by which an attention computes the statistics that the regulariser needs of ``batch`` sequences."""
    if regulariser is None:
        return {"return_stats": False}
    return {"return_stats": "mass_entropy", "stats_batch": regulariser.sequences(batch)}


def cost_of(
    regulariser: Regulariser, sites: Sequence[AttentionStats], count: Tensor, query_mask: Tensor | None
) -> Tensor:
    """Cost of these sites, whose statistics may cover the first sequences only; a function of its own, to be compiled.

    ``count``, which broadcasts against the statistics, and ``query_mask (B, N)`` are those of all sequences.
    """
    seen = sites[0].mass.shape[0]
    return regulariser(sites, count[:seen], None if query_mask is None else query_mask[:seen])
