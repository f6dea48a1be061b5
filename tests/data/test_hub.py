"""Hugging Face data sets, from folders: nothing here is downloaded."""

import json
import sys
from pathlib import Path

import pytest

from reluformer.data.documents import Document, Languages, read_documents
from reluformer.data.files import DataError
from reluformer.data.hub import fingerprint

EN_DE = Languages("en", "de")


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    module = pytest.importorskip("datasets", reason="pip install datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(module.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it would ask for long
    return module


def read(item: str) -> list[Document]:
    return list(read_documents(item, EN_DE))


def test_rows_that_are_documents(datasets, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    rows = [{"id": "a", "en": ["x", "y"], "de": ["X", "Y"]}, {"id": "b", "en": ["z"], "de": ["Z"]}]
    (tmp_path / "set" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read(f"hf:{tmp_path}/set") == [Document("a", ["x", "y"], ["X", "Y"]), Document("b", ["z"], ["Z"])]


def test_pairs_of_sentences(datasets, tmp_path: Path) -> None:
    pairs = [{"en": c, "de": c.upper()} for c in "abc"]
    rows = {"translation": pairs, "doc": ["one", "one", "two"]}
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "set" / "validation.parquet"))
    item = f"hf:{tmp_path}/set?split=validation"
    assert [d.source for d in read(item)] == [["a"], ["b"], ["c"]]
    assert read(f"{item}&document=doc") == [Document("one", ["a", "b"], ["A", "B"]), Document("two", ["c"], ["C"])]


def test_a_set_that_was_saved(datasets, tmp_path: Path) -> None:
    columns = {"en": ["a", None], "de": ["A", "B"]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "set")
    assert [(d.source, d.target) for d in read(f"hf:{tmp_path}/set")] == [(["a"], ["A"]), ([""], ["B"])]


def test_the_fingerprint_is_that_of_the_content(datasets, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    found = []
    for sentence in "aab":
        record = json.dumps({"en": [sentence], "de": ["A"]})
        if not found or sentence == "b":
            (tmp_path / "set" / "train.jsonl").write_text(record)
        found.append(fingerprint(f"{tmp_path}/set"))
    assert found[0] == found[1] != found[2]


def test_refuses(datasets, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"en": ["a"], "fr": ["A"]}).save_to_disk(tmp_path / "set")
    for item, words in {
        f"hf:{tmp_path}/set": "row 0: takes sentences as 'de', has en, fr",
        f"hf:{tmp_path}/set?document=doc": "has no column 'doc', it has en, fr",
        f"hf:{tmp_path}/set?page=1": "takes the options config, document, revision, split, got 'page'",
        f"hf:{tmp_path}/none": "cannot load hf:",
    }.items():
        with pytest.raises(DataError, match=words):
            read(item)


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"hf:opus needs datasets: pip install \"reluformer\[datasets\]\""):
        read("hf:opus")


def test_the_hub_says_nothing_by_itself(datasets) -> None:
    from huggingface_hub.utils import logging

    logging.set_verbosity_warning()
    with pytest.raises(DataError, match="cannot load hf:nobody/nothing"):
        read("hf:nobody/nothing")
    assert logging.get_verbosity() == logging.ERROR
