import dataclasses
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from reluformer.study.bench import Bench, Trained
from reluformer.study.corpus import open_corpus
from reluformer.study.trunk import Trunk
from reluformer.training.errors import TrainingError
from tests.training.runs import prepare_data

MODEL = {"family": "reluformer"}
OTHER = 100


@pytest.fixture(scope="module")
def both(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Data of two lengths, and a run long enough for a checkpoint on either side of the sentences' end."""
    folder = tmp_path_factory.mktemp("trunk")
    scale = dataclasses.replace(bench.scale, steps=10, points=3, lengths=(60, OTHER))
    return Bench(scale, open_corpus(prepare_data(folder, lengths=(0, 60, OTHER))), folder / "work")


def steps_of(trained: Trained) -> list[int]:
    lines = (trained.folder.parent / "log.jsonl").read_text().splitlines()
    return [point["step"] for line in lines if "loss" in (point := json.loads(line))]


def test_a_run_that_goes_on_from_it_is_as_if_it_had_done_all_by_itself(both: Bench, tmp_path: Path) -> None:
    both.train(MODEL, 0, 60)
    grafted = both.train(MODEL, 0, OTHER)
    alone = dataclasses.replace(both, work=tmp_path).train(MODEL, 0, OTHER)
    first, second = (load_file(x.folder / "model.safetensors") for x in (grafted, alone))
    assert all(first[name].equal(second[name]) for name in second)
    assert [point["nll"] for point in grafted.result["curve"]] == [point["nll"] for point in alone.result["curve"]]
    assert grafted.result["nll"] == alone.result["nll"]
    assert steps_of(grafted) == steps_of(alone)


def test_it_is_trained_once_for_all_lengths_but_not_for_other_seeds(
    both: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    keep = Trunk.keep
    monkeypatch.setattr(Trunk, "keep", lambda trunk: (kept.append(trunk.recipe.seed), keep(trunk))[1])
    for length in (60, OTHER):
        for seed in (1, 2):
            both.train(MODEL, seed, length)
    assert kept == [1, 2]


def test_sentences_alone_need_none(both: Bench) -> None:
    before = set((both.work / "trunks").glob("*"))
    both.train(MODEL, 3)
    assert set((both.work / "trunks").glob("*")) == before


def test_one_who_dies_on_the_way_leaves_it_to_the_next(both: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trunk, "keep", fail)
        with pytest.raises(TrainingError):
            both.train(MODEL, 4, 60)
    again = both.train(MODEL, 4, OTHER)
    assert again.result["steps"] == 10
    assert both.train(MODEL, 4, 60).result["steps"] == 10  # which has a checkpoint of its own, where the trunk ends


def fail(*_):
    raise TrainingError("the disk is full")
