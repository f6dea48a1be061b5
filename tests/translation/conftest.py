"""A tiny model with random weights, as training leaves one, and the tokeniser of all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reluformer.data.bible import bible_documents
from reluformer.data.tokenizer import train_tokenizer
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration

VOCABULARY = 600


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads wait for each other longer than a tiny model runs, above all where the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tokenizer():
    texts = (verse for chapter in bible_documents("dev") for side in ("en", "es") for verse in chapter[side])
    return train_tokenizer(texts, VOCABULARY)


def tiny_model(**changes: object) -> ReLUFormerForConditionalGeneration:
    torch.manual_seed(0)
    small = {"d_model": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
    config = ReLUFormerConfig.preset("reluformer-tiny", vocab_size=VOCABULARY, **(small | changes))
    return ReLUFormerForConditionalGeneration(config).eval()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
