"""Greedy and beam search over an engine or a stepper: the tokens that ``generate`` finds, without its detours.

Sources that are done leave the batch. Beam search follows the rules of ``generate`` with ``early_stopping=False``: a
hypothesis that ends is kept if it is among the best ``beam`` continuations of its step, with its score divided by its
length to the power of the penalty; a source is done when ``beam`` hypotheses are kept and the best unfinished one, at
its present length, is no better than the worst of them.
"""

import itertools
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer.translation.engine import native
from reluformer.translation.engine.model import Engine
from reluformer.translation.engine.stepper import Stepper

HIDDEN = -1e9  # score of a beam that does not exist yet: all start from the first
BLOCK = 64
MANY = 64  # tokens up to which step.c is used, which sorts by insertion


def greedy_search(
    engine: Engine | Stepper, sources: list[list[int]], limits: list[int], fewest: int = 0
) -> list[list[int]]:
    """Write the likeliest token at every step, until the end token, which is forced at the limit.

    Args:
        engine: Engine or stepper of the model.
        sources: Tokens of each source.
        limits: Maximum number of tokens of each target, its end included.
        fewest: Minimum number of tokens of a target, its end included, unless its limit is lower.
    """
    start, end = engine.config.decoder_start_token_id, engine.config.eos_token_id
    decoding = engine.start(sources, 1)
    written: list[list[int]] = [[] for _ in sources]
    under_way = list(range(len(sources)))
    tokens = torch.full((len(sources),), start)
    while under_way:
        logits = decoding.step(tokens)
        if decoding.position < fewest:
            logits[:, end] = -torch.inf
        found = logits.argmax(-1).tolist()
        for source, token in zip(under_way, found, strict=True):
            written[source].append(end if len(written[source]) + 1 == limits[source] else token)
        going = [row for row, source in enumerate(under_way) if written[source][-1] != end]
        if len(going) < len(under_way):
            under_way = [under_way[row] for row in going]
            decoding.keep(torch.tensor(going, dtype=torch.long))
        tokens = torch.tensor([written[source][-1] for source in under_way])
    return written


@dataclass
class _Source:
    """A source in progress, and its best finished hypotheses: score, and the step and row that they ended from."""

    number: int
    limit: int
    ended: list[tuple[float, int, int]] = field(default_factory=list)  # best first

    def is_done(self, length: int, best: float, beam: int) -> bool:
        """Return whether ``length`` is the limit, or the best unfinished score cannot improve on what is kept."""
        return length == self.limit or (len(self.ended) == beam and best <= self.ended[-1][0])


def beam_search(
    engine: Engine | Stepper,
    sources: list[list[int]],
    limits: list[int],
    beam: int,
    length_penalty: float = 1.0,
    fewest: int = 0,
) -> list[list[int]]:
    """Return the best of ``beam`` hypotheses for each source; other arguments as in :func:`greedy_search`."""
    start, end = engine.config.decoder_start_token_id, engine.config.eos_token_id
    decoding = engine.start(sources, beam)
    under_way = [_Source(i, limit) for i, limit in enumerate(limits)]
    history = _History()
    written: list[list[int]] = [[] for _ in sources]
    tokens = torch.full((len(sources) * beam,), start)
    scores = torch.full((len(sources), beam), HIDDEN, dtype=torch.float32)
    scores[:, 0] = 0
    step = 0
    while under_way:
        limited = [step + 1 == source.limit for source in under_way]
        logits = decoding.step(tokens)
        found = _likeliest(engine, logits, 2 * beam, end if step + 1 < fewest else None)
        best, parents, following = _continuations(*found, scores, end, limited)  # (S, 2 * beam)
        step += 1
        ending = following == end
        if bool(ending.any()):
            for row, place in ending[:, :beam].nonzero().tolist():
                source, score = under_way[row], float(best[row, place]) / step**length_penalty
                source.ended.append((score, step - 1, row * beam + int(parents[row, place])))
                source.ended = sorted(source.ended, key=lambda x: -x[0])[:beam]
            going_on = ending.to(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]  # the best unfinished ones
            best, parents, following = (x.gather(1, going_on) for x in (best, parents, following))
        else:
            best, parents, following = best[:, :beam], parents[:, :beam], following[:, :beam]
        rows = (parents + beam * torch.arange(len(under_way))[:, None]).flatten()
        decoding.reorder(rows)
        history.add(rows, following.flatten())
        first = best[:, 0].tolist()
        done = [
            source.is_done(step, score / step**length_penalty, beam)
            for source, score in zip(under_way, first, strict=True)
        ]
        if any(done):
            for source in itertools.compress(under_way, done):
                _, last, leaf = source.ended[0] if source.ended else (0.0, 0, 0)  # none, if all scores are NaN
                written[source.number] = [*history.back_from(last, leaf), end]
            going = [row for row in range(len(under_way)) if not done[row]]
            kept = torch.tensor(going, dtype=torch.long)
            under_way = [under_way[row] for row in going]
            decoding.keep(kept)
            history.keep(kept, beam)
            best, following = best[kept], following[kept]
        scores, tokens = best, following.flatten()
    return written


