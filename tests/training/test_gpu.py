"""A run on a GPU: bfloat16, compiled layers, batches from other processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reluformer.training.run import train
from tests.training.runs import MODEL, curve, small_recipe


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_run_on_a_gpu_learns(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    model: dict[str, Any] = {**MODEL, "d_model": 64}
    recipe = small_recipe(data, tmp_path / "run", model=model, precision="auto", compile=compiled, workers=2)
    recipe = replace(recipe, stages=tuple(replace(stage, steps=30) for stage in recipe.stages))
    outcome = train(recipe)
    assert outcome.step == 60
    points = [point["nll"] for point in curve(tmp_path / "run") if "nll" in point]
    assert points[-1] < points[0] - 1
