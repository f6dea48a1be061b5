"""Sentences as a part of scores: a key of another sentence than the query's loses a learned number.

    s_ij - c_h [sentence_i != sentence_j]

A document's row is many times as long as a sentence's, and most of its keys have nothing to do with the word at hand.
With the loss ``c_h`` a head begins a document where it would begin that sentence alone, and learns how much to see of
the others.

Some channels of a head are reserved for it, not the first, which may hold a constant. That of its sentence is 1 in a
key, the others are 0; in a query it is 0 and the others ``-c_h / scale``. So their product is 0 or ``-c_h / scale``, in
every dtype and on every back end, without a mask. There are fewer channels than sentences in a document: sentences are
told apart modulo their number. And the keys in a cache tell which sentence was the last.
"""

import torch
from torch import Tensor

LEAST = 4  # reserved channels,
SHARE = 8  # or one in so many if those are more
FEWEST = 2 * LEAST  # channels of a head, half of which may be reserved


def channels(head_dim: int) -> tuple[slice, slice]:
    """The reserved ones, as many in either half: rotary positions turn one of each together, the first slowest."""
    pairs, half = max(LEAST, head_dim // SHARE) // 2, head_dim // 2
    return slice(1, 1 + pairs), slice(half + 1, half + 1 + pairs)


def code(sentences: Tensor, head_dim: int) -> Tensor:
    """What the reserved channels of keys hold: ``(...) -> (..., count)``, 1 in that of the sentence and 0 elsewhere."""
    count = 2 * (channels(head_dim)[0].stop - 1)
    marked: Tensor = sentences[..., None] % count == torch.arange(count, device=sentences.device)
    return marked


def of_keys(k: Tensor, sentences: Tensor | None) -> Tensor:
    """Keys ``(B, H, M, D)`` of these sentences ``(B, M)``; None for slots, which are in none and lose nothing."""
    return _with_reserved(k, k.new_zeros(1) if sentences is None else code(sentences, k.shape[-1])[:, None].to(k.dtype))


def of_queries(q: Tensor, sentences: Tensor, loss: Tensor, scale: float) -> Tensor:
    """Queries ``(B, H, N, D)`` of these sentences ``(B, N)``, whose scores with keys of others lose ``loss (H,)``."""
    others = ~code(sentences, q.shape[-1])[:, None]  # (B, 1, N, count)
    most = torch.finfo(q.dtype).max  # float16 has no more than 65504, and what is infinite would be NaN times 0
    return _with_reserved(q, others * (-loss / scale).to(q.dtype).clamp(-most, most)[:, None, None])


def sentence_of(k: Tensor) -> Tensor:
    """Sentences ``(B, M)`` of keys ``(B, H, M, D)``, modulo the number of channels."""
    return torch.cat([k[:, 0, :, where] for where in channels(k.shape[-1])], dim=-1).argmax(-1)


def _with_reserved(x: Tensor, values: Tensor) -> Tensor:
    first, second = channels(x.shape[-1])
    one, other = values.expand(*x.shape[:-1], 2 * (first.stop - 1)).chunk(2, dim=-1)
    between = x[..., first.stop : second.start]
    return torch.cat([x[..., : first.start], one, between, other, x[..., second.stop :]], dim=-1)
