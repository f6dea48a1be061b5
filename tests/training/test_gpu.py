"""A run on a GPU: bfloat16, compiled layers, batches from other processes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import Seq2SeqTrainer

from reluformer.training.run import train
from reluformer.training.trainer import TranslationTrainer
from tests.training.runs import MODEL, curve, small_recipe


@pytest.mark.gpu
@pytest.mark.parametrize(("compiled", "graphs"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_run_on_a_gpu_learns(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool, graphs: bool
) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    model: dict[str, Any] = {**MODEL, "d_model": 64}
    how = {"precision": "auto", "compile": compiled, "graphs": graphs, "workers": 2}
    recipe = small_recipe(data, tmp_path / "run", model=model, **how)
    recipe = replace(recipe, stages=tuple(replace(stage, steps=30) for stage in recipe.stages))
    outcome = train(recipe)
    assert outcome.step == 60
    points = [point["nll"] for point in curve(tmp_path / "run") if "nll" in point]
    assert points[-1] < points[0] - 1


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["reluformer", "transformer"])
def test_a_recorded_run_is_the_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    model: dict[str, Any] = {**MODEL, "d_model": 64, "preset": f"{family}-tiny", "dropout": 0.0}
    model["regulariser"] = MODEL["regulariser"] if family == "reluformer" else {}
    curves = []
    for name in ("recorded", "plain"):
        recipe = small_recipe(data, tmp_path / name, model=model, compile=True, graphs=True)
        recipe = replace(recipe, stages=tuple(replace(stage, steps=15) for stage in recipe.stages))
        train(recipe)
        curves.append([point["nll"] for point in curve(tmp_path / name) if "nll" in point])
        monkeypatch.setattr(TranslationTrainer, "training_step", Seq2SeqTrainer.training_step)
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)  # sums of gradients differ in their order