def _likeliest(engine: Engine | Stepper, logits: Tensor, many: int, never: int | None) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and tokens ``(S * beam, many)`` of the best of each row, best first, without ``never``.

    They are on the host, where the rest of the search is done.
    """
    if engine.compiled and many <= MANY:
        return native.best_tokens(logits, many, never)
    logarithms = logits.log_softmax(-1)
    if never is not None:
        logarithms[:, never] = -torch.inf
    top, tokens = _largest(logarithms, many)
    return top.cpu(), tokens.cpu()


def _continuations(
    top: Tensor, tokens: Tensor, scores: Tensor, end: int, limited: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best ``2 * beam`` of each source, best first: scores, parent beams and tokens, ``(S, 2 * beam)``.

    At most ``beam`` of them end, so at least as many are left to continue with. One of the best of a source is one of
    the best of its beam, so there is no need to sort the whole vocabulary.

    Args:
        top: Log-probabilities of the best ``2 * beam`` tokens of each beam, ``(S * beam, 2 * beam)``.
        tokens: These tokens.
        scores: Scores of the beams, ``(S, beam)``.
        end: Token that ends a target.
        limited: For each source, whether it is at its limit, where only the end may follow.
    """
    beam = scores.shape[1]
    many = 2 * beam
    if any(limited):
        rows = torch.tensor(limited).repeat_interleave(beam)
        top[rows] = -torch.inf
        top[rows, 0], tokens[rows, 0] = 0.0, end
    total = (top + scores.reshape(-1, 1)).view(len(scores), -1)  # (S, beam * 2 * beam)
    best, where = total.topk(many)
    return best, where // many, tokens.view(len(scores), -1).gather(1, where)


def _largest(x: Tensor, many: int) -> tuple[Tensor, Tensor]:
    """Return ``x.topk(many)``, twice as fast on long rows: the largest are in the blocks with the largest maxima."""
    blocks = -(-x.shape[1] // BLOCK)
    if blocks <= many:
        return x.topk(many)
    x = F.pad(x, (0, blocks * BLOCK - x.shape[1]), value=-torch.inf)
    best = x.view(len(x), blocks, BLOCK).amax(-1).topk(many, sorted=False).indices  # (rows, many)
    where = (best[:, :, None] * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)  # (rows, many * BLOCK)
    top, place = x.gather(1, where).topk(many)
    return top, where.gather(1, place)


class _History:
    """Records which row continued from which, with which token; hypotheses are read back from their end."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor]] = []  # rows of the step before, and tokens

    def add(self, rows: Tensor, tokens: Tensor) -> None:
        """Record a step."""
        self.steps.append((rows, tokens))

    def keep(self, sources: Tensor, beam: int) -> None:
        """Renumber rows, of which only those of some sources are left."""
        rows, tokens = (x.view(-1, beam)[sources].flatten() for x in self.steps[-1])
        self.steps[-1] = (rows, tokens)

    def back_from(self, last: int, row: int) -> list[int]:
        """Return the tokens of the hypothesis that was in this row after ``last`` steps."""
        found: list[int] = []
        for rows, tokens in reversed(self.steps[:last]):
            found.append(int(tokens[row]))
            row = int(rows[row])
        return found[::-1]
