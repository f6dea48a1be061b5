"""The torch data set of a prepared folder."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from reluformer.data.dataset import PackedDataset
from reluformer.data.documents import Languages
from reluformer.data.files import DataError, read_json, write_json
from reluformer.data.prepare import Plan, prepare
from reluformer.data.tokenizer import EOS_ID, SEP_ID
from tests.data.corpus import write_corpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prepared")
    inputs = tuple(write_corpus(place / f"{seed}.jsonl", count=20, seed=seed) for seed in range(2))
    plan = Plan(inputs, Languages("en", "de"), vocab=300, lengths=(0, 12, 60))
    prepare(plan, place / "out", 1)
    return place / "out"


@pytest.mark.parametrize("length", [0, 12, 60])
def test_examples(folder: Path, length: int) -> None:
    packed = PackedDataset(folder, "train", length)
    examples = [packed[i] for i in range(len(packed))]
    assert len(packed) == len(packed.source_lengths) == len(packed.target_lengths)
    for name, lengths in (("input_ids", packed.source_lengths), ("labels", packed.target_lengths)):
        assert [len(example[name]) for example in examples] == lengths.tolist()
        assert all(example[name][-1] == EOS_ID and example[name].count(EOS_ID) == 1 for example in examples)
        assert [example[name].count(SEP_ID) + 1 for example in examples] == packed.sentences.tolist()
    if length:
        assert max(packed.source_lengths.max(), packed.target_lengths.max()) <= length


def test_indices(folder: Path) -> None:
    packed = PackedDataset(folder)
    assert packed[-1] == packed[len(packed) - 1]
    for i in (len(packed), -len(packed) - 1):
        with pytest.raises(IndexError, match=f"example {i} of"):
            packed[i]
    assert packed.origin(0) == ("doc-0-0", 0)
    assert packed.origin(len(packed) - 1)[0] == "doc-1-19"


def test_it_travels_light(folder: Path) -> None:
    packed = PackedDataset(folder, "train", 60)
    data = pickle.dumps(packed)
    assert len(data) < 1000
    assert pickle.loads(data)[3] == packed[3]
    loader = DataLoader(packed, batch_size=4, collate_fn=list, num_workers=1, multiprocessing_context="fork")
    assert next(iter(loader)) == [packed[i] for i in range(4)]


def test_tokens_are_not_read_into_memory(folder: Path) -> None:
    shard = PackedDataset(folder)._shards[0]
    assert isinstance(shard.tokens["source"], np.memmap)
    assert shard.tokens["source"].dtype == np.uint16


def test_refuses(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the splits train, got 'test'"):
        PackedDataset(folder, "test")
    with pytest.raises(DataError, match="is packed to the lengths 0, 12, 60, got 99"):
        PackedDataset(folder, "train", 99)
    with pytest.raises(DataError, match="is no folder of reluformer data prepare"):
        PackedDataset(tmp_path)
    write_json(tmp_path / "manifest.json", read_json(folder / "manifest.json") | {"format": 99})
    with pytest.raises(DataError, match="has format 99, this version reads 1"):
        PackedDataset(tmp_path)
