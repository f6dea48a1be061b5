import dataclasses
import json
from pathlib import Path

from reluformer.study.bench import Bench
from reluformer.study.experiments.attention import EXPERIMENT
from reluformer.study.pace import paces


def test_a_model_with_more_to_do_has_a_lower_pace(bench: Bench) -> None:
    deep, plain = (bench.recipe(model, 0, 0) for model in ({"encoder_layers": 8, "decoder_layers": 8}, {}))
    slow, fast = paces(deep, plain, beam=2), paces(plain, deep, beam=2)
    for what in ("training", "translation"):
        assert slow[what] < 0.7
        assert fast[what] > 1.4


def test_it_is_measured_once_and_softmax_is_its_unit(bench: Bench, tmp_path: Path) -> None:
    bench = dataclasses.replace(bench, work=tmp_path)
    relu = {"family": "reluformer", "regulariser": {"mass": 0.1, "entropy": 0.1}}
    assert bench.paces({}) == {"training": 1.0, "translation": 1.0}
    first = bench.paces(relu)
    assert all(0.05 < x < 5 for x in first.values())
    assert bench.paces(relu) == first
    assert len(list((tmp_path / "paces").glob("*.json"))) == 1


def test_equal_time_is_less_of_the_curve_for_a_slower_model(bench: Bench, tmp_path: Path) -> None:
    bench = dataclasses.replace(bench, work=tmp_path)
    arms = {arm.name: arm for arm in EXPERIMENT.arms(bench.scale)}
    bench.paces(arms["scale only"].settings["model"])
    (kept,) = (tmp_path / "paces").glob("*.json")
    kept.write_text(json.dumps({"training": 0.5, "translation": 2.0}))
    softmax, slower = (dict(EXPERIMENT.run(arms[name], 0, bench)) for name in ("softmax", "scale only"))
    assert EXPERIMENT.alone is not None
    slower |= EXPERIMENT.alone(arms["scale only"], 0, bench, slower)
    assert (slower["pace"], slower["translation_pace"]) == (0.5, 2.0)
    assert slower["nll_equal_steps"] == slower["curve"][-1]["nll"]
    assert slower["nll_equal_time"] == slower["curve"][0]["nll"]  # the second of four updates
    softmax |= EXPERIMENT.alone(arms["softmax"], 0, bench, softmax)
    assert softmax["nll_equal_time"] == softmax["nll_equal_steps"]
