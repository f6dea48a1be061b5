import pytest

from reluformer.study.bench import Bench
from reluformer.study.experiments import documents
from reluformer.study.experiments.extrapolation import EXPERIMENT, claims
from reluformer.study.scales import SCALES, Scale


def test_every_model_is_tested_at_every_length(bench: Bench) -> None:
    keys = {column.key for column in EXPERIMENT.columns} | {plot.metric for plot in EXPERIMENT.plots}
    results = {arm.name: EXPERIMENT.run(arm, 0, bench) for arm in EXPERIMENT.arms(bench.scale)}
    assert len(results) == (3 * 3 + 2) * len(bench.scale.reach)
    for name, result in results.items():
        assert keys <= result.keys()
        assert ("curve" in result) == name.endswith(", 60")
        assert (result["beyond"] is None) == name.endswith(", 60")
    # A divisor that does not know how many keys there are lets the mass grow with them, a root of it more slowly.
    growth = {name: results[f"{name}, 100"]["mass"] / results[f"{name}, 60"]["mass"] for name in
              ("ReLU, scaled by n", "ReLU, fixed scale", "ReLU, divided by n", "softmax")}  # fmt: skip
    assert growth["ReLU, fixed scale"] > growth["ReLU, scaled by n"] > growth["ReLU, divided by n"]
    assert growth["ReLU, divided by n"] == pytest.approx(1, rel=0.1)
    assert growth["softmax"] == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("scale", [SCALES["laptop"], SCALES["gpu"]], ids=["laptop", "large"])
def test_claims_are_about_lengths_that_the_scale_has(scale: Scale) -> None:
    names = {arm.name for arm in EXPERIMENT.arms(scale)}
    assert all({claim.arm, claim.other} <= names for claim in claims(scale))


def test_models_are_those_of_documents_where_they_can_be(bench: Bench) -> None:
    """Their folders are the same: nothing is trained twice."""
    theirs = {
        bench.train(arm.settings["model"], 0, 60).folder
        for arm in documents.EXPERIMENT.arms(bench.scale)
        if arm.series in ("ReLUFormer", "power 8", "Transformer")
    }
    arms = {arm.series: arm.settings for arm in EXPERIMENT.arms(bench.scale)}
    ours = {
        bench.train(arms[name]["model"], 0, arms[name]["length"], **arms[name].get("recipe", {})).folder
        for name in ("ReLU, scaled by n", "power 8", "softmax")
    }
    assert ours == theirs


@pytest.mark.parametrize("name", SCALES, ids=["smoke", "laptop", "large"])  # "gpu" is a mark
def test_the_trained_length_is_one_of_documents(name: str) -> None:
    assert SCALES[name].reach[0] in SCALES[name].lengths
    assert sorted(SCALES[name].reach) == list(SCALES[name].reach)
