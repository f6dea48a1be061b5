from pathlib import Path

import pytest

from reluformer.data.shapes import Shapes
from reluformer.training.recipe import Recipe, Stage, read_recipe, to_yaml

TEXT = """
data: prepared
out: runs/one
stages:
  - {length: 0, steps: 100}
  - {length: 512, steps: 50}
model: {preset: reluformer-tiny, cross: {alpha: 1.0}}
optimiser: {lr: 3e-4}
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(TEXT)
    return file


def test_reads_what_is_there_and_fills_in_the_rest(path):
    recipe = read_recipe(path)
    assert recipe.stages == (Stage(0, 100), Stage(512, 50))
    assert recipe.optimiser.lr == 3e-4
    assert recipe.optimiser.betas == (0.9, 0.98)
    assert recipe.model["cross"] == {"alpha": 1.0}


def test_changes_from_the_command_line(path):
    changes = ["optimiser.lr=1e-3", "stages.1.steps=7", "model.cross.alpha=0.5", "batches.cost=99", "precision=fp32"]
    recipe = read_recipe(path, changes)
    assert (recipe.optimiser.lr, recipe.stages[1].steps, recipe.batches.cost) == (1e-3, 7, 99)
    assert recipe.model["cross"]["alpha"] == 0.5
    assert recipe.precision == "fp32"


def test_the_least_of_every_number_is_enough(path):
    ones = ["stages.0.steps", "batches.cost", "batches.quadratic", "batches.accumulate", "log_every"]
    ones += [f"checkpoints.{name}" for name in ("every", "keep", "average", "documents")]
    recipe = read_recipe(path, [f"{key}=1" for key in ones])
    assert (recipe.stages[0].steps, recipe.checkpoints.keep, recipe.log_every) == (1, 1, 1)


def test_a_text_may_look_like_a_number(path):
    assert read_recipe(path, ["out='2026'"]).out == "2026"


def test_recipes_with_graphs_have_shapes(path):
    assert read_recipe(path).shapes is None
    recipe = read_recipe(path, ["graphs=true"])
    assert recipe.shapes == Shapes(recipe.batches.cost, recipe.batches.quadratic)


def test_written_and_read_again(path, tmp_path):
    recipe = read_recipe(path)
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(recipe))
    assert read_recipe(again) == recipe
    assert isinstance(recipe, Recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimizer.lr=1", r"optimizer is not known; did you mean optimiser\?"),
        ("optimiser.learning=1", r"optimiser\.learning is not known; there are lr, warmup, .*"),
        ("optimiser.warm_up=1", r"optimiser\.warm_up is not known; did you mean optimiser\.warmup\?"),
        ("stages.0.step=1", r"stages\.0\.step is not known; did you mean stages\.0\.steps\?"),
        ("optimiser.lr=fast", r"optimiser\.lr must be a number, got 'fast'"),
        ("optimiser.lr=true", r"optimiser\.lr must be a number, got True"),
        ("optimiser.schedule=exponential", r"optimiser\.schedule must be one of inverse_sqrt, .*, got 'exponential'"),
        ("batches.cost=0", r"batches\.cost must be at least 1, got 0"),
        ("anneal=151", r"anneal must be at most the 150 updates of all stages, got 151"),
        ("anneal=-1", r"anneal must be at least 0, got -1"),
        ("seed=1.5", r"seed must be an int, got 1\.5"),
        ("seed=4294967296", r"seed must be below 4294967296, got 4294967296"),
        ("optimiser.lr=nan", r"optimiser\.lr must be finite, got nan"),
        ("optimiser.clip=.inf", r"optimiser\.clip must be finite, got inf"),
        ("optimiser.betas=[0.9, 1]", r"optimiser\.betas\.1 must be below 1, got 1\.0"),
        ("optimiser.label_smoothing=2", r"optimiser\.label_smoothing must be below 1, got 2\.0"),
        ("model={", r"model: '\{' is not YAML"),
        ("seed=true", r"seed must be an int, got True"),
        ("graphs=1", r"graphs must be true or false, got 1"),
        ("graph=true", r"graph is not known; did you mean graphs\?"),
        ("stages=[]", r"stages must have at least one entry, got none"),
        ("stages=3", r"stages must be a list, got 3"),
        ("optimiser.betas=[0.9]", r"optimiser\.betas must have 2 entries, got \[0\.9\]"),
        ("model=7", r"model must be a mapping, got 7"),
        ("optimiser=adam", r"optimiser must be a mapping of settings, got 'adam'"),
        ("stages.5.steps=1", r"stages\.5\.steps: takes a number from 0 to 1 in the place of '5'"),
        ("data.x=1", r"data\.x cannot be set: 'x' is inside a plain value"),
        ("seed", r"a change must read key=value, got 'seed'"),
    ],
)
def test_errors_name_the_key(path, change, message):
    with pytest.raises(ValueError, match=message):
        read_recipe(path, [change])


def test_what_is_missing_is_named(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("data: x\nout: y\n")
    with pytest.raises(ValueError, match=r"recipe\.yaml: stages is missing"):
        read_recipe(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", r"recipe\.yaml:1 is not YAML"),
        ("out: y\noptimiser:\n  lr: 1\n  lr: 2\n", r"recipe\.yaml:4 is not YAML: lr is there twice"),
        ("- 1\n- 2\n", r"recipe\.yaml must hold a mapping of settings, got list"),
    ],
)
def test_files_that_are_no_recipe(tmp_path, text, message):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_recipe(file)


def test_devices_and_folders_are_no_recipe(tmp_path):
    with pytest.raises(ValueError, match=r"^/dev/zero is a device, takes a file$"):
        read_recipe(Path("/dev/zero"))
    with pytest.raises(ValueError, match="is a folder, takes a file"):
        read_recipe(tmp_path)
