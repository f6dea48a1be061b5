import json
from pathlib import Path

import pytest
import torch

from reluformer.data.dataset import PackedDataset, load_tokenizer
from reluformer.training.recipe import Checkpoints, Stage
from reluformer.training.validation import Validation, valid_documents
from tests.training.runs import prepare_data, small_recipe
from tests.training.test_trainer import make


def test_documents_come_back_as_text(data: Path) -> None:
    lines = (data.parent / "valid.jsonl").read_text().splitlines()
    expected = [json.loads(line) for line in lines]
    sources, references = valid_documents(data, load_tokenizer(data), 3)
    assert sources == [document["en"] for document in expected[:3]]
    assert references == [document["de"] for document in expected[:3]]
    assert len(valid_documents(data, load_tokenizer(data), 99)[0]) == 4


def test_documents_come_back_from_data_that_are_not_packed_to_sentences(data: Path, tmp_path: Path) -> None:
    packed = prepare_data(tmp_path, lengths=(1000,))
    assert valid_documents(packed, load_tokenizer(packed), 3) == valid_documents(data, load_tokenizer(data), 3)


@pytest.mark.parametrize("length", [0, 60])
def test_the_loss_is_a_mean_over_tokens(data: Path, tmp_path: Path, length: int) -> None:
    trainer = make(data, tmp_path)
    model = trainer.model
    assert model is not None
    metrics = Validation(trainer.recipe, load_tokenizer(data))(trainer, Stage(length, 1))
    examples = PackedDataset(data, "valid", length)
    total, tokens = 0.0, 0
    model.eval()
    with torch.no_grad():
        for i in range(len(examples)):  # one at a time: nothing is padded
            batch = {name: torch.tensor([x]) for name, x in examples[i].items()}
            count = batch["labels"].numel()
            total, tokens = total + float(model(**batch).loss) * count, tokens + count
    assert metrics == {"eval_loss": pytest.approx(total / tokens, rel=1e-5)}


def test_d_bleu_is_that_of_the_translations(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(data)
    sources, references = valid_documents(data, tokenizer, 2)
    asked = []

    class Perfect:
        def __init__(self, model: object, tokenizer: object, *, length: int, beam: int) -> None:
            asked.append((length, beam))

        def translate(self, documents: list[list[str]]) -> list[list[str]]:
            assert documents == sources
            return references

    monkeypatch.setattr("reluformer.translation.translator.Translator", Perfect)
    trainer = make(data, tmp_path)
    recipe = small_recipe(data, tmp_path, checkpoints=Checkpoints(metric="d-bleu", documents=2))
    metrics = Validation(recipe, tokenizer)(trainer, Stage(60, 1))
    assert metrics["eval_d_bleu"] == pytest.approx(100)
    assert asked == [(60, 1)]
