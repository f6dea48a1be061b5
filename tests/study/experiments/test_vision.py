from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from reluformer.memory import Attention
from reluformer.models import ReLUFormerForImageClassification, ReLUFormerImageConfig
from reluformer.study.bench import Bench
from reluformer.study.cells import grid, run_cell
from reluformer.study.experiments import find_experiments
from reluformer.study.experiments.vision import EXPERIMENT, published, set_published_scale, training_gflop
from reluformer.study.scales import SCALES
from reluformer.study.vision.training import Course
from tests.study.vision.pictures import write_folder

OWN = """
from reluformer.study.experiments.vision import Plan, vision
from reluformer.study.vision.training import Course

PLAN = Plan("digits", Course(steps=2, batch=4), {{"channels": 3, "layers": 1}}, alphas=(0.0, 0.5, 1.0))
EXPERIMENT = vision({folder!r}, name="brightness", plans=PLAN)
"""


@pytest.mark.parametrize("name", ["softmax", "sigmoid, alpha 0.5", "relu, alpha 1, gate", "relu, gamma learned"])
def test_arms_are_trained_and_measured(name: str, bench: Bench) -> None:
    arm = next(arm for arm in EXPERIMENT.arms(SCALES["smoke"]) if arm.name == name)
    result = EXPERIMENT.run(arm, 0, bench)
    assert {column.key for column in EXPERIMENT.columns} <= result.keys()
    assert ("accuracy_by_alpha" in result) == (arm.x is not None)
    assert 0 <= result["accuracy"] <= 100
    assert result["curve"][-1]["step"] == 4


def test_the_published_scale_divides_by_a_power_of_the_length() -> None:
    config = ReLUFormerImageConfig.preset("reluformer-digits", encoder_self=published("relu", 0.5))
    model = ReLUFormerForImageClassification(config)
    set_published_scale(model)
    memory = next(x for x in model.modules() if isinstance(x, Attention))
    x = torch.randn(2, 17, 64)
    call = memory.lookup(x)
    weights = (call.q @ call.k.mT / 4).relu() / 17**0.5
    expected = memory.output((weights @ call.v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(memory(x)[0], expected, atol=1e-5, rtol=1e-5)


def test_compute_is_what_is_computed() -> None:
    config = ReLUFormerImageConfig.preset("transformer-digits", encoder_self=published("identity", 1.0), patch_size=1)
    model = ReLUFormerForImageClassification(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(4, 1, 8, 8), labels=torch.zeros(4, dtype=torch.long)).loss.backward()
    expected = training_gflop(config, Course(steps=1, batch=4))
    assert counter.get_total_flops() / 1e9 == pytest.approx(expected, rel=0.02)  # patches and head come to little


def test_images_of_your_own_are_an_experiment_in_a_file(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN.format(folder=str(write_folder(tmp_path / "pictures"))))
    experiment, place = find_experiments([file])["brightness"]
    cells = grid(experiment, place, SCALES["smoke"], bench.corpus, 1, tmp_path / "out")
    cell = next(cell for cell in cells if cell.arm.name == "relu, alpha 1")
    assert run_cell(cell, experiment) == "done", cell.record()
    record = cell.record()
    assert record is not None
    assert record["corpus"] == str(tmp_path / "pictures")
    names = {cell.arm.name for cell in cells}
    assert all({claim.arm, claim.other} <= names for claim in experiment.claims_at(None))
