"""Tables and examples of prepared data for the console."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from reluformer.data.cleaning import REASONS
from reluformer.data.dataset import PackedDataset
from reluformer.data.packing import split_sentences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHOWN = 6  # sentences shown of an example


def split_table(manifest: dict[str, Any]) -> Table:
    """Tabulate what every split holds, and how many pairs were dropped for which reason."""
    source, target = manifest["languages"]
    title = f"{source}-{target}, vocabulary of {manifest['vocabulary']:,}"
    reasons = [reason for reason in REASONS if any(shard["cleaning"]["dropped"][reason] for shard in _shards(manifest))]
    columns = ["documents", "parts", "pairs", "kept", *reasons, f"{source} tokens", f"{target} tokens"]
    table = _table(title, ["", *columns])
    for name, split in manifest["splits"].items():
        shards = split["shards"]
        counts = [sum(shard["cleaning"][key] for shard in shards) for key in ("documents", "parts", "pairs", "kept")]
        counts += [sum(shard["cleaning"]["dropped"][reason] for shard in shards) for reason in reasons]
        counts += [sum(shard[key] for shard in shards) for key in ("source_tokens", "target_tokens")]
        table.add_row(name, *(f"{count:,}" for count in counts))
    return table


def packed_table(manifest: dict[str, Any]) -> Table:
    """Tabulate the examples of every split by packed length."""
    dropping = manifest["overlong"] == "drop"
    columns = ["", "length", "examples", "sentences each", "longest", "dropped" if dropping else "cut"]
    table = _table("packed", columns)
    for name, split in manifest["splits"].items():
        for length in manifest["lengths"]:
            packed = [shard["packed"][str(length)] for shard in split["shards"]]
            sentences = sum(shard["sentences"] for shard in split["shards"])
            chunks = sum(x["chunks"] for x in packed)
            longest, over = max(x["longest"] for x in packed), sum(x["overlong"] for x in packed)
            each = f"{(sentences - over * dropping) / chunks:.1f}" if chunks else "n/a"
            table.add_row(name, str(length or "sentence"), f"{chunks:,}", each, f"{longest:,}", f"{over:,}")
    return table


def dropped_lines(manifest: dict[str, Any]) -> Iterator[str]:
    """Iterate over lines that show examples of dropped pairs."""
    for reason, meaning in REASONS.items():
        found = [x for shard in _shards(manifest) for x in shard["cleaning"]["examples"].get(reason, [])]
        for example in found[:3]:
            place = f"{example['document']}, sentence {example['sentence']}"
            yield f"dropped ({meaning}), {place}: {example['source'][:80]} | {example['target'][:80]}"


def example_lines(packed: PackedDataset, i: int, tokenizer: "PreTrainedTokenizerFast") -> Iterator[str]:
    """Iterate over lines that show an example as text, sentence by sentence."""
    document, first = packed.origin(i)
    count = int(packed.sentences[i])
    tokens = f"{packed.source_lengths[i]} and {packed.target_lengths[i]} tokens"
    yield f"\nexample {i}: {document}, {count} sentences from sentence {first}, {tokens}"
    example = packed[i]
    sides = [[tokenizer.decode(ids) for ids in split_sentences(example[name])] for name in ("input_ids", "labels")]
    for source, target in list(zip(*sides, strict=True))[:SHOWN]:
        yield f"  {source}\n    {target}"
    if count > SHOWN:
        yield f"  and {count - SHOWN} more"


def _shards(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [shard for split in manifest["splits"].values() for shard in split["shards"]]


def _table(title: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    return table
