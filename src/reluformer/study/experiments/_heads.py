"""Heads of attention as a few numbers each, and which of a model's heads its twin has nothing like."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

FAR = 0.25  # share of the document that lies between a query and a far key, at least
BEYOND = 256  # tokens that lie between a query and a key beyond them, more than


@dataclass(frozen=True)
class Head:
    """What one head does with its weight, every row normalised; rows without any do not count.

    Attributes:
        far: Share on keys that are a quarter of the document away, or more.
        beyond: Share on keys that are more than 256 tokens away.
        marks: Share on punctuation.
        stops: Share on common words.
        distance: Mean distance of a query and its keys, in tokens.
        entropy: Mean entropy of a row, in nats.
    """

    far: float
    beyond: float
    marks: float
    stops: float
    distance: float
    entropy: float


def describe(weights: Tensor, marks: Tensor, stops: Tensor) -> Head:
    """A head from its weights ``(N, N)`` on a document and from which of its tokens are what, ``(N,)``."""
    shares = normalised(weights)
    live = shares.sum().clamp_min(1e-30)  # as many as rows that have weight
    apart = distances(len(shares))
    received = shares.sum(0) / live  # (N,)
    return Head(
        far=float((shares * (apart >= FAR * len(shares))).sum() / live),
        beyond=float((shares * (apart > BEYOND)).sum() / live),
        marks=float(received[marks].sum()),
        stops=float(received[stops].sum()),
        distance=float((shares * apart).sum() / live),
        entropy=float(-torch.xlogy(shares, shares).sum() / live),
    )


def mean_head(heads: Sequence[Head]) -> Head:
    """One head over several documents, or several heads as one."""
    return Head(*torch.tensor([astuple(head) for head in heads], dtype=torch.float64).mean(0).tolist())


def strangeness(ours: Sequence[Head], theirs: Sequence[Head]) -> list[float]:
    """How far each of our heads is from the nearest of theirs.

    Each number is taken in units of its standard deviation over all heads of both, since tokens, shares and nats do
    not compare; one that is the same everywhere says nothing.
    """
    both = torch.tensor([astuple(head) for head in (*ours, *theirs)], dtype=torch.float64)  # (heads, numbers)
    spread = both.std(0, correction=0)
    scaled = both / torch.where(spread > 0, spread, torch.inf)
    nearest = torch.cdist(scaled[: len(ours)], scaled[len(ours) :]).amin(1)
    found: list[float] = nearest.tolist()
    return found


def normalised(weights: Tensor) -> Tensor:
    """Rows ``(N, M)`` that sum to 1, or to 0 where there is no weight."""
    weights = weights.clamp_min(0)
    return weights / weights.sum(1, keepdim=True).clamp_min(1e-30)


def distances(n: int) -> Tensor:
    """Tokens between any two, ``(N, N)``."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs()
