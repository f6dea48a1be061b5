from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reluformer.study.bench import Bench
from reluformer.study.corpus import open_corpus
from reluformer.study.scales import Scale
from tests.training.runs import prepare_data

SMALL = {"d_model": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "ffn": {"slots": 8}}


@pytest.fixture(scope="package", autouse=True)
def on_a_cpu() -> Iterator[None]:
    """Models so small that threads, and a GPU, would be slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def bench(on_a_cpu: None, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Made-up data at a scale of nearly nothing."""
    folder = tmp_path_factory.mktemp("bench")
    scale = Scale(
        "test", "tiny", SMALL, steps=4, cost=256, lr=3e-3, points=2, average=1, beam=1, documents=1, sentences=2,
        examples=3, resamples=10, slots=(8, 16), lengths=(60,), reach=(60, 100), counts=(16, 64),
    )  # fmt: skip
    return Bench(scale, open_corpus(prepare_data(folder)), folder / "work")


@pytest.fixture(scope="package")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the embedded corpus is prepared by the first study and used by all."""
    return tmp_path_factory.mktemp("study")
