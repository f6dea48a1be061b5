"""Several processes: what they do together is what one does alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reluformer.training.recipe import Batches, Recipe
from reluformer.training.run import train
from tests.training.runs import MODEL, curve, python, weights, write_recipe

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)

# Accelerate shards on GPUs alone; told that these are some, it does so here, with the same code.
SHARDED = """
import os, sys
from accelerate import PartialState
from accelerate.utils import DistributedType
from reluformer.training import run, trainer
made = run.training_arguments
def arguments(*args, **more):
    found = made(*args, **more)
    PartialState().distributed_type = DistributedType.MULTI_GPU
    return found
run.training_arguments = arguments
original = trainer.TranslationTrainer.compute_loss
def compute_loss(self, *args, **more):
    if str(self.state.global_step) in sys.argv[2:]:
        os._exit(9)
    assert self.is_fsdp_enabled
    return original(self, *args, **more)
trainer.TranslationTrainer.compute_loss = compute_loss
from reluformer.cli import main
main(["train", sys.argv[1]])
"""
FSDP = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "EncoderLayer,DecoderLayer",
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(whole: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """One process, two batches an update; without dropout, which each process draws for itself."""
    out = tmp_path_factory.mktemp("alone") / "run"
    recipe = replace(whole, out=str(out), model={**MODEL, "dropout": 0.0})
    train(recipe)
    return recipe


def together(alone: Recipe, out: Path) -> Recipe:
    return replace(alone, out=str(out), batches=replace(alone.batches, accumulate=1))


def assert_same(one: Recipe, other: Recipe) -> None:
    for point, expected in zip(curve(other.out), curve(one.out), strict=True):
        assert point == pytest.approx(expected, rel=1e-5, abs=1e-7)
    torch.testing.assert_close(weights(other.out), weights(one.out), rtol=1e-4, atol=1e-6)


def test_two_processes_are_one_with_twice_the_batches(alone: Recipe, tmp_path: Path) -> None:
    recipe = together(alone, tmp_path / "run")
    ran = python(*LAUNCH, "-m", "reluformer", "train", write_recipe(recipe, tmp_path / "recipe.yaml"))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("Trained 12 steps") == 1  # one of them speaks
    assert ran.stderr.count("step 12/12") == 1
    assert_same(alone, recipe)


def test_another_number_of_processes_must_make_the_same_updates(alone: Recipe, tmp_path: Path) -> None:
    recipe = replace(alone, batches=Batches(cost=300, accumulate=1))
    ran = python("-m", "reluformer", "train", write_recipe(recipe, tmp_path / "recipe.yaml"))
    assert ran.returncode == 2
    assert "holds another run: batches per update was 2, is 1" in ran.stderr


@pytest.mark.slow
def test_shards_killed_and_resumed(alone: Recipe, tmp_path: Path) -> None:
    recipe = together(alone, tmp_path / "run")
    (tmp_path / "sharded.py").write_text(SHARDED)
    command = (*LAUNCH, tmp_path / "sharded.py", write_recipe(recipe, tmp_path / "recipe.yaml"))
    assert python(*command, 7, **FSDP).returncode != 0
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"step-3", "step-6"}
    ran = python(*command, **FSDP)
    assert ran.returncode == 0, ran.stderr
    assert "step 3/12" not in ran.stderr
    assert_same(alone, recipe)
