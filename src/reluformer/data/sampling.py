"""A random sample of sentence pairs in one pass over the inputs, the same whatever their order."""

import hashlib
import heapq
from collections.abc import Callable, Iterable
from itertools import chain

from reluformer.data.documents import Document, Languages, read_documents

Drawn = tuple[int, str, str, str]  # the pair's lot, its place, source, target


def sample_pairs(
    items: Iterable[str],
    languages: Languages,
    count: int,
    seed: int = 0,
    watch: Callable[[int], None] = lambda done: None,
) -> list[Document]:
    """Draw ``count`` pairs, or all if there are fewer, as documents of one sentence each, in random order.

    Every pair draws a lot, a hash of the seed and of its text, and the lowest win; a repeated pair wins only once.

    Args:
        items: Inputs, see :mod:`reluformer.data.documents`.
        languages: Languages of the two sides.
        count: Number of pairs to draw.
        seed: Seed of the lots: another seed, another sample.
        watch: Called with the number of pairs read so far.
    """
    winners: list[tuple[int, Drawn]] = []  # a heap with the highest lot on top
    lots: set[int] = set()
    read = 0
    for document in chain.from_iterable(read_documents(item, languages) for item in items):
        for i, (source, target) in enumerate(zip(document.source, document.target, strict=True)):
            lot = _lot(seed, source, target)
            if lot in lots or (len(winners) == count and lot > -winners[0][0]):
                continue
            drawn = (-lot, (lot, f"{document.id}:{document.first + i}", source, target))
            lots.add(lot)
            if len(winners) < count:
                heapq.heappush(winners, drawn)
            else:
                lots.remove(-heapq.heapreplace(winners, drawn)[0])
        read += len(document.source)
        watch(read)
    return [Document(name, [source], [target]) for _, (_, name, source, target) in sorted(winners, reverse=True)]


def _lot(seed: int, source: str, target: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}\n{source}\n{target}".encode(), digest_size=8).digest())
