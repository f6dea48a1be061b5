import dataclasses
import time
from pathlib import Path

import pytest

from reluformer.study.bench import Bench
from reluformer.study.experiment import Diverged


def test_trains_once_and_measures_all(bench: Bench) -> None:
    result = bench.train_and_score({"ffn": {"activation": "softmax"}}, 1)
    assert result["steps"] == 4
    assert [point["step"] for point in result["curve"]] == [2, 4]
    assert result["curve"][0]["seconds"] < result["curve"][1]["seconds"] == result["train_seconds"]
    assert result["curve"][-1]["nll"] == pytest.approx(result["nll"], rel=1e-4)  # the final model is the last
    assert 0 <= result["bleu"] <= 100
    assert result["mass"] == pytest.approx(1, rel=1e-4)
    assert result["ffn_mass"] == pytest.approx(1, rel=1e-4)
    for name in ("entropy", "zeros", "top", "ffn_variance_ratio", "ffn_anisotropy", "ffn_effective", "d_bleu_ci"):
        assert name in result
    folder = bench.train({"ffn": {"activation": "softmax"}}, 1).folder
    assert (folder / "model.safetensors").exists()
    assert not (folder.parent / "checkpoints").exists()
    began = time.monotonic()
    assert bench.train_and_score({"ffn": {"activation": "softmax"}}, 1) == result
    assert time.monotonic() - began < 0.5


def test_a_loss_that_is_no_number_is_told_apart(bench: Bench) -> None:
    for _ in range(2):  # the second time from what was kept
        with pytest.raises(Diverged, match="not a number"):
            bench.train_and_score({}, 0, optimiser={"lr": 1e30, "clip": 0.0, "warmup": 1})


def test_recipe_of_documents_ends_on_them(bench: Bench) -> None:
    recipe = bench.recipe({"family": "reluformer", "cross": {"alpha": 1.0}}, 3, 60, calibrate=False, steps=10)
    assert [(stage.length, stage.steps) for stage in recipe.stages] == [(0, 7), (60, 3)]
    assert (recipe.seed, recipe.calibrate, recipe.optimiser.lr) == (3, False, 3e-3)
    assert recipe.model["preset"] == "reluformer-tiny"
    assert recipe.model["cross"] == {"alpha": 1.0}


def test_a_share_of_a_run_becomes_updates(bench: Bench) -> None:
    usual = bench.recipe({}, 0, 0, steps=40)
    assert (usual.optimiser.warmup, usual.regulariser_warmup, usual.anneal) == (10, 10, 0)
    shares = bench.recipe({}, 0, 0, steps=40, anneal=0.25, optimiser={"warmup": 0.5}, regulariser_warmup=0)
    assert (shares.optimiser.warmup, shares.regulariser_warmup, shares.anneal) == (20, 0, 10)
    half = bench.recipe({}, 0, 0, steps=0.5)
    assert half.stages[0].steps == bench.steps() // 2


def test_one_model_has_one_name(bench: Bench) -> None:
    plain = bench.model()
    assert bench.model(ffn={"activation": "relu"}, cross={"gamma": "none"}, regulariser={"mass": 0.0}) == plain
    assert bench.model(ffn={"slots": 9})["ffn"] == {"slots": 9}
    assert bench.model(ffn={"activation": "softmax"})["ffn"] == {"slots": 8, "activation": "softmax"}


def test_epochs_become_steps(bench: Bench, tmp_path: Path) -> None:
    scale = dataclasses.replace(bench.scale, steps=0, epochs=1.0)
    once = Bench(scale, bench.corpus, tmp_path).steps()
    assert once > 4
    assert Bench(dataclasses.replace(scale, epochs=3.0), bench.corpus, tmp_path).steps() == 3 * once
