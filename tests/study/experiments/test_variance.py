import math

import pytest

from reluformer.study.bench import Bench
from reluformer.study.experiments.variance import EXPERIMENT


def test_drawn_scores_follow_the_lemma(bench: Bench) -> None:
    for arm in EXPERIMENT.arms(bench.scale):
        if "n" not in arm.settings:
            continue
        found = EXPERIMENT.run(arm, 0, bench)
        if arm.settings["activation"] == "softmax":
            # e/n is the limit of many slots. To first order in 1/n, by the delta method for sum e^2s / (sum e^s)^2:
            missing = (2 * (math.e**2 - 1) - 3 * (math.e - 1)) / arm.settings["n"]
            assert 1 - missing - 0.02 < found["ratio"] < 1
        else:
            assert found["ratio"] == pytest.approx(1, abs=0.05)


def test_trained_models_are_measured(bench: Bench) -> None:
    arms = {arm.name: arm for arm in EXPERIMENT.arms(bench.scale)}
    relu = EXPERIMENT.run(arms["ReLU FFN, trained"], 0, bench)
    assert (relu["n"], relu["expected"]) == (8, 4)
    assert 0.3 < relu["ratio"] < 3  # hardly trained, so still nearly what it was drawn as
    softmax = EXPERIMENT.run(arms["softmax attention, trained"], 0, bench)
    assert softmax["variance"] > 0
