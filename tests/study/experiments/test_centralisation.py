import dataclasses

import pytest

from reluformer.study.bench import Bench
from reluformer.study.experiments import slots
from reluformer.study.experiments.centralisation import EXPERIMENT


@pytest.mark.parametrize(("name", "prefix"), [("ReLU, FFN, 16", "ffn_"), ("softmax, key-value, 16", "self_")])
def test_the_memory_with_the_slots_is_looked_into(name: str, prefix: str, bench: Bench) -> None:
    all_updates = dataclasses.replace(bench.scale, extras=False)
    arm = next(arm for arm in EXPERIMENT.arms(all_updates) if arm.name == name)
    result, model = EXPERIMENT.run(arm, 0, bench), slots.run(arm, 0, bench)
    for column in EXPERIMENT.columns:
        assert result[column.key] == model[f"{prefix}{column.key}"] is not None
