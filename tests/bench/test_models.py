import pytest
import torch

from reluformer.bench import models
from reluformer.bench.models import (
    COMPILED,
    EIGHTH,
    MARIAN,
    NORMED_TWIN,
    POWERED,
    QUARTER,
    REGULARISED,
    RELU,
    TWIN,
    Load,
)

CPU = torch.device("cpu")
LOAD = Load("tiny", length=6, batch=2, vocab_size=50, dtype="float32")


@pytest.mark.parametrize(
    ("race", "names"),
    [
        ("training", [RELU, REGULARISED, QUARTER, POWERED, EIGHTH, TWIN, NORMED_TWIN, MARIAN]),
        ("generation", [RELU, POWERED, EIGHTH, TWIN, MARIAN]),
    ],
)
def test_everybody_runs_and_is_compared_with_the_twin(race, names):
    rows = getattr(models, race)(LOAD, CPU, 0.001, 1)
    assert [row.name for row in rows] == names
    twin = next(row for row in rows if row.name == TWIN)
    for row in rows:
        assert row.note == ""
        assert row.tokens_per_s == pytest.approx(1000 * 12 / row.ms)
        assert row.vs_twin == pytest.approx(twin.ms / row.ms)


def test_contestants_are_of_one_size():
    sizes = {name: sum(p.numel() for p in make().parameters()) for name, make in models.models(LOAD).items()}
    assert max(sizes.values()) < 1.02 * min(sizes.values())


def test_without_leaves_out_those_with_the_word_even_the_one_that_all_are_compared_with():
    rows = models.training(LOAD, CPU, 0.001, 1, without=["marian", "Twin", "power", "regulariser"])
    assert [(row.name, row.vs_twin, row.vs_marian) for row in rows] == [(RELU, None, None)]


def test_a_model_runs_in_the_ways_that_are_asked_for_and_is_compared_with_the_twin_that_runs_likewise(monkeypatch):
    compiled = []
    monkeypatch.setattr(models, "_compile", compiled.append)
    rows = models.training(LOAD, CPU, 0.001, 1, without=["marian", "power", "regulariser", "norm"], ways=(False, True))
    assert [row.name for row in rows] == [RELU, TWIN, RELU + COMPILED, TWIN + COMPILED]
    assert len(compiled) == 2
    assert [row.vs_twin for row in rows if row.name.startswith(TWIN)] == [1.0, 1.0]


def test_the_names_are_those_of_the_contestants():
    assert list(models.models(LOAD)) == list(models.NAMES)
