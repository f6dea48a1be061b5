"""``reluformer bench translation``: decoding on a CPU with this model, its softmax twin, a stock Marian, CTranslate2.

The model is trained and reads real text, so that it has the zeros that it has in practice. The others have its shape
and random weights, which suffices: all write a given number of tokens, and the others cannot skip anything.
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from reluformer.bench.models import marian_like
from reluformer.bench.timing import Call, medians
from reluformer.data.files import DataError
from reluformer.data.speech import speech
from reluformer.data.tokenizer import SEP_ID, encode
from reluformer.memory.settings import SOFTMAX_ATTENTION
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.models.configuration import SITES
from reluformer.translation.engine import Engine, beam_search, greedy_search
from reluformer.translation.loading import load_model

RELU, TWIN, MARIAN, CT2 = "ReLUFormer", "softmax twin", "Marian", "Marian, CTranslate2"
STOCK = f"{MARIAN}, generate, float32"
RIVAL = f"{CT2} int8"
PAUSE = 0.5  # seconds, until the threads of the previous contestant have gone to sleep
KINDS = {"int8": "int8", "bf16": "bfloat16", "fp32": "float32"}
PRECISIONS = {RELU: ("int8", "bf16", "fp32"), TWIN: ("int8", "fp32")}
PLAIN = "int8, PyTorch alone"  # an engine without step.c
RIVALS = ("int8", "float32")  # CTranslate2's names
NAMES = (
    *(f"{name}, {KINDS[precision]}" for name, precisions in PRECISIONS.items() for precision in precisions),
    *(f"{name}, {PLAIN}" for name in PRECISIONS),
    STOCK,
    *(f"{CT2} {kind}" for kind in RIVALS),
)


@dataclass(frozen=True)
class Shape:
    """The shape that all models have."""

    encoder_layers: int
    decoder_layers: int
    width: int
    heads: int
    slots: int
    vocabulary: int

    @classmethod
    def of(cls, config: ReLUFormerConfig) -> "Shape":
        """Return the shape of a model."""
        depth = config.encoder_layers, config.decoder_layers
        return cls(*depth, config.d_model, config.heads, config.memory("ffn").slots, config.vocab_size)


@dataclass(frozen=True)
class Load:
    """Sources of one length; targets have the same length."""

    length: int
    batch: int
    beams: int


@dataclass
class Row:
    """Results of one contestant."""

    shape: Shape
    load: Load
    name: str
    ms: float | None
    tokens_per_s: float | None
    vs_stock: float | None = None
    vs_ctranslate2: float | None = None
    note: str = ""

    def record(self) -> dict[str, object]:
        """Return the row for a CSV file."""
        names = ("ms", "tokens_per_s", "vs_stock", "vs_ctranslate2", "note")
        measured = {name: getattr(self, name) for name in names}
        return asdict(self.shape) | asdict(self.load) | {"contestant": self.name} | measured


Writer = Callable[[list[list[int]], int], object]  # takes sources and beams; writes as many tokens as a source has


@dataclass(frozen=True)
class Race:
    """The contestants, and the text that all of them are given, as tokens."""

    shape: Shape
    writers: dict[str, Writer]
    text: list[int]

    @classmethod
    def of(cls, folder: Path, scratch: Path, without: Sequence[str] = ()) -> "Race":
        """Set up the model of a folder and its rivals, except those with one of the words ``without`` in their names.

        The files that CTranslate2 reads go to ``scratch``.
        """
        model, tokenizer = load_model(folder, "cpu", "fp32")
        if not isinstance(model, ReLUFormerForConditionalGeneration):
            raise DataError(f"{folder} is a {model.config.model_type}: takes a ReLUFormer")
        shape = Shape.of(model.config)
        torch.manual_seed(0)
        writers: dict[str, Writer] = {}
        for name, ours in ((RELU, model), (TWIN, twin_of(model.config))):
            for precision in PRECISIONS[name]:
                writers[f"{name}, {KINDS[precision]}"] = _engine(Engine(ours, precision))
            writers[f"{name}, {PLAIN}"] = _engine(Engine(ours, "int8", compiled=False))
        marian = stock_marian(model.config)
        writers[STOCK] = _generate(marian)
        writers |= {f"{CT2} {kind}": _ctranslate2(marian, scratch / kind, kind) for kind in RIVALS}
        writers = {name: x for name, x in writers.items() if not any(word.lower() in name.lower() for word in without)}
        text = [token for sentence in encode(tokenizer, speech()) for token in (*sentence, SEP_ID)]
        return cls(shape, writers, text)

    def run(self, load: Load, seconds: float, fewest: int) -> list[Row]:
        """Time all contestants in turns, and return their medians."""
        sources = self.sources(load)

        def call_of(write: Writer) -> Call:
            return lambda: write(sources, load.beams)

        with torch.inference_mode():
            calls = {name: call_of(write) for name, write in self.writers.items()}
            found = medians(calls, torch.device("cpu"), seconds, fewest, most=10, pause=PAUSE)
        return _rows(self.shape, load, found)

    def sources(self, load: Load) -> list[list[int]]:
        """Return consecutive pieces of the text, which starts over at its end."""
        last = self.shape.vocabulary - 2  # the token after it is special to the stock model
        starts = range(0, load.batch * load.length, load.length)
        places = [[(start + i) % len(self.text) for i in range(load.length)] for start in starts]
        return [[min(self.text[i], last) for i in piece] for piece in places]


def _rows(shape: Shape, load: Load, found: dict[str, float | str]) -> list[Row]:
    """Make rows from milliseconds, or from what went wrong."""
    tokens = load.batch * load.length
    rates = {name: 1000 * tokens / ms for name, ms in found.items() if isinstance(ms, float)}
    rows = []
    for name, ms in found.items():
        if not isinstance(ms, float):
            rows.append(Row(shape, load, name, None, None, note=ms))
            continue
        stock, rival = (rates[name] / rates[other] if other in rates else None for other in (STOCK, RIVAL))
        rows.append(Row(shape, load, name, ms, rates[name], stock, rival))
    return rows


def stock_marian(config: ReLUFormerConfig) -> Any:
    """Return a stock Marian of a model's size; its padding is the last token, as CTranslate2's converter expects."""
    last = config.vocab_size - 1
    tokens = {"pad_token_id": last, "eos_token_id": 0, "bos_token_id": None, "decoder_start_token_id": last}
    return marian_like(config, max_position_embeddings=4096, **tokens).eval()


def twin_of(config: ReLUFormerConfig) -> Any:
    """Return a model that differs in its attention alone, which is softmax."""
    sites = {
        site: dataclasses.replace(SOFTMAX_ATTENTION, query_key_norm=config.memory(site).query_key_norm).to_dict()
        for site in SITES[:3]
    }
    model: Any = ReLUFormerForConditionalGeneration(ReLUFormerConfig(**config.to_diff_dict() | sites))
    return model.eval()


def _engine(engine: Engine) -> Writer:
    def write(sources: list[list[int]], beams: int) -> object:
        limits, length = [len(x) for x in sources], len(sources[0])
        if beams == 1:
            return greedy_search(engine, sources, limits, fewest=length)
        return beam_search(engine, sources, limits, beams, fewest=length)

    return write


def _generate(model: Any) -> Writer:
    def write(sources: list[list[int]], beams: int) -> object:
        length = len(sources[0])
        options = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "num_beams": beams}
        return model.generate(input_ids=torch.tensor(sources), **options)

    return write


def _ctranslate2(marian: Any, folder: Path, kind: str) -> Writer:
    """Return a writer that runs the Marian, converted, in its own process: threads of two libraries would interfere.

    The process is started by the first call; without CTranslate2, every call raises an error that says so.
    """
    process: list[ProcessPoolExecutor] = []

    def write(sources: list[list[int]], beams: int) -> object:
        if not process:
            if find_spec("ctranslate2") is None:
                raise RuntimeError('not installed: pip install "reluformer[bench]"')
            _save_stock(marian, folder)
            process.append(ProcessPoolExecutor(1, get_context("spawn")))
        tokens = [[_token(i) for i in source] for source in sources]
        return process[0].submit(_translate, str(folder), kind, torch.get_num_threads(), tokens, beams).result()

    return write


def _save_stock(marian: Any, folder: Path) -> None:
    """Save the Marian and a tokeniser in the form that CTranslate2's converter reads."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    last = marian.config.vocab_size - 1
    words = {"</s>": 0, "<unk>": 1} | {_token(i): i for i in range(2, last)} | {"<pad>": last}
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")),
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )
    for part in (marian, tokenizer):
        part.save_pretrained(folder / "stock")


@lru_cache
def _converted(folder: str, kind: str, threads: int) -> Any:
    import ctranslate2
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    ctranslate2.converters.TransformersConverter(f"{folder}/stock").convert(f"{folder}/{kind}", quantization=kind)
    return ctranslate2.Translator(
        f"{folder}/{kind}", device="cpu", compute_type=kind, inter_threads=1, intra_threads=threads
    )


def _translate(folder: str, kind: str, threads: int, tokens: list[list[str]], beams: int) -> list[list[str]]:
    """Translate, in the other process."""
    length = len(tokens[0])
    bounds = {"min_decoding_length": length, "max_decoding_length": length, "max_input_length": 0}
    found = _converted(folder, kind, threads).translate_batch(tokens, beam_size=beams, **bounds)
    return [x.hypotheses[0] for x in found]


def _token(number: int) -> str:
    return f"t{number}"
