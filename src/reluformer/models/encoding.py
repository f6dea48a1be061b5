"""Through layers of self-attention, and what the regulariser makes of their attention."""

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
    """The stream ``x (B, N, width)`` after the layers, what entered each of them, and the sum of their costs.

    ``mask (B, M)`` says which keys are no padding, ``query_mask (B, N)`` which queries, where these are fewer or the
    mask does not say, and ``rotate`` turns queries and keys by their positions. More options go to the layers.
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
    """Which statistics it needs of a batch of so many sequences, as options of an attention."""
    if regulariser is None:
        return {"return_stats": False}
    return {"return_stats": "mass_entropy", "stats_batch": regulariser.sequences(batch)}


def cost_of(
    regulariser: Regulariser, sites: Sequence[AttentionStats], count: Tensor, query_mask: Tensor | None
) -> Tensor:
    """What the regulariser makes of these sites, of which it sees some sequences: a function by itself, to be compiled.

    ``count`` broadcasts against the statistics of all sequences, ``query_mask (B, N)`` is of all.
    """
    seen = sites[0].mass.shape[0]
    return regulariser(sites, count[:seen], None if query_mask is None else query_mask[:seen])
