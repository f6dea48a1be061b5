import dataclasses

import pytest

from reluformer.study.bench import Bench
from reluformer.study.experiment import Diverged
from reluformer.study.experiments.retrieval import COURSES, EXPERIMENT
from reluformer.study.scales import SCALES


def test_a_cell_has_all_numbers(bench: Bench) -> None:
    own = Bench(dataclasses.replace(bench.scale, name="smoke"), bench.corpus, bench.work)
    arms = {arm.name: arm for arm in EXPERIMENT.arms(SCALES["smoke"])}
    result = EXPERIMENT.run(arms["power 4"], 0, own)
    assert {column.key for column in EXPERIMENT.columns} <= result.keys()
    assert result["by_length"]["16"] == result["nll_long"]
    assert 0 <= result["zeros"] < 1
    assert 1 <= result["effective"] <= 16
    assert {name for claim in EXPERIMENT.claims_at(None) for name in (claim.arm, claim.other)} <= arms.keys()


def test_a_loss_that_is_no_number_is_no_result(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    course = dataclasses.replace(COURSES["smoke"], lr=1e30)
    monkeypatch.setitem(COURSES, "smoke", course)
    own = Bench(dataclasses.replace(bench.scale, name="smoke"), bench.corpus, bench.work)
    arm = next(arm for arm in EXPERIMENT.arms(SCALES["smoke"]) if arm.name == "power 4")
    with pytest.raises(Diverged, match="not a number"):
        EXPERIMENT.run(arm, 0, own)
