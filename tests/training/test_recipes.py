"""The recipes that come with the project."""

import shlex
from pathlib import Path

import pytest

from reluformer.memory.activations import FUSED
from reluformer.training.recipe import read_recipe
from reluformer.training.run import model_config

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def test_there_are_some() -> None:
    assert {path.stem for path in RECIPES} >= {"bible", "en-de", "europarl-documents", "europarl-sentences"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_they_are_recipes_and_have_a_twin(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe.out == f"runs/{path.stem}"
    lengths = [stage.length for stage in recipe.stages]
    assert lengths == sorted(lengths)
    assert lengths[0] == 0  # sentences first
    text = path.read_text().replace("\\\n#     ", "")
    packed = text.partition("--lengths ")[2].split()[0].split(",")
    assert {str(length) for length in lengths} <= set(packed)
    command = f"reluformer train recipes/{path.name}"
    commands = [shlex.split(line.partition(command)[2]) for line in text.splitlines() if command in line]
    assert [] in commands
    (changes,) = (x for x in commands if f"out=runs/{path.stem}-transformer" in x)
    assert f"model.preset=transformer-{recipe.model['preset'].rpartition('-')[2]}" in changes
    ours, twin = (model_config(read_recipe(path, some), 8000) for some in ([], changes))
    assert ours.cross["activation"] in FUSED
    assert twin.cross["activation"] == "softmax"
    assert twin.regulariser["mass"] == twin.regulariser["entropy"] == 0
    assert (ours.d_model, ours.ffn, ours.positions) == (twin.d_model, twin.ffn, twin.positions)
    assert ours.cross["query_key_norm"] == twin.cross["query_key_norm"]
