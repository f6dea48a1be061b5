import dataclasses

from reluformer.study.bench import Bench
from reluformer.study.experiments.retrieval import EXPERIMENT
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
