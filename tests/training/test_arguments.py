from pathlib import Path

import pytest
import torch

from reluformer.training.arguments import training_arguments, uses_bf16, uses_gpu
from tests.training.runs import small_recipe


def test_a_recipe_in_the_words_of_the_trainer(tmp_path: Path) -> None:
    arguments = training_arguments(small_recipe(tmp_path, tmp_path / "run"))
    assert (arguments.max_steps, arguments.gradient_accumulation_steps, arguments.logging_steps) == (12, 2, 2)
    assert (arguments.learning_rate, arguments.warmup_steps, arguments.max_grad_norm) == (3e-3, 4, 1.0)
    assert not arguments.accelerator_config.even_batches
    assert not arguments.logging_nan_inf_filter
    assert arguments.n_gpu <= 1
    assert not (tmp_path / "run").exists()


def test_a_launcher_may_say_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not uses_gpu()
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    assert uses_gpu()


@pytest.mark.parametrize(("precision", "expected"), [("auto", False), ("bf16", True), ("fp32", False)])
def test_precision_on_a_cpu(precision: str, expected: bool) -> None:
    assert uses_bf16(precision, torch.device("cpu")) is expected
