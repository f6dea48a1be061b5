"""The translation that the demo shows: a document through a model, timed, with a report of what its memories did."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from reluformer.data.documents import Languages
from reluformer.data.files import DataError
from reluformer.data.speech import speech
from reluformer.demo.heads import HeadsShown, by_words, choose_heads
from reluformer.demo.words import Pair, pairs_of, sentences_of
from reluformer.machine import at_work
from reluformer.memory.activations import FUSED
from reluformer.memory.settings import MemorySettings
from reluformer.pretrained import languages_of, name_of
from reluformer.report.maps import AttentionMap, HeadChoice
from reluformer.report.measure import memory_report
from reluformer.report.records import MemoryReport
from reluformer.report.watch import places
from reluformer.translation.attention import window_batch, window_maps
from reluformer.translation.engine import THREADS
from reluformer.translation.progress import sentences_done
from reluformer.translation.translator import Translator, Written


@dataclass(frozen=True)
class Demonstration:
    """Everything that the demo shows.

    Attributes:
        model: Display name of the model.
        languages: Languages that the model translates, if known.
        settings: Settings of its cross-attention.
        machine: Description of the machine that it ran on.
        parameters: Number of the model's parameters.
        megabytes: Size of its weights on disk.
        dtype: Data type in which the search multiplied.
        sentences: Sentences of the document.
        translations: Translation of every sentence.
        seconds: Duration of the translation, without loading and measuring.
        windows: Windows that went through the model, in the order of the document.
        pairs: The sentences and their translations as words with the positions of their tokens.
        longest: Longest of the windows, the one that is measured and drawn.
        report: What every memory did on the longest window.
        heads: Heads of attention that are shown, on the longest window.
        alignment: For every window, the shares that words of the translation gave to words of the source under the
            first of the cross-attention heads, ``(words, words)``: rows are words of sentences that count in this
            window, columns all words that it read.
    """

    model: str
    languages: Languages | None
    settings: MemorySettings
    machine: str
    parameters: int
    megabytes: float
    dtype: str
    sentences: list[str]
    translations: list[str]
    seconds: float
    windows: list[Written]
    pairs: list[Pair]
    longest: Written
    report: MemoryReport
    heads: HeadsShown
    alignment: list[Tensor]

    @classmethod
    def of(cls, folder: Path) -> "Demonstration":
        """Translate the document with the model of a folder; one that cannot be shown is a :class:`DataError`."""
        translator = Translator.load(folder)
        settings = _settings(folder, translator)
        sentences = speech()
        windows: list[Written] = []
        with sentences_done("translating", len(sentences)) as watch:
            began = time.perf_counter()
            (translations,) = translator.translate([sentences], watch=watch, written=windows.append)
            seconds = time.perf_counter() - began
        windows.sort(key=lambda x: x.window)
        longest = max(windows, key=lambda x: len(x.source) + len(x.target))
        heads = choose_heads(translator, longest)
        pairs = pairs_of(translator.tokenizer, windows)
        return cls(
            model=name_of(folder),
            languages=languages_of(folder),
            settings=settings,
            machine=at_work(translator.model.device, THREADS.fewest),
            parameters=translator.model.num_parameters(),
            megabytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6,
            dtype=translator.settings()["dtype"],
            sentences=sentences,
            translations=translations,
            seconds=seconds,
            windows=windows,
            pairs=pairs,
            longest=longest,
            report=memory_report(translator.model, window_batch(translator.model, longest)),
            heads=heads,
            alignment=_alignment(translator, windows, pairs, heads.cross[0].map),
        )

    @property
    def tokens(self) -> tuple[int, int]:
        """Number of source and target tokens, without the context that windows repeat."""
        pairs = [(sum(w.tokens for w in pair.source), sum(w.tokens for w in pair.target)) for pair in self.pairs]
        return sum(x for x, _ in pairs), sum(x for _, x in pairs)

    @property
    def words(self) -> int:
        """Number of words in the source."""
        return sum(len(sentence.split()) for sentence in self.sentences)

    def zeros(self, kind: str) -> float:
        """Share of the weights of a kind of memory, ``attention`` or ``key-value``, that are exactly zero."""
        heads = [head for site in self.report.sites if site.kind == kind for head in site.heads]
        zeros = sum(head.rows - head.live + head.live * (head.zeros or 0.0) for head in heads)
        return zeros / max(1, sum(head.rows for head in heads))


def _settings(folder: Path, translator: Translator) -> MemorySettings:
    """Return the settings of cross-attention; refuse a model without ReLU everywhere, which has no zeros to show."""
    try:
        memories = places(translator.model)
    except ValueError as error:
        raise DataError(f"{folder} cannot be shown: {error}") from None
    for memory, place in memories.items():
        settings = memory.settings
        for site, activation in ((place.site, settings.activation), (place.slots.site, settings.slot_activation)):
            if activation not in (None, *FUSED):
                found = f"{site} has {activation}"
                raise DataError(f"{folder} cannot be shown: takes a model with ReLU in every memory, {found}")
    return next(memory.settings for memory, place in memories.items() if "cross" in place.site)


def _alignment(
    translator: Translator, windows: Sequence[Written], pairs: Sequence[Pair], head: AttentionMap
) -> list[Tensor]:
    """Compute the shares between words described in :class:`Demonstration`."""
    choice = HeadChoice(head.site, head.layer, head.head)
    shares = []
    for number, written in enumerate(windows):
        (drawn,) = window_maps(translator, written, [choice])
        queries = [word for pair in pairs if pair.window == number for word in pair.target]
        keys = [word for sentence in sentences_of(translator.tokenizer, written.source) for word in sentence]
        shares.append(by_words(drawn.weights, queries, keys))
    return shares
