import pytest
import torch

from reluformer.data.files import DataError
from reluformer.data.speech import speech
from reluformer.demo.run import Demonstration
from reluformer.report.maps import attention_maps
from reluformer.translation.attention import window_batch
from reluformer.translation.translator import Translator
from tests.translation.conftest import tiny_model
from tests.translation.stubs import Copier


def test_the_document_is_sentences_of_one_text() -> None:
    sentences = speech()
    assert 40 <= len(sentences) <= 60
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)
    assert all(sentence.endswith((".", "?")) for sentence in sentences[1:])  # the first is the title
    assert 650 <= sum(len(sentence.split()) for sentence in sentences) <= 800


def test_what_is_shown_of_a_translation(found: Demonstration) -> None:
    assert found.translations == found.sentences  # the model copies
    texts = [" ".join(word.text for word in pair.source) for pair in found.pairs]
    assert texts == found.sentences
    assert found.tokens[0] == found.tokens[1] > found.words
    assert len(found.windows) > 1  # longer than 1024 tokens of so small a vocabulary
    assert len(found.longest.source) == max(len(window.source) for window in found.windows)
    assert (found.dtype, "thread" in found.machine) == ("int8", True)
    assert 0 < found.megabytes < 1
    assert found.seconds > 0


def test_the_share_of_zeros_counts_every_weight(found: Demonstration, box) -> None:
    translator = Translator.load(box)
    maps = attention_maps(translator.model, window_batch(translator.model, found.longest), ["*:*:*"])
    shares = [((x.weights == 0) & x.visible).sum(-1) / x.visible.sum(-1) for x in maps]
    assert found.zeros("attention") == pytest.approx(float(torch.cat(shares).mean()), abs=1e-4)
    assert 0 < found.zeros("key-value") < 1


def test_shares_of_the_first_head_over_all_windows(found: Demonstration) -> None:
    assert [len(shares) for shares in found.alignment] == [
        sum(len(pair.target) for pair in found.pairs if pair.window == number) for number in range(len(found.windows))
    ]
    for shares in found.alignment:
        assert float(shares.max()) <= 1 + 1e-9
        assert float(shares.sum(-1).max()) <= 1 + 1e-9
    assert found.alignment[1].shape[1] > sum(len(pair.source) for pair in found.pairs if pair.window == 1)  # context


def test_a_model_with_softmax_is_refused(monkeypatch: pytest.MonkeyPatch, tokenizer, tmp_path) -> None:
    model = tiny_model(cross={"activation": "softmax", "alpha": 0.0, "gamma": "none"})
    monkeypatch.setattr(Translator, "load", lambda folder: Translator(model, tokenizer, length=64))
    with pytest.raises(
        DataError, match=r"takes a model with ReLU in every memory, decoder.cross_attention has softmax"
    ):
        Demonstration.of(tmp_path)


def test_slots_of_attention_with_softmax_are_refused(monkeypatch: pytest.MonkeyPatch, tokenizer, tmp_path) -> None:
    model = tiny_model(encoder_self={"slots": 4, "slot_activation": "softmax"})
    monkeypatch.setattr(Translator, "load", lambda folder: Translator(model, tokenizer, length=64))
    with pytest.raises(DataError, match=r"ReLU in every memory, encoder.self_attention.slots has softmax"):
        Demonstration.of(tmp_path)


def test_a_model_without_memories_is_refused(monkeypatch: pytest.MonkeyPatch, tokenizer, tmp_path) -> None:
    monkeypatch.setattr(Translator, "load", lambda folder: Translator(Copier(), tokenizer, length=64))
    with pytest.raises(DataError, match=r"cannot be shown: model must hold an Attention"):
        Demonstration.of(tmp_path)
