from types import SimpleNamespace

import pytest
import torch

from reluformer.data.batching import CostBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.models import ReLUFormerForConditionalGeneration
from reluformer.report import memory_report
from reluformer.study.bench import Bench
from reluformer.study.recalibration import Recalibration
from reluformer.training.loading import longer_sides
from reluformer.training.run import model_config

FIXED = {"family": "reluformer"} | {site: {"alpha": 0.0} for site in ("encoder_self", "decoder_self", "cross")}


def test_gamma_gives_unit_mass_on_documents_from_their_first_update_on(bench: Bench) -> None:
    recipe = bench.recipe(FIXED, 0, 60, steps=10)
    torch.manual_seed(0)
    model = ReLUFormerForConditionalGeneration(model_config(recipe, 300)).eval()
    examples = PackedDataset(recipe.data, "train", 60)
    numbers = next(iter(CostBatches(longer_sides(examples), recipe.batches.cost, seed=0)))
    batch = Collator()([examples[i] for i in numbers])
    callback = Recalibration(recipe)
    before = [site.mean.mass for site in memory_report(model, batch).sites if site.kind == "attention"]
    for step in (0, 6, 8):
        callback.on_step_begin(None, SimpleNamespace(global_step=step), None, model=model)
    assert [site.mean.mass for site in memory_report(model, batch).sites if site.kind == "attention"] == before
    callback.on_step_begin(None, SimpleNamespace(global_step=7), None, model=model)
    for site in memory_report(model, batch).sites:
        if site.kind == "attention":
            assert site.mean.mass == pytest.approx(1, rel=1e-3)


def test_it_makes_another_model_and_is_part_of_its_name(bench: Bench) -> None:
    plain, again = bench.train(FIXED, 0, 60), bench.train(FIXED, 0, 60, recalibrate=True)
    assert plain.folder != again.folder
    assert plain.result["curve"][0]["nll"] == again.result["curve"][0]["nll"]  # on sentences they are the same
    assert plain.result["nll"] != again.result["nll"]
