"""The network of the theorem: one hidden layer, here a key-value memory, and softmax over the classes."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reluformer.memory import KeyValueMemory, MemorySettings
from reluformer.study.approximation.boxes import CLASSES, Boxes
from reluformer.study.experiment import Diverged

STREAM = 16  # width of the residual stream that the memory would read in a Transformer
BATCH = 256
LR = 0.03
WARMUP = 0.1  # share of the updates over which the learning rate warms up, on top of a linear decay to 0


class Network(nn.Module):
    """``head(memory(lift(x)))`` with linear maps on both sides, which add no hidden units: the slots are its width."""

    def __init__(self, dimension: int, memory: dict[str, Any], slots: int) -> None:
        super().__init__()
        settings = MemorySettings(alpha=0.0, gamma="none", bias=0.0, slots=slots, **memory)
        self.lift = nn.Linear(dimension, STREAM)
        self.memory = KeyValueMemory(STREAM, settings)
        self.head = nn.Linear(STREAM, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of points ``x (N, dimension)`` in the unit cube."""
        standardised = (x - 0.5) * math.sqrt(12)  # mean 0 and variance 1 under the uniform distribution
        logits: Tensor = self.head(self.memory(self.lift(standardised)))
        return logits

    def predict(self, x: Tensor) -> Tensor:
        """Return the probabilities of the classes."""
        logits: Tensor = self(x)
        return logits.softmax(-1)


def train_network(network: Network, target: Boxes, steps: int, seed: int) -> None:
    """Minimise the cross-entropy on fresh uniform samples; it bounds the L1 error, as ``2 (1 - p) <= -2 log p``.

    Raises:
        Diverged: The loss is not a number.
    """
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=0.0)  # nothing to overfit to
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / (WARMUP * steps), 1.0) * (1 - step / steps)
    )
    for _ in range(steps):
        x = torch.rand(BATCH, target.lower.shape[-1], generator=random)
        loss = F.cross_entropy(network(x), target.class_of(x))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    if not math.isfinite(loss.item()):
        raise Diverged("the loss is not a number")
