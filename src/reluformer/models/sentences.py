"""Which sentence of a document every token is in, from the separators between them."""

from typing import Any

from torch import Tensor

from reluformer.memory.sentences import sentence_of


def given(name: str, ids: Tensor | None) -> Tensor:
    """The tokens, which embeddings cannot replace."""
    if ids is None:
        raise ValueError(f"{name} must be given to a model with a sentence_bias, which looks for separators, got None")
    return ids


def of_source(ids: Tensor, separator: int) -> Tensor:
    """Sentences ``(B, N)`` of the tokens that are read: a separator belongs to the sentence that it ends."""
    ends = ids.eq(separator)
    return ends.cumsum(-1) - ends.long()


def of_target(ids: Tensor, separator: int, cache: Any = None) -> Tensor:
    """Sentences ``(B, N)`` that the tokens continue: what follows a separator is of the next sentence.

    The keys of the tokens before, in the first layer of the cache, tell which was the last. They know it modulo the
    number of their channels, and no more is needed.
    """
    sentences = ids.eq(separator).cumsum(-1)
    last = None if cache is None else _last_keys(cache.self_attention_cache)
    return sentences if last is None else sentences + sentence_of(last)


def _last_keys(cache: Any) -> Tensor | None:
    """Keys ``(B, H, 1, D)`` of the last token in a cache, or None if there is none."""
    if getattr(cache, "offloading", False):
        raise ValueError("past_key_values must not be offloaded: a sentence_bias reads the keys of the step before")
    keys = cache.layers[0].keys if cache.layers else None
    past = cache.get_seq_length()
    if keys is None or (isinstance(past, int) and past == 0):
        return None
    if isinstance(past, int):
        return keys[:, :, past - 1 : past]
    return keys.index_select(2, (past - 1).clamp_min(0).view(1))  # counted on the device; zeros where there is none
