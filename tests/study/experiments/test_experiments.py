"""Of every experiment: arms with names of their own, settings that JSON can hold, claims about arms that exist."""

import json
from pathlib import Path

import pytest

from reluformer.study.experiment import StudyError
from reluformer.study.experiments import find_experiments
from reluformer.study.scales import SCALES, Scale
from reluformer.training.run import KINDS

FOUND = find_experiments()


@pytest.mark.parametrize("scale", SCALES.values(), ids=["smoke", "laptop", "large"])  # "gpu" is a mark
@pytest.mark.parametrize("name", FOUND)
def test_arms(name: str, scale: Scale) -> None:
    arms = FOUND[name][0].arms(scale)
    assert len({arm.name for arm in arms}) == len(arms)
    assert len({json.dumps(arm.settings, sort_keys=True) for arm in arms}) == len(arms)
    assert arms == FOUND[name][0].arms(scale)


@pytest.mark.parametrize("name", FOUND)
def test_claims_and_figures_are_about_arms(name: str) -> None:
    experiment = FOUND[name][0]
    arms = {arm.name for arm in experiment.arms(SCALES["gpu"])}
    for claim in experiment.claims_at(SCALES["gpu"]):
        assert {claim.arm, claim.other} <= arms
        assert claim.relation in "<>="
    assert set(experiment.paper) <= arms
    keys = {column.key for column in experiment.columns}
    assert {key for figures in experiment.paper.values() for key in figures} <= keys


def test_a_process_may_compile_every_model_of_a_study() -> None:
    """Beyond the limit layers run uncompiled, and nobody is told."""
    arms = [arm for experiment, _ in FOUND.values() for arm in experiment.arms(SCALES["gpu"])]
    models = {json.dumps(arm.settings["model"], sort_keys=True) for arm in arms if "model" in arm.settings}
    assert 100 < len(models) < KINDS


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "twin.py").write_text("from reluformer.study.experiments.ffn import EXPERIMENT\n")
    with pytest.raises(StudyError, match=r"there is an experiment ffn already"):
        find_experiments([tmp_path / "twin.py"])


def test_a_file_that_does_not_load_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(StudyError, match=r"broken.py cannot be loaded: ZeroDivisionError: division by zero"):
        find_experiments([tmp_path / "broken.py"])
