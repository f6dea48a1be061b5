"""A model as it is, behind the interface of an engine: on a GPU, or with memories that an engine cannot run.

The searches stay on the host, and see only the likeliest tokens of each row. On a GPU a step is one launch of a
CUDA graph; leaving rows out means recording it anew, so finished rows stay until they are half of the batch.
"""

from typing import Any

import torch
from torch import Tensor

from reluformer.models.stepping import StepCache
from reluformer.translation.engine.threads import THREADS

ROOM = 64  # tokens of a target to make room for at first: most targets are sentences


class Stepper:
    """Implements what searches ask of an engine with the model's own modules.

    Args:
        model: Model that :func:`~reluformer.translation.engine.obstacles.can_step`; in eval mode during a search.
    """

    compiled = False  # step.c is for a CPU

    def __init__(self, model: Any) -> None:
        self.model, self.config = model, model.config

    def is_current(self, model: Any) -> bool:
        """Return whether this is a stepper of the same model, whose weights are used as they are."""
        return self.model is model

    def start(self, sources: list[list[int]], beam: int) -> "SteppedDecoding":
        """Read sources and return a decoding with ``beam`` hypotheses of each."""
        return SteppedDecoding(self.model, sources, beam)


class SteppedDecoding:
    """State of the decoder: encoder states of the sources, and the cache of the targets so far.

    Attributes:
        rows: Rows of the batch whose sources are unfinished, on the host like everything that searches see.
        tokens: Last token of every row.
    """

    def __init__(self, model: Any, sources: list[list[int]], beam: int) -> None:
        config, device = model.config, model.device
        self.model, self.beam, self.position = model, beam, 0
        width = max(map(len, sources))
        lengths = torch.tensor([len(x) for x in sources])
        tokens = torch.tensor([x + [config.pad_token_id] * (width - len(x)) for x in sources])  # (S, N)
        mask = (torch.arange(width) < lengths[:, None]).to(device) if int(lengths.min()) < width else None
        read = model.get_encoder()(tokens.to(device), mask)
        self.states = read.last_hidden_state.repeat_interleave(beam, 0)  # (S * beam, N, width)
        self.sentences = None if read.sentences is None else read.sentences.repeat_interleave(beam, 0)
        self.mask = None if mask is None else mask.repeat_interleave(beam, 0)
        self.cache = StepCache(config.decoder_layers, model._can_record(), mask is not None, beam, ROOM)
        self.rows = torch.arange(len(sources) * beam)
        self.tokens = torch.full_like(self.rows, config.decoder_start_token_id)

    def step(self, tokens: Tensor) -> Tensor:
        """Append ``tokens (S * beam,)``, one per hypothesis, and return the logits ``(S * beam, V)`` of the next."""
        if self.model.device.type == "cpu":
            THREADS.follow()
        self.tokens[self.rows] = tokens
        ids = self.tokens.to(self.model.device)[:, None]
        recorded = self.cache.recorded and self.position > 0  # the first step makes the keys of the source
        logits = self.cache.step(ids, self._decode) if recorded else self._decode(ids)
        self.position += 1
        logits = logits[:, 0]
        everybody = len(self.rows) == len(self.tokens)
        return (logits if everybody else logits.index_select(0, self.rows.to(logits.device))).float()

    def _decode(self, ids: Tensor) -> Tensor:
        states, _, _ = self.model.get_decoder()(
            ids, self.states, self.mask, past_key_values=self.cache, source_sentences=self.sentences
        )
        self.sentences = None  # the cache has the keys of the source
        logits: Tensor = self.model.lm_head(states)
        return logits

    def reorder(self, rows: Tensor) -> None:
        """Let every hypothesis continue from the row given in ``rows (S * beam,)``, of the unfinished ones."""
        everybody = torch.arange(len(self.tokens))
        everybody[self.rows] = self.rows[rows]
        self.cache.reorder_cache(everybody)

    def keep(self, sources: Tensor) -> None:
        """Continue with some of the sources only."""
        self.rows = self.rows.view(-1, self.beam)[sources].flatten()
        if not len(self.rows) or (self.cache.recorded and 2 * len(self.rows) > len(self.tokens)):
            return
        where = self.rows.to(self.states.device)
        self.states = self.states.index_select(0, where)
        self.mask = None if self.mask is None else self.mask.index_select(0, where)
        self.cache.keep(self.rows[:: self.beam] // self.beam)
        self.tokens, self.rows = self.tokens[self.rows], torch.arange(len(self.rows))
