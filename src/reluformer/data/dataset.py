"""Prepared data as a torch data set: examples are slices of memory-mapped files."""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from reluformer.data.arrays import INDEX, open_array
from reluformer.data.files import DataError, read_json
from reluformer.data.packing import CHUNK
from reluformer.data.shards import DOCUMENT, SIDES, chunk_name, damaged
from reluformer.data.tokenizer import EOS_ID

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"


def read_manifest(folder: Path | str) -> dict[str, Any]:
    """Read the manifest that ``reluformer data prepare`` writes when a folder is complete."""
    manifest = read_json(Path(folder) / MANIFEST)
    if not isinstance(manifest, dict) or "splits" not in manifest:
        raise DataError(f"{folder} is no folder of reluformer data prepare, or it was not finished: no {MANIFEST}")
    if manifest["format"] != FORMAT:
        raise DataError(f"{folder} has format {manifest['format']}, this version reads {FORMAT}: prepare it again")
    return manifest


def damaged_files(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """Return the files named by the manifest that the folder lacks or has in another size."""
    found = [path for path in [folder / TOKENIZER / "tokenizer.json"] if not path.exists()]
    for split in manifest["splits"].values():
        for shard in split["shards"]:
            packed = {f"{chunk_name(int(n), manifest['overlong'])}.bin": about for n, about in shard["packed"].items()}
            found += damaged(folder / shard["folder"], shard["files"] | packed)
    return found


def load_tokenizer(folder: Path | str) -> "PreTrainedTokenizerFast":
    """Load the tokeniser of a prepared folder."""
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(Path(folder) / TOKENIZER)
    except Exception as error:  # tokenizers raises nothing more precise
        raise DataError(f"{Path(folder) / TOKENIZER} cannot be read: {error}: prepare {folder} again") from None
    tokenizer: PreTrainedTokenizerFast = loaded
    return tokenizer


class PackedDataset(Dataset[dict[str, list[int]]]):
    """Examples of a prepared folder, packed to one of its lengths, in the order of the corpus.

    Args:
        folder: Folder that ``reluformer data prepare`` wrote.
        split: ``train`` or ``valid``.
        length: One of the lengths that the folder was packed to; 0 for single sentences.

    Attributes:
        source_lengths: Number of source tokens of every example, ``</s>`` included.
        target_lengths: Number of target tokens of every example, ``</s>`` included.
        sentences: Number of sentences of every example.
    """

    def __init__(self, folder: Path | str, split: str = "train", length: int = 0) -> None:
        self.folder, self.split, self.length = Path(folder), split, length
        self.manifest = read_manifest(folder)
        if split not in self.manifest["splits"]:
            raise DataError(f"{folder} has the splits {', '.join(self.manifest['splits'])}, got {split!r}")
        if length not in self.manifest["lengths"]:
            known = ", ".join(map(str, self.manifest["lengths"]))
            raise DataError(f"{folder} is packed to the lengths {known}, got {length!r}")
        for path in damaged_files(self.folder, self.manifest):
            raise DataError(f"{path} is missing or cut short: prepare {folder} again")
        name = chunk_name(length, self.manifest["overlong"])
        shards = self.manifest["splits"][split]["shards"]
        self._shards = [_Shard(self.folder / shard["folder"], shard["dtype"], name) for shard in shards]
        self._ends = list(accumulate(len(shard.chunks) for shard in self._shards))
        self.source_lengths, self.target_lengths, self.sentences = (
            np.concatenate([shard.chunks[column] for shard in self._shards]) for column in (*SIDES, "sentences")
        )

    def __reduce__(self) -> Any:
        # A pickled memory map would send the whole file to another process.
        return PackedDataset, (self.folder, self.split, self.length)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> dict[str, list[int]]:
        """Return source and target tokens, each ending in ``</s>``."""
        shard, chunk = self._find(i)
        source, target = (shard.tokens_of(chunk, side) for side in SIDES)
        return {"input_ids": source, "labels": target}

    def origin(self, i: int) -> tuple[str, int]:
        """Return the name of an example's document, and the number of the example's first sentence in it."""
        shard, chunk = self._find(i)
        return shard.origin_of(int(chunk["first"]))

    def _find(self, i: int) -> tuple["_Shard", np.void]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"example {i} of {len(self)}")
        i %= len(self)
        place = bisect_right(self._ends, i)
        shard = self._shards[place]
        return shard, shard.chunks[i - self._ends[place] + len(shard.chunks)]


class _Shard:
    """The arrays of one shard."""

    def __init__(self, folder: Path, dtype: str, chunks: str) -> None:
        self.tokens = {side: open_array(folder / f"{side}.tokens.bin", np.dtype(dtype)) for side in SIDES}
        self.starts = {side: open_array(folder / f"{side}.starts.bin", INDEX) for side in SIDES}
        self.documents = open_array(folder / "documents.bin", DOCUMENT)
        self.names = open_array(folder / "names.bin", np.dtype("u1"))
        self.chunks = open_array(folder / f"{chunks}.bin", CHUNK)

    def tokens_of(self, chunk: np.void, side: str) -> list[int]:
        start = int(self.starts[side][chunk["first"]])
        tokens: list[int] = self.tokens[side][start : start + int(chunk[side])].tolist()
        tokens[-1] = EOS_ID  # replaces <sep> or, where a sentence was cut, its last remaining token
        return tokens

    def origin_of(self, sentence: int) -> tuple[str, int]:
        place = bisect_right(self.documents["sentence"], sentence) - 1
        start, first, name = (int(x) for x in self.documents[place])
        end = int(self.documents[place + 1]["name"])
        return self.names[name:end].tobytes().decode(), first + sentence - start
