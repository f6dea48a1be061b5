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


def of_keys(k: Tensor, sentences: Tensor | None) -> Tensor:
    """Keys ``(B, H, M, D)`` of these sentences ``(B, M)``; None for slots, which are in none and lose nothing."""
    code = k.new_zeros(_count(k)) if sentences is None else _code(sentences, k)[:, None]
    return _replaced(k, code)


def of_queries(q: Tensor, sentences: Tensor, loss: Tensor, scale: float) -> Tensor:
    """Queries ``(B, H, N, D)`` of these sentences ``(B, N)``, whose scores with keys of others lose ``loss (H,)``."""
    code = 1 - _code(sentences, q)[:, None]  # (B, 1, N, S)
    return _replaced(q, code * (-loss / scale).to(q.dtype)[:, None, None])


def sentence_of(k: Tensor) -> Tensor:
    """Sentences ``(B, M)`` of keys ``(B, H, M, D)``, modulo the number of channels."""
    return torch.cat([k[:, 0, :, where] for where in _reserved(k)], dim=-1).argmax(-1)


def _code(sentences: Tensor, like: Tensor) -> Tensor:
    count = _count(like)
    return (sentences[..., None] % count == torch.arange(count, device=like.device)).to(like.dtype)


def _count(x: Tensor) -> int:
    return max(LEAST, x.shape[-1] // SHARE // 2 * 2)


def _reserved(x: Tensor) -> tuple[slice, slice]:
    """As many channels of either half: rotary positions turn one of each together, the first of them slowest."""
    pairs, half = _count(x) // 2, x.shape[-1] // 2
    return slice(1, 1 + pairs), slice(half + 1, half + 1 + pairs)


def _replaced(x: Tensor, code: Tensor) -> Tensor:
    (begin, end), (again, last) = ((where.start, where.stop) for where in _reserved(x))
    one, other = code.expand(*x.shape[:-1], -1).chunk(2, dim=-1)
    return torch.cat([x[..., :begin], one, x[..., end:again], other, x[..., last:]], dim=-1)
