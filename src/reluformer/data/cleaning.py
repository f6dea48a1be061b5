"""Cleaning: pairs of sentences that would teach a model nothing, or nonsense, are dropped and counted.

Where a pair is dropped, its document is split: the sentences before and after it do not follow each other, and joining
them would give a false context. The parts keep the document's name and the number of their first sentence.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from reluformer.data.documents import Document, Languages
from reluformer.data.files import DataError
from reluformer.data.scripts import WEIGHTS, base, share_in_script

EXAMPLES = 3  # dropped pairs that the report shows for every reason
REASONS = {
    "empty": "a side without text",
    "long": "a side too long",
    "ratio": "one side much longer than the other",
    "script": "letters of another script",
    "duplicate": "the same pair again",
}
SHORT = 15.0  # characters added to both sides before their lengths are compared: "No." may be "Das glaube ich nicht."


@dataclass(frozen=True)
class Cleaning:
    """Rules that a pair must satisfy to be kept.

    Attributes:
        longest: Maximum number of characters on a side; 0 for no limit.
        ratio: How many times longer one side may be than the other, with 15 characters added to both; 0 for no limit.
        script: Minimum share of letters in the language's own script; 0 for no minimum.
        phrase: Length of a source, in characters, from which repeated pairs are dropped, all but the first. Shorter
            ones may repeat: a "Thank you." belongs where it was said, and dropping it would split the document.
    """

    longest: int = 2000
    ratio: float = 3.0
    script: float = 0.5
    phrase: int = 40

    def __post_init__(self) -> None:
        for name, value, good, takes in (
            ("longest", self.longest, self.longest >= 0, "0 or more"),
            ("ratio", self.ratio, self.ratio == 0 or self.ratio >= 1, "0, or 1 or more"),
            ("script", self.script, 0 <= self.script <= 1, "a share between 0 and 1"),
            ("phrase", self.phrase, self.phrase >= 0, "0 or more"),
        ):
            if not good:
                raise DataError(f"{name} takes {takes}, got {value}")


@dataclass
class CleaningReport:
    """Counts of what went in and of what was dropped for which reason, with examples."""

    documents: int = 0
    pairs: int = 0
    kept: int = 0
    parts: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def drop(self, reason: str, document: Document, number: int, source: str, target: str) -> None:
        """Count a dropped pair, and keep the first few of every reason as examples."""
        self.dropped[reason] += 1
        shown = self.examples.setdefault(reason, [])
        if len(shown) < EXAMPLES:
            place = {"document": document.id, "sentence": document.first + number}
            shown.append(place | {"source": source[:200], "target": target[:200]})

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict, ready for JSON."""
        return asdict(self)


class SeenPairs:
    """A set of 8-byte hashes in sorted arrays that double in size: 8 bytes per pair, where a Python set takes 70."""

    def __init__(self, fresh: int = 1 << 16) -> None:
        self._fresh: set[int] = set()
        self._most_fresh = fresh
        self._runs: list[np.ndarray] = []  # sorted uint64, from the longest to the shortest

    def add(self, value: int) -> bool:
        """Add a hash and return whether it is new."""
        if value in self._fresh or any(_holds(run, value) for run in self._runs):
            return False
        self._fresh.add(value)
        if len(self._fresh) >= self._most_fresh:
            self.extend(self._take_fresh())
        return True

    def extend(self, run: np.ndarray) -> None:
        """Add a sorted array of new hashes."""
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        if len(run):
            self._runs.append(run)

    def _take_fresh(self) -> np.ndarray:
        run = np.fromiter(self._fresh, np.uint64, len(self._fresh))
        self._fresh.clear()
        return np.sort(run)


def _holds(run: np.ndarray, value: int) -> bool:
    place = int(run.searchsorted(np.uint64(value)))
    return place < len(run) and int(run[place]) == value


def hash_pair(source: str, target: str) -> int:
    """Return an 8-byte hash of a pair, the same on every machine and in every run."""
    content = f"{source}\0{target}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class Cleaner:
    """Cleans a stream of documents.

    Args:
        rules: Rules that a pair must satisfy to be kept.
        languages: Languages of the two sides, which determine their scripts.
        seen: Pairs seen before, in other inputs; pairs that pass are added to it.
    """

    def __init__(self, rules: Cleaning, languages: Languages, seen: SeenPairs | None = None) -> None:
        self.rules, self.languages = rules, languages
        self.report = CleaningReport()
        self.new = array("Q")  # hashes that this stream has added to the pairs seen
        self._seen = SeenPairs() if seen is None else seen
        self._weights = [WEIGHTS.get(base(language), 1.0) for language in (languages.source, languages.target)]

    def clean(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Iterate over documents, or the parts left of them, with white space around sentences removed."""
        report = self.report
        for document in documents:
            report.documents += 1
            report.pairs += len(document.source)
            source: list[str] = []
            target: list[str] = []
            first = 0
            for i, pair in enumerate(zip(document.source, document.target, strict=True)):
                ours, theirs = pair[0].strip(), pair[1].strip()
                reason = self.reason_to_drop(ours, theirs)
                if reason is None:
                    first = first if source else i
                    source.append(ours)
                    target.append(theirs)
                    continue
                report.drop(reason, document, i, ours, theirs)
                if source:
                    yield self._part(document, source, target, first)
                    source, target = [], []
            if source:
                yield self._part(document, source, target, first)

    def _part(self, document: Document, source: list[str], target: list[str], first: int) -> Document:
        self.report.parts += 1
        self.report.kept += len(source)
        return Document(document.id, source, target, document.first + first)

    def reason_to_drop(self, source: str, target: str) -> str | None:
        """Return why a pair must be dropped, or None if it is kept, in which case it counts as seen from then on."""
        rules = self.rules
        if not source or not target:
            return "empty"
        if rules.longest and max(len(source), len(target)) > rules.longest:
            return "long"
        lengths = [SHORT + len(text) * weight for text, weight in zip((source, target), self._weights, strict=True)]
        if rules.ratio and max(lengths) > rules.ratio * min(lengths):
            return "ratio"
        if rules.script and (
            share_in_script(source, self.languages.source) < rules.script
            or share_in_script(target, self.languages.target) < rules.script
        ):
            return "script"
        if len(source) >= rules.phrase:
            value = hash_pair(source, target)
            if not self._seen.add(value):
                return "duplicate"
            self.new.append(value)
        return None
