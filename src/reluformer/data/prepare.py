"""From a corpus to packed tokens, in steps whose results are kept: clean, learn a tokeniser, encode, pack.

What a step writes is named after a hash of everything it depends on, the content of the inputs included, and takes that
name when it is complete. A run that was killed resumes from there; a run with another option redoes what depends on it.
The manifest is written last, and removed before anything that it names: a folder that has one is complete.
"""

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import reluformer
from reluformer.data.cleaning import Cleaner, Cleaning
from reluformer.data.dataset import FORMAT, MANIFEST, TOKENIZER, damaged_files
from reluformer.data.documents import Languages, read_documents
from reluformer.data.files import DataError, check_name, hash_of, hash_of_file, read_json, write_json, written_folder
from reluformer.data.inputs import CleanText, content_of, seen_in
from reluformer.data.packing import LONGEST, Overlong
from reluformer.data.shards import BatchEncoder, is_whole, line_batches, pack_shard, token_type, write_shard
from reluformer.data.tokenizer import check_size, train_tokenizer
from reluformer.data.workers import OrderedMap, refuse_in_workers, workers

KNOWN = "inputs.json"
BATCH = 1 << 20  # bytes of text that a process encodes at a time

# Called with a step, the input it works on, how much is done, and of how much, or None if that is unknown.
Watch = Callable[[str, str, int, int | None], None]


@dataclass(frozen=True)
class Plan:
    """What to prepare.

    Attributes:
        inputs: Training data, see :mod:`reluformer.data.documents`.
        languages: Languages of the two sides.
        valid: Validation data: the same kinds of inputs, never cleaned, so that every sentence is kept.
        vocab: Size of the vocabulary.
        lengths: Lengths to pack to, in tokens of the longer side; 0 for single sentences.
        overlong: What becomes of sentences that are longer than a length by themselves: ``cut`` or ``drop``.
        cleaning: Rules that a training pair must satisfy to be kept.
        sample: Approximate number of bytes to learn the tokeniser from; documents are drawn by a hash of their content.
    """

    inputs: tuple[str, ...]
    languages: Languages
    valid: tuple[str, ...] = ()
    vocab: int = 16000
    lengths: tuple[int, ...] = (0, 512, 1024)
    overlong: Overlong = "cut"
    cleaning: Cleaning = field(default_factory=Cleaning)
    sample: int = 20_000_000

    def __post_init__(self) -> None:
        items = [*self.inputs, *self.valid]
        twice = next((item for item in items if items.count(item) > 1), None)
        if not self.inputs:
            raise DataError("takes at least one input")
        if twice is not None:
            raise DataError(f"{twice} is given twice")
        check_size("vocab", self.vocab)
        lengths = set(self.lengths)
        if not lengths or not 0 <= min(lengths) <= max(lengths) <= LONGEST or len(lengths) < len(self.lengths):
            raise DataError(f"lengths takes different numbers of tokens, 0 to {LONGEST}, got {list(self.lengths)}")
        if self.sample < 1:
            raise DataError(f"sample takes 1 byte or more, got {self.sample}")


