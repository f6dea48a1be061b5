"""Attention heads as a few numbers each, and which of a model's heads have no counterpart in its twin."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

FAR = 0.25  # least distance between a query and a far key, as a share of the document
BEYOND = 256  # tokens; keys beyond are further away than this


@dataclass(frozen=True)
class Head:
    """How one head distributes its weight, with every row normalised; dead rows do not count.

    Attributes:
        far: Share of the weight on keys that are at least a quarter of the document away.
        beyond: Share of the weight on keys that are more than 256 tokens away.
        marks: Share of the weight on punctuation.
        stops: Share of the weight on common words.
        distance: Mean distance between a query and its keys, in tokens.
        entropy: Mean entropy of a row, in nats.
    """

    far: float
    beyond: float
    marks: float
    stops: float
    distance: float
    entropy: float


def describe(weights: Tensor, marks: Tensor, stops: Tensor) -> Head:
    """Describe a head by its weights ``(N, N)`` on a document; ``marks`` and ``stops`` are token masks ``(N,)``."""
    shares = normalised(weights)
    live = shares.sum().clamp_min(1e-30)  # the number of live rows
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
    """Return the mean of one head over several documents, or of several heads."""
    return Head(*torch.tensor([astuple(head) for head in heads], dtype=torch.float64).mean(0).tolist())


def strangeness(ours: Sequence[Head], theirs: Sequence[Head]) -> list[float]:
    """Return the distance of each of our heads from the nearest of theirs.

    Each number is in units of its standard deviation over all heads of both models, since tokens, shares and nats do
    not compare; a number that is the same everywhere does not count.
    """
    both = torch.tensor([astuple(head) for head in (*ours, *theirs)], dtype=torch.float64)  # (heads, numbers)
    spread = both.std(0, correction=0)
    scaled = both / torch.where(spread > 0, spread, torch.inf)
    nearest = torch.cdist(scaled[: len(ours)], scaled[len(ours) :]).amin(1)
    found: list[float] = nearest.tolist()
    return found


def normalised(weights: Tensor) -> Tensor:
    """Return rows ``(N, M)`` that sum to 1, or to 0 if they are dead."""
    weights = weights.clamp_min(0)
    return weights / weights.sum(1, keepdim=True).clamp_min(1e-30)


def distances(n: int) -> Tensor:
    """Return the distance between any two positions, in tokens, ``(N, N)``."""
    return (torch.arange(n)[:, None] - torch.arange(n)).abs()
