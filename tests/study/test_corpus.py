import dataclasses
from pathlib import Path

import pytest

from reluformer.data.cleaning import Cleaning
from reluformer.data.dataset import read_manifest
from reluformer.data.documents import Languages
from reluformer.data.files import DataError, hash_of
from reluformer.data.prepare import Plan, prepare
from reluformer.study.corpus import embedded_corpus, open_corpus
from reluformer.study.scales import SCALES
from tests.data.corpus import write_corpus


def test_embedded_corpus_is_the_same_wherever_it_is(tmp_path: Path) -> None:
    scale = dataclasses.replace(SCALES["smoke"], chapters=2, vocab=300, lengths=(64,))
    one, other = (embedded_corpus(tmp_path / name, scale) for name in "ab")
    assert one.key == other.key
    assert one.languages == Languages("en", "es")
    assert read_manifest(one.folder)["lengths"] == [0, 64]
    assert embedded_corpus(tmp_path / "a", scale) == one


def test_corpus_needs_validation_data(tmp_path: Path) -> None:
    prepare(Plan((write_corpus(tmp_path / "x.jsonl", 3),), Languages("en", "de"), vocab=300), tmp_path / "data", 1)
    with pytest.raises(DataError, match="has no validation data: prepare it with --valid"):
        open_corpus(tmp_path / "data")


def test_corpus_is_known_by_what_its_test_set_says(tmp_path: Path) -> None:
    train, valid, test = (write_corpus(tmp_path / f"{name}.jsonl", 3, i) for i, name in enumerate("xyz"))
    prepare(Plan((train,), Languages("en", "de"), (valid,), vocab=300), tmp_path / "data", 1)
    key = open_corpus(tmp_path / "data", str(test)).key
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(Path(test).read_bytes())
    assert open_corpus(tmp_path / "data", str(moved)).key == key
    assert open_corpus(tmp_path / "data").key != key
    moved.write_bytes(moved.read_bytes() * 2)
    assert open_corpus(tmp_path / "data", str(moved)).key != key
    with pytest.raises(DataError, match=r"/nowhere\.jsonl does not exist"):
        open_corpus(tmp_path / "data", "/nowhere.jsonl")
    moved.write_text('{"id": "a", "en": ["one"], "fr": ["un"]}\n')  # found before anything is trained
    with pytest.raises(DataError, match=r"moved\.jsonl.*'de'"):
        open_corpus(tmp_path / "data", str(moved))


def test_corpus_is_known_by_what_was_made_of_the_inputs(tmp_path: Path) -> None:
    """Whose content, and even whose tokeniser, may be the same."""
    train, valid = (write_corpus(tmp_path / f"{name}.jsonl", 3, i) for i, name in enumerate("xy"))
    usual = Plan((train,), Languages("en", "de"), (valid,), vocab=300)
    plans = {
        "usual": usual,
        "longer": dataclasses.replace(usual, lengths=(0, 128)),  # no other sentences
        "drop": dataclasses.replace(usual, overlong="drop"),
        "cleaner": dataclasses.replace(usual, cleaning=Cleaning(ratio=2.5)),
        "back": dataclasses.replace(usual, languages=Languages("de", "en")),
    }
    keys = {}
    for name, plan in plans.items():
        prepare(plan, tmp_path / name, 1)
        keys[name] = open_corpus(tmp_path / name).key
    assert keys.pop("longer") == keys["usual"]
    assert len(set(keys.values())) == 4
    manifest = read_manifest(tmp_path / "usual")
    content = [shard["content"] for split in manifest["splits"].values() for shard in split["shards"]]
    assert keys["usual"] == hash_of([content, manifest["tokenizer"]["sha256"], ""])  # as in cells that were kept
