import dataclasses

import pytest

from reluformer.study.bench import Bench
from reluformer.study.cells import Cell, write_cell
from reluformer.study.experiments import slots
from reluformer.study.experiments.centralisation import EXPERIMENT


@pytest.mark.parametrize(("name", "prefix"), [("ReLU, FFN, 16", "ffn_"), ("softmax, key-value, 16", "self_")])
def test_the_memory_with_the_slots_is_looked_into(name: str, prefix: str, bench: Bench) -> None:
    all_updates = dataclasses.replace(bench.scale, extras=False)
    arm = next(arm for arm in EXPERIMENT.arms(all_updates) if arm.name == name)
    result, model = EXPERIMENT.run(arm, 0, bench), slots.run(arm, 0, bench)
    for column in EXPERIMENT.columns:
        assert result[column.key] == model[f"{prefix}{column.key}"] is not None


def test_what_slots_has_measured_is_taken_from_its_cell_even_where_its_model_is_gone(bench: Bench) -> None:
    arm = next(arm for arm in EXPERIMENT.arms(dataclasses.replace(bench.scale, extras=False)) if "FFN" in arm.name)
    cell = Cell("slots", "", arm, 7, bench.scale, bench.corpus, str(bench.work.parent))
    write_cell(cell, "done", None, {"bleu": 1.5, "ffn_top": 0.25}, 1.0)
    result = EXPERIMENT.run(arm, 7, bench)
    assert (result["bleu"], result["top"], result["anisotropy"]) == (1.5, 0.25, None)
