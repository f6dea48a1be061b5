import dataclasses
from pathlib import Path

import pytest

from reluformer.study.approximation.rate import fit_rate
from reluformer.study.bench import Bench
from reluformer.study.experiments import approximation
from reluformer.study.experiments.approximation import EXPERIMENT
from reluformer.study.scales import SCALES

ARMS = {arm.name: arm for arm in EXPERIMENT.arms(SCALES["smoke"])}


@pytest.fixture
def fresh(bench: Bench, tmp_path: Path) -> Bench:
    """Nothing is trained yet."""
    return dataclasses.replace(bench, work=tmp_path)


def test_all_arms_run_at_the_smallest_scale(fresh: Bench) -> None:
    keys = {column.key for column in EXPERIMENT.columns} | {plot.metric for plot in EXPERIMENT.plots}
    seen = set[str]()
    for arm in ARMS.values():
        result = EXPERIMENT.run(arm, 0, fresh)
        seen |= result.keys()
        assert 0 < result.get("error", 1) < 2
    assert seen == keys


def test_a_cell_is_that_of_its_seed(fresh: Bench, tmp_path: Path) -> None:
    arm = ARMS["softmax, 2-D, width 64"]
    first = EXPERIMENT.run(arm, 0, fresh)
    assert EXPERIMENT.run(arm, 0, dataclasses.replace(fresh, work=tmp_path / "again")) == first
    assert EXPERIMENT.run(arm, 1, fresh)["error"] != first["error"]


def test_the_rate_is_that_of_the_cells_and_trains_nothing_again(fresh: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = ARMS["ReLU, 1-D, rate"]
    widths = rate.settings["widths"]
    errors = [EXPERIMENT.run(ARMS[f"ReLU, 1-D, width {width}"], 0, fresh)["error"] for width in widths]
    monkeypatch.setattr(approximation, "measure", None)
    expected = fit_rate(widths, errors)
    assert EXPERIMENT.run(rate, 0, fresh) == {"slope": expected.slope, "slope_ci": expected.interval}
