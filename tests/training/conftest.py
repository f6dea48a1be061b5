from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reluformer.training.recipe import Recipe
from reluformer.training.run import train
from tests.training.runs import prepare_data, small_recipe


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """On the CPU, where runs are the same bit for bit; models so small that threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus."""
    return prepare_data(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="package")
def whole(one_thread: None, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A run that nothing disturbed."""
    recipe = small_recipe(data, tmp_path_factory.mktemp("whole") / "run")
    train(recipe)
    return recipe
