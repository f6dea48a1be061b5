"""The sentence bias in an engine: queries and keys are marked in place, see :mod:`reluformer.memory.sentences`."""

import torch
from torch import Tensor

from reluformer.memory.attention import Attention
from reluformer.memory.sentences import channels, code


class Parting:
    """What queries and keys hold in the channels that are reserved for their sentences.

    Args:
        memory: Attention of the model, with a ``sentence_bias``.
        order: Channels of a head in the order that they have here, ``(D,)``; None for that of the model.
    """

    def __init__(self, memory: Attention, order: Tensor | None = None) -> None:
        assert memory.sentence_bias is not None
        self.head_dim = memory.head_dim
        self.lost = -memory.sentence_bias.detach().float() * memory.head_dim**0.5  # (H,), in a query
        every = torch.arange(self.head_dim)
        reserved = torch.cat([every[where] for where in channels(self.head_dim)])
        self.where = reserved if order is None else order.argsort()[reserved]

    def mark_keys(self, k: Tensor, sentences: Tensor) -> None:
        """Mark keys ``(S, M, H, D)`` as those of the sentences ``(S, M)``."""
        k[..., self.where] = code(sentences, self.head_dim)[:, :, None].to(k.dtype)

    def mark_queries(self, q: Tensor, sentences: Tensor) -> None:
        """Mark queries ``(S, N, H, D)`` as those of the sentences ``(S, N)``."""
        q[..., self.where] = ~code(sentences, self.head_dim)[:, :, None] * self.lost[:, None]


def parting_of(memory: Attention, order: Tensor | None = None) -> Parting | None:
    """Return the parting of an attention, or None if it has no ``sentence_bias``."""
    return None if memory.sentence_bias is None else Parting(memory, order)
