"""Documents in, translated documents out: as many sentences as came in, in the same order."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reluformer.data.batching import CostBatches
from reluformer.data.documents import Languages
from reluformer.data.files import DataError
from reluformer.data.language import doubt
from reluformer.data.packing import join_sentences, split_sentences
from reluformer.data.tokenizer import EOS_ID, PAD_ID, SEP, SEP_ID, encode
from reluformer.pretrained import languages_of
from reluformer.translation.engine import (
    THREADS,
    Engine,
    Stepper,
    beam_search,
    can_step,
    greedy_search,
    obstacle,
)
from reluformer.translation.formats import is_text
from reluformer.translation.windows import Window, split_overlong, windows_of

# Training packs by the longer side. The target's length is not known, and German, say, takes up to a quarter more
# tokens than English: windows filled to the brim would ask for targets longer than any the model has seen.
SOURCE_SHARE = 0.8
SENTENCE = 256  # tokens of a sentence, where no length says how many the model can take
MOST_BEAMS = 128  # more than anybody searches with, and fewer than any vocabulary has tokens
MOST_PENALTY = 10  # likewise: lengths to that power are still finite
SHORTEST = 8  # tokens of a window: fewer leave no room for a character that takes several
POOL = 16  # batches' worth of windows that are sorted by length together
COSTS = {"cuda": 65536, "cpu": 8192}  # of a batch: a GPU wants many rows at once, a CPU batches that fit its caches

REPLACEMENT = "\ufffd"  # stands for bytes that are no character: nobody wants to read it
# Whatever would end a line, and plain white space; a no-break space is part of the text.
_BLANKS = re.compile("[ \t\n\r\f\v\x1c-\x1f\x85\u2028\u2029]+")


class Written(NamedTuple):
    """A translated window: the index of its document, and the tokens on both sides, ``</s>`` last."""

    document: int
    window: Window
    source: list[int]
    target: list[int]


class Translator:
    """A model that translates documents of any length.

    Sentences go through the model in windows, with some of the sentences before them as context. Where the model does
    not write as many sentences as it was given, the window is halved, down to a single sentence: so no sentence is lost
    or doubled, whatever the model does.

    Args:
        model: Encoder-decoder of transformers; it runs on its own device and in its own dtype, in eval mode.
        tokenizer: Tokeniser of :mod:`reluformer.data.tokenizer`, bare or wrapped by transformers.
        length: Maximum number of tokens on the longer side of a window, as in training; 0 or 1 for single sentences.
        context: Share of a window for the sentences before it.
        beam: Number of hypotheses that the search keeps; 1 is greedy.
        length_penalty: Exponent of the length: above 0 prefers longer translations, below 0 shorter ones.
        cost: Maximum cost of a batch, in tokens times beams, see :class:`~reluformer.data.batching.CostBatches`;
            None for what suits the device.
        integers: Whether to multiply in int8 instead of floats, which takes a CPU and a model without an
            :func:`~reluformer.translation.engine.obstacle`.
        languages: Languages that the model translates, if known.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        length: int,
        context: float = 0.2,
        beam: int = 5,
        length_penalty: float = 1.0,
        cost: int | None = None,
        integers: bool = False,
        languages: Languages | None = None,
    ) -> None:
        length = 0 if length == 1 else length  # as in packing
        if length != 0 and length < SHORTEST:
            raise DataError(f"length takes 0 or {SHORTEST} tokens or more, got {length}")
        if not 0 <= context < 1:
            raise DataError(f"context takes a share from 0 to below 1, got {context}")
        if not 1 <= beam <= MOST_BEAMS:
            raise DataError(f"beam takes 1 to {MOST_BEAMS}, got {beam}")
        if not abs(length_penalty) <= MOST_PENALTY:
            raise DataError(f"length_penalty takes -{MOST_PENALTY} to {MOST_PENALTY}, got {length_penalty}")
        if cost is not None and cost < 1:
            raise DataError(f"cost takes 1 or more, got {cost}")
        if integers and (reason := obstacle(model)) is not None:
            raise DataError(f"int8 takes a ReLUFormer of plain memories on a CPU, got {reason}")
        self.model, self.tokenizer, self.integers, self.languages = model, _bare(tokenizer), integers, languages
        self._engine: Engine | Stepper | None = None
        self.positions = _positions(model.config)
        if self.positions and length > self.positions:
            raise DataError(f"length takes at most the {self.positions} positions of the model, got {length}")
        self.length, self.context, self.beam, self.length_penalty = length, context, beam, length_penalty
        self.cost = cost or COSTS.get(model.device.type, COSTS["cuda"])
        self.room = int(length * SOURCE_SHARE)
        self.longest = length or min(SENTENCE, self.positions or SENTENCE)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        device: str = "auto",
        length: int | None = None,
        precision: str = "auto",
        **options: Any,
    ) -> "Translator":
        """Load a model with its tokeniser from a folder.

        Args:
            folder: Folder that ``reluformer train`` wrote, or ``save_pretrained`` of both model and tokeniser.
            device: ``cpu``, ``cuda``, or ``auto`` for the GPU if there is one.
            length: As above; None for the length that the model was trained on, see :func:`trained_length`.
            precision: ``int8``, ``bf16``, ``fp32``, or ``auto``: int8 on a CPU if the weights are int8, else bf16 where
                the device multiplies it natively.
            options: The other arguments of the class.
        """
        from reluformer.translation.loading import choose_device, load_model, trained_length, wants_integers

        integers = wants_integers(precision, choose_device(device), Path(folder))
        model, tokenizer = load_model(Path(folder), device, "int8" if integers else precision)
        integers = precision == "int8" or (integers and obstacle(model) is None)
        length = trained_length(model.config) if length is None else length
        options = {"languages": languages_of(Path(folder))} | options
        return cls(model, tokenizer, length=length, integers=integers, **options)

    def translate(
        self,
        documents: Iterable[Sequence[str]],
        *,
        watch: Callable[[float], None] | None = None,
        written: Callable[[Written], None] | None = None,
    ) -> Iterator[list[str]]:
        """Translate a stream of documents, lists of sentences.

        Several documents are read ahead, so that windows of similar length share a batch; but for rounding, a
        translation does not depend on the others in its batch. Sentences without a letter come back as they are.

        Args:
            documents: Documents, read as a stream.
            watch: Called with the number of sentences done since the last call; a piece of an overlong sentence counts
                as a fraction, a window that must be redone as 0.
            written: Called with every window whose translation is accepted.
        """
        pool: list[_Document] = []
        filled = 0
        for number, sentences in enumerate(documents):
            pool.append(_Document(self, sentences, number))
            filled += sum(map(len, pool[-1].units))
            if filled * self.beam >= POOL * self.cost:
                yield from self._translate(pool, watch, written)
                pool, filled = [], 0
        yield from self._translate(pool, watch, written)

    def _translate(
        self,
        pool: list["_Document"],
        watch: Callable[[float], None] | None,
        written: Callable[[Written], None] | None,
    ) -> Iterator[list[str]]:
        """Translate in rounds: windows that did not come out right are redone as smaller ones."""
        todo = [(document, window) for document in pool for window in document.windows]
        while todo:
            sources = [join_sentences(document.units[window.start : window.end]) for document, window in todo]
            batches = CostBatches([len(x) for x in sources], max(1, self.cost // self.beam), shuffle=False)
            again = []
            for batch in batches:
                for i, target in zip(batch, self._search([sources[i] for i in batch]), strict=True):
                    document, window = todo[i]
                    if not document.accept(window, target):
                        again += [(document, smaller) for smaller in window.smaller()]
                        if watch:
                            watch(0.0)  # a sign of life, though nothing is done
                        continue
                    if watch:
                        watch(document.share(window))
                    if written:
                        written(Written(document.number, window, sources[i], target))
            todo = again
        for document in pool:
            yield document.lines()

    def doubt(self, sentences: Iterable[str]) -> str | None:
        """Return a warning about text that the model cannot read, see :func:`reluformer.data.language.doubt`.

        :meth:`translate` itself does not check: it translates any text.
        """
        return doubt(sentences, self.languages)

    def settings(self) -> dict[str, Any]:
        """Return the settings that a translation depends on, besides the model."""
        names = ("length", "context", "beam", "length_penalty", "cost")
        return {name: getattr(self, name) for name in names} | {
            "device": str(self.model.device),
            "dtype": "int8" if self.integers else str(self.model.dtype).removeprefix("torch."),
        }

    def most_new(self, tokens: int) -> int:
        """Return the maximum number of tokens in the translation of ``tokens`` tokens.

        Twice as many and a few more: real translations stay well below, short ones have room for what a language spells
        out, and a model that repeats itself is stopped.
        """
        return min(2 * tokens + 16, self.positions or 2 * tokens + 16)

    def _search(self, sources: list[list[int]]) -> list[list[int]]:
        """Return the tokens of the translations, ``</s>`` last."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                return self._found(sources) if can_step(self.model) else self._generated(sources)
        except torch.OutOfMemoryError:
            if len(sources) == 1:
                width = len(sources[0])
                raise DataError(f"out of memory at {width} tokens: takes a smaller length or beam") from None
        finally:
            self.model.train(training)
        half = len(sources) // 2  # out here, where the memory of the failed attempt is free
        return self._search(sources[:half]) + self._search(sources[half:])

    def _found(self, sources: list[list[int]]) -> list[list[int]]:
        """Translate with searches of our own."""
        if self._engine is None or not self._engine.is_current(self.model):
            self._engine = self._make_engine()
        limits = [self.most_new(len(x)) for x in sources]
        with THREADS if self.model.device.type == "cpu" else nullcontext():
            if self.beam == 1:
                return greedy_search(self._engine, sources, limits)
            return beam_search(self._engine, sources, limits, self.beam, self.length_penalty)

    def _make_engine(self) -> Engine | Stepper:
        if obstacle(self.model) is not None:
            return Stepper(self.model)
        floats = "bf16" if self.model.dtype == torch.bfloat16 else "fp32"
        return Engine(self.model, "int8" if self.integers else floats)

    def _generated(self, sources: list[list[int]]) -> list[list[int]]:
        """Translate with the model's own ``generate``."""
        from transformers import LogitsProcessorList

        width, device = max(map(len, sources)), self.model.device
        tokens = torch.tensor([x + [PAD_ID] * (width - len(x)) for x in sources], device=device)  # (B, N)
        lengths = torch.tensor([len(x) for x in sources], device=device)  # (B,)
        limits = [self.most_new(len(x)) for x in sources]
        options: dict[str, Any] = {"num_beams": self.beam, "do_sample": False, "max_new_tokens": max(limits)}
        if self.beam > 1:
            options |= {"length_penalty": self.length_penalty, "early_stopping": False}
        options["logits_processor"] = LogitsProcessorList([_Limits(torch.tensor(limits, device=device), self.beam)])
        mask = (torch.arange(width, device=device) < lengths[:, None]).long()
        rows = self.model.generate(input_ids=tokens, attention_mask=mask, **options)
        return [_until_end(row[1:]) for row in rows.tolist()]  # the first token is the one that starts every target


class _Limits:
    """A logits processor that ends every sequence at its own limit, not at that of the longest in the batch."""

    def __init__(self, limits: Tensor, beam: int) -> None:
        self.limits, self.first = limits.repeat_interleave(beam), int(limits.min())  # (B * beam,)

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Leave sequences that have one token left nothing but ``</s>``."""
        written = tokens.shape[1]  # the start token included, hence also the number of the token to come
        if written < self.first:
            return scores
        ending = torch.full_like(scores, -math.inf)
        ending[:, EOS_ID] = 0
        return torch.where((self.limits <= written)[:, None], ending, scores)


class _Document:
    """A document in progress: what is sent to the model for each of its lines, and what came back."""

    def __init__(self, translator: Translator, sentences: Sequence[str], number: int) -> None:
        self.number, self.sentences, self.tokenizer = number, sentences, translator.tokenizer
        self.units: list[list[int]] = []  # what is sent: sentences, or pieces of those that are too long
        self.line: list[int] = []  # which sentence a unit belongs to
        texts = [tidy(sentence) for sentence in sentences]
        sent = [i for i, text in enumerate(texts) if is_text(text)]
        for i, tokens in zip(sent, encode(self.tokenizer, [texts[i] for i in sent]), strict=True):
            units = [tokens] if len(tokens) < translator.longest else self._pieces(tokens, translator)
            self.units += units
            self.line += [i] * len(units)
        self.pieces = Counter(self.line)
        self.windows = windows_of([len(unit) + 1 for unit in self.units], translator.room, translator.context)
        self.written: list[str] = [""] * len(self.units)

    def _pieces(self, tokens: list[int], translator: Translator) -> list[list[int]]:
        """Split an overlong sentence into several, without the spaces between them."""
        most = (translator.room or translator.longest) - 1
        pieces = [list(piece) for piece in split_overlong(tokens, most, self.tokenizer.decode)]
        texts = [tidy(self.tokenizer.decode(piece)) for piece in pieces]
        # Without its space a word may take more tokens: the space is removed only where they fit.
        return [
            plain if len(plain) < translator.longest else piece
            for piece, text, plain in zip(pieces, texts, encode(self.tokenizer, texts), strict=True)
            if text
        ]

    def accept(self, window: Window, target: list[int]) -> bool:
        """Keep what the model wrote if its sentences match those of the window one to one and none is empty."""
        decoded = self.tokenizer.decode_batch(split_sentences(target))
        texts = [tidy(text.replace(REPLACEMENT, "")) for text in decoded]
        if not window.smaller():
            texts = [" ".join(filter(None, texts))]
        elif len(texts) != window.end - window.start or not all(texts):
            return False
        self.written[window.first : window.end] = texts[window.first - window.start :]
        return True

    def share(self, window: Window) -> float:
        """Return how many sentences a window finishes, where a piece of a sentence counts as a fraction."""
        return sum(1 / self.pieces[self.line[unit]] for unit in range(window.first, window.end))

    def lines(self) -> list[str]:
        """Return the translations, one for each sentence; a sentence without a letter is unchanged."""
        found: dict[int, list[str]] = {i: [] for i in self.line}
        for i, text in zip(self.line, self.written, strict=True):
            found[i].append(text)
        return [" ".join(filter(None, found[i])) if i in found else x for i, x in enumerate(self.sentences)]


def tidy(text: str) -> str:
    """Return a text as one line, with single spaces and none around it."""
    return _BLANKS.sub(" ", text).strip(" ")


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS_ID)] + [EOS_ID] if EOS_ID in tokens else tokens


def _bare(tokenizer: Any) -> Any:
    """Return a copy of the tokeniser without the wrapper of transformers, to which text is always text."""
    from tokenizers import Tokenizer

    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if tokenizer.token_to_id(SEP) != SEP_ID:
        raise DataError(f"the tokeniser has no {SEP} as token {SEP_ID}: it is none of reluformer data")
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.encode_special_tokens = True
    bare.no_padding()
    bare.no_truncation()
    return bare


def _positions(config: Any) -> int | None:
    """Return the maximum number of positions of a sequence, or None if the model sets no limit."""
    if getattr(config, "positions", "learned") in ("sinusoidal", "rotary"):
        return None
    return getattr(config, "max_position_embeddings", None)
