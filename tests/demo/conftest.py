"""A tiny model with random weights, compressed as the one in the box is, that copies what it reads."""

from pathlib import Path

import pytest

from reluformer.demo.run import Demonstration
from reluformer.translation.compression import compress_folder
from reluformer.translation.translator import Translator
from tests.translation.conftest import one_thread, tiny_model, tokenizer  # noqa: F401


@pytest.fixture(scope="session")
def box(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("box")
    shape = {"max_position_embeddings": 1024, "encoder_layers": 2, "decoder_layers": 2}
    tiny_model(**shape, languages=["en", "de"]).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    compress_folder(folder / "model", folder / "en-de")
    return folder / "en-de"


def copy(translator: Translator, sources: list[list[int]]) -> list[list[int]]:
    """In the place of a search, which a model with random weights would go on with to its limit."""
    return [list(source) for source in sources]


@pytest.fixture(scope="session")
def found(box: Path) -> Demonstration:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "_search", copy)
        return Demonstration.of(box)