def prepare(
    plan: Plan, out: Path, processes: int = 2, watch: Watch = lambda *step: None
) -> tuple[dict[str, Any], bool]:
    """Prepare data in a folder, and return its manifest and whether there was anything to do."""
    refuse_in_workers()
    check_folder(out)
    content = content_of([*plan.inputs, *plan.valid], out / KNOWN)
    settings = {"format": FORMAT, **json.loads(json.dumps(asdict(plan)))}
    key = hash_of([settings, list(content.values())])
    manifest = read_json(out / MANIFEST)
    whole = manifest is not None and manifest.get("key") == key and not damaged_files(out, manifest)
    if whole and _vocabulary(out / TOKENIZER):
        return manifest, False
    run = _Run(plan, out, content, watch)
    run.clean()
    run.learn_tokenizer()
    # Starting a process takes longer than encoding a batch.
    with workers(min(processes, 1 + run.bytes_to_encode() // BATCH)) as mapped:
        run.encode(mapped)
    manifest = {"format": FORMAT, "key": key, **run.describe(settings)}
    write_json(out / MANIFEST, manifest)
    run.forget_the_rest()
    return manifest, True


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be prepared in, since it is none or holds something else."""
    check_name(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file, takes a folder")
    if out.exists() and not (out / KNOWN).exists() and any(out.iterdir()):
        raise DataError(f"{out} holds other files: takes a new or empty folder, or that of an earlier run")


def _vocabulary(folder: Path) -> int:
    """Return the number of tokens of a tokeniser, 0 if it is missing or damaged."""
    match read_json(folder / "tokenizer.json"):
        case {"model": {"vocab": dict(tokens)}}:
            return len(tokens)
    return 0


class _Run:
    """The steps of a preparation, and what they share."""

    def __init__(self, plan: Plan, out: Path, content: dict[str, list[str]], watch: Watch) -> None:
        self.plan, self.out, self.content, self.watch = plan, out, content, watch
        self.texts: dict[str, CleanText] = {}
        self.shards: dict[str, Path] = {}
        self.tokenizer = out / TOKENIZER
        self.tokenizer_key = ""
        self.vocabulary = 0

    def _watcher(self, step: str, item: str, total: int | None) -> Callable[[int], None]:
        return lambda done: self.watch(step, item, done, total)

    def clean(self) -> None:
        """Read every input and keep it as clean text; validation data stays as it is."""
        plan = self.plan
        for item in [*plan.inputs, *plan.valid]:
            rules = plan.cleaning if item in plan.inputs else None
            # What counts as a duplicate depends on the inputs before this one.
            before = [text.key for text in self.texts.values()] if rules is not None else []
            depends = [FORMAT, self.content[item], asdict(plan.languages), rules and asdict(rules), before]
            text = CleanText(self.out / "clean", hash_of(depends))
            if text.report is None:
                cleaner = None if rules is None else Cleaner(rules, plan.languages, seen_in(self.texts.values()))
                documents = read_documents(item, plan.languages)
                text.write(documents, plan.languages, cleaner, self._watcher("clean", item, None))
            self.texts[item] = text
        if not any(self._report(item)["kept"] for item in plan.inputs):
            raise DataError(f"no pair of sentences is left of {', '.join(plan.inputs)}")

    def learn_tokenizer(self) -> None:
        """Learn the vocabulary from a sample of the clean text, and decide where every shard goes."""
        texts = [self.texts[item].key for item in self.plan.inputs]
        self.tokenizer_key = hash_of([FORMAT, texts, self.plan.vocab, self.plan.sample])
        note = self.tokenizer / "key.json"
        if read_json(note) != self.tokenizer_key or not _vocabulary(self.tokenizer):
            tokenizer = train_tokenizer(self._sample(), self.plan.vocab)
            (self.out / MANIFEST).unlink(missing_ok=True)
            with written_folder(self.tokenizer) as folder:
                tokenizer.save_pretrained(folder)
                write_json(folder / note.name, self.tokenizer_key)
        self.vocabulary = _vocabulary(self.tokenizer)
        for item, text in self.texts.items():
            self.shards[item] = self.out / "shards" / hash_of([FORMAT, text.key, self.tokenizer_key])

    def _sample(self) -> Iterator[str]:
        """Iterate over the sentences, in both languages, of documents drawn from the whole corpus."""
        paths = [self.texts[item].lines for item in self.plan.inputs]
        total = sum(path.stat().st_size for path in paths)
        limit = min(self.plan.sample, total) / total * 2.0**64
        done = 0
        for item, path in zip(self.plan.inputs, paths, strict=True):
            with path.open("rb") as file:
                for line in file:
                    done += len(line)
                    if int.from_bytes(hashlib.blake2b(line, digest_size=8).digest()) < limit:
                        self.watch("learn the vocabulary", item, done, total)
                        document = json.loads(line)
                        yield from document[self.plan.languages.source]
                        yield from document[self.plan.languages.target]

    def bytes_to_encode(self) -> int:
        """Return the bytes of clean text whose shard is missing or damaged."""
        return sum(self.texts[item].lines.stat().st_size for item, x in self.shards.items() if not is_whole(x))

    def encode(self, mapped: OrderedMap[Any, Any]) -> None:
        """Write the shards that are missing, and pack every shard to every length."""
        dtype = token_type(self.vocabulary)
        encoder = BatchEncoder(self.tokenizer, self.plan.languages, dtype)
        for item, text in self.texts.items():
            folder = self.shards[item]
            if not is_whole(folder):
                total = text.lines.stat().st_size
                lines = line_batches(text.lines, BATCH, self._watcher("encode", item, total))
                write_shard(folder, mapped(encoder, lines), dtype)
            for length in self.plan.lengths:
                pack_shard(folder, length, self.plan.overlong)

    def describe(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the content of the manifest, but for its format and key."""
        from importlib.metadata import version

        plan = self.plan
        splits = {"train": plan.inputs, "valid": plan.valid}
        return {
            "languages": [plan.languages.source, plan.languages.target],
            "lengths": list(plan.lengths),
            "overlong": plan.overlong,
            "vocabulary": self.vocabulary,
            "settings": settings,
            "versions": {
                "reluformer": reluformer.__version__,
                "tokenizers": version("tokenizers"),
                "transformers": version("transformers"),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "tokenizer": {"folder": TOKENIZER, "sha256": hash_of_file(self.tokenizer / "tokenizer.json")},
            "splits": {
                split: {"shards": [self._describe_shard(item) for item in items]}
                for split, items in splits.items()
                if items
            },
        }

    def _describe_shard(self, item: str) -> dict[str, Any]:
        folder = self.shards[item]
        packed = {str(n): pack_shard(folder, n, self.plan.overlong) for n in self.plan.lengths}
        about = {"input": item, "content": self.content[item], "folder": folder.relative_to(self.out).as_posix()}
        return {**about, "cleaning": self._report(item), **read_json(folder / "shard.json"), "packed": packed}

    def _report(self, item: str) -> dict[str, Any]:
        report = self.texts[item].report
        assert report is not None  # only complete texts are put here
        return report

    def forget_the_rest(self) -> None:
        """Remove files of earlier runs that this one does not use."""
        keys = {text.key for text in self.texts.values()} | {folder.name for folder in self.shards.values()}
        steps = [*(self.out / "clean").iterdir(), *(self.out / "shards").iterdir()]
        unused = [path for path in steps if path.name.partition(".")[0] not in keys]
        for path in [*unused, *self.out.rglob("*.tmp")]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
