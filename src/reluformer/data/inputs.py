"""Inputs of a preparation: hashes of their content, and the clean text made of them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reluformer.data import bible
from reluformer.data.arrays import open_array
from reluformer.data.cleaning import Cleaner, CleaningReport, SeenPairs
from reluformer.data.documents import HUB, Document, Languages, input_files, to_line
from reluformer.data.files import DataError, hash_of_file, read_json, write_json, written_file

HASH = np.dtype("<u8")


def content_of(items: Iterable[str], known_at: Path) -> dict[str, list[str]]:
    """Return names and hashes for every input, which change whenever its content does.

    A file whose size and modification time are those of an earlier run, recorded in ``known_at``, is not read again.
    """
    known = read_json(known_at) or {}
    found: dict[str, Any] = {}
    content: dict[str, list[str]] = {}
    for item in items:
        content[item] = []
        for path in input_files(item):
            if not path.is_file():
                raise DataError(f"{path} is a pipe, takes a file: it is read twice")
            stat, name = path.stat(), str(path.resolve())
            about = {"bytes": stat.st_size, "changed": stat.st_mtime_ns}
            before = known.get(name, {})
            unchanged = {key: before.get(key) for key in about} == about
            found[name] = about | {"sha256": before["sha256"] if unchanged else hash_of_file(path)}
            content[item] += [path.name, found[name]["sha256"]]  # documents without a name are named after the file
        if item.startswith(HUB):
            from reluformer.data.hub import fingerprint

            content[item] = [item, fingerprint(item.removeprefix(HUB))]
        if item.startswith(bible.BIBLE):
            content[item] = [item, bible.fingerprint()]
    write_json(known_at, found)
    return content


@dataclass(frozen=True)
class CleanText:
    """One cleaned input: JSONL as :func:`reluformer.data.documents.read_jsonl` reads it, a report and hashes."""

    folder: Path
    key: str

    @property
    def lines(self) -> Path:
        """File of the clean text, a document per line."""
        return self.folder / f"{self.key}.jsonl"

    @property
    def report(self) -> dict[str, Any] | None:
        """Report of the cleaning, which is written last; None if the clean text is not complete."""
        report: dict[str, Any] | None = read_json(self.folder / f"{self.key}.json")
        return report if self.lines.exists() and self._hashes.exists() else None

    @property
    def hashes(self) -> np.ndarray:
        """Sorted hashes of the pairs that this input was the first to have."""
        return open_array(self._hashes, HASH)

    @property
    def _hashes(self) -> Path:
        return self.folder / f"{self.key}.pairs.bin"

    def write(
        self,
        documents: Iterable[Document],
        languages: Languages,
        cleaner: Cleaner | None,
        watch: Callable[[int], None],
    ) -> None:
        """Clean and write documents, unchanged if ``cleaner`` is None; ``watch`` is told how many pairs are done."""
        report = CleaningReport() if cleaner is None else cleaner.report
        with written_file(self.lines) as file:
            for document in documents if cleaner is None else cleaner.clean(documents):
                if cleaner is None:
                    report.documents += 1
                    report.parts += 1
                    report.pairs += len(document.source)
                    report.kept += len(document.source)
                file.write(to_line(document, languages))
                watch(report.pairs)
        new = np.array([] if cleaner is None else cleaner.new, HASH)
        new.sort()
        with written_file(self._hashes) as file:
            file.write(new.data)
        write_json(self.folder / f"{self.key}.json", report.to_dict())


def seen_in(texts: Iterable[CleanText]) -> SeenPairs:
    """Return the set of pairs that texts cleaned earlier have added."""
    seen = SeenPairs()
    for text in texts:
        seen.extend(np.array(text.hashes))
    return seen
