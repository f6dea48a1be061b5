import dataclasses

import pytest
from transformers import AutoConfig

from reluformer.study.bench import Bench
from reluformer.study.experiments.attempts import EXPERIMENT, SHARE
from reluformer.study.scales import SCALES
from reluformer.training.run import model_config

ARMS = EXPERIMENT.arms(SCALES["gpu"])


@pytest.mark.parametrize("arm", ARMS, ids=[arm.name for arm in ARMS])
def test_every_arm_is_a_model_and_a_recipe(arm, bench: Bench) -> None:
    own = Bench(dataclasses.replace(bench.scale, steps=90), bench.corpus, bench.work)
    recipe = own.recipe(arm.settings["model"], 0, 0, steps=SHARE, **arm.settings.get("recipe", {}))
    assert recipe.stages[0].steps == 30
    assert AutoConfig.for_model(**model_config(recipe, 96).to_dict()).vocab_size == 96


def test_no_two_arms_are_the_same(bench: Bench) -> None:
    recipes = [bench.recipe(arm.settings["model"], 0, 0, steps=90, **arm.settings.get("recipe", {})) for arm in ARMS]
    found = [(str(recipe.model), recipe.optimiser, recipe.regulariser_warmup, recipe.anneal) for recipe in recipes]
    assert len(set(found)) == len(found)
