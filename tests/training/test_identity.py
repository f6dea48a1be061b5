from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reluformer.data.files import read_json, write_json
from reluformer.training.errors import TrainingError
from reluformer.training.identity import IDENTITY, claim
from reluformer.training.recipe import Batches, Checkpoints, Recipe, Stage, read_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    model = {"preset": "reluformer-tiny", "cross": {"alpha": 1.0}}
    return Recipe("data", str(tmp_path / "run"), (Stage(0, 5),), model)


def test_a_run_may_go_on_elsewhere_and_otherwise(recipe: Recipe, tmp_path: Path) -> None:
    claim(recipe, "abc", 1)
    changed = replace(
        recipe, data="moved", workers=0, compile=True, log_every=1, checkpoints=Checkpoints(every=7, patience=3)
    )
    claim(changed, "abc", 1)
    assert read_recipe(tmp_path / "run" / "recipe.yaml") == changed


def test_processes_and_batches_make_an_update_together(recipe: Recipe) -> None:
    claim(replace(recipe, batches=Batches(accumulate=4)), "abc", 1)
    claim(replace(recipe, batches=Batches(accumulate=1)), "abc", 4)
    with pytest.raises(TrainingError, match="batches per update was 4, is 8"):
        claim(replace(recipe, batches=Batches(accumulate=4)), "abc", 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 3}, "seed was 0, is 3"),
        ({"stages": (Stage(0, 6),)}, r"stages\.0\.steps was 5, is 6"),
        ({"stages": (Stage(0, 5), Stage(64, 5))}, r"stages\.1\.length was 'not set', is 64"),
        ({"model": {"preset": "reluformer-tiny", "cross": {"alpha": 0.5}}}, r"model\.cross\.alpha was 1\.0, is 0\.5"),
        ({"precision": "bf16"}, "precision was 'auto', is 'bf16'"),
        ({"graphs": True}, "graphs was False, is True"),  # its batches are others
    ],
)
def test_another_recipe_is_named(recipe: Recipe, change: dict[str, Any], words: str) -> None:
    claim(recipe, "abc", 1)
    before = (Path(recipe.out) / "recipe.yaml").read_bytes()
    with pytest.raises(TrainingError, match=f"holds another run: {words}; take another out, or remove it"):
        claim(replace(recipe, **change), "abc", 1)
    assert (Path(recipe.out) / "recipe.yaml").read_bytes() == before


def test_a_run_begun_before_a_setting_existed_goes_on(recipe: Recipe) -> None:
    claim(recipe, "abc", 1)
    file = Path(recipe.out) / IDENTITY
    known = read_json(file)
    assert known.pop("graphs") is False
    write_json(file, known)
    with pytest.raises(TrainingError, match="graphs was False, is True"):
        claim(replace(recipe, graphs=True), "abc", 1)
    claim(recipe, "abc", 1)


def test_other_data_are_noticed(recipe: Recipe) -> None:
    claim(recipe, "abc", 1)
    with pytest.raises(TrainingError, match="data was 'abc', is 'def'"):
        claim(recipe, "def", 1)


def test_only_one_process_writes(recipe: Recipe) -> None:
    claim(recipe, "abc", 2, write=False)
    assert not Path(recipe.out).exists()
