"""Attention that turns from softmax into ReLU: when, and that nothing that happens to a run changes it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from transformers import TrainerCallback, TrainerControl, TrainerState

from reluformer.memory.attention import Attention
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.training.annealing import Annealing
from reluformer.training.recipe import Checkpoints, Recipe
from reluformer.training.run import train
from reluformer.training.trainer import TranslationTrainer, evaluations_of
from tests.training.runs import curve, same, weights

UPDATES = 5


def shares_of(model: Any) -> list[float | None]:
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    return [None if x.softmax_share is None else x.softmax_share.item() for x in attentions]


def make() -> Any:
    torch.manual_seed(0)
    return ReLUFormerForConditionalGeneration(ReLUFormerConfig.preset("reluformer-tiny", vocab_size=8))


@pytest.mark.parametrize("start", [0, 2, 4, 6])
def test_the_share_falls_in_a_line_wherever_a_run_begins(start: int) -> None:
    model = make()
    annealing = Annealing(model, 4, start, torch.device("cpu"))
    found = [shares_of(model)]
    for step in range(start + 1, 7):
        annealing.on_step_end(None, TrainerState(global_step=step), TrainerControl())
        found.append(shares_of(model))
    assert found == [[share] * 6 for share in (1.0, 0.75, 0.5, 0.25, None, None, None)[start:]]


def test_compiled_layers_are_compiled_again_at_the_end_alone() -> None:
    torch.compiler.reset()
    model, counter = make(), CompileCounter()
    model.compile_layers(backend=counter)
    annealing, losses, counts = Annealing(model, 3, 0, torch.device("cpu")), [], []
    ids = torch.arange(2, 8)[None]
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        for step in range(1, 6):
            losses.append(model(ids, labels=ids).loss.item())
            counts.append(counter.frame_count)
            annealing.on_step_end(None, TrainerState(global_step=step), TrainerControl())
    assert counts == [3, 3, 3, 6, 6]  # a layer of either side, and the loss
    assert len(set(losses)) == 4


class Watch(TrainerCallback):
    """The share by the update after which there was an evaluation."""

    def __init__(self) -> None:
        self.evaluated: dict[int, float | None] = {}

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self.evaluated[state.global_step] = shares_of(more["model"])[0]


@pytest.fixture(scope="module")
def annealed(whole: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A run that nothing disturbed: softmax at first, from the sixth of its twelve updates on ReLU."""
    recipe = replace(whole, out=str(tmp_path_factory.mktemp("annealed") / "run"), anneal=UPDATES)
    watch = Watch()
    train(recipe, [watch])
    assert watch.evaluated == pytest.approx({3: 0.4, 6: None, 9: None, 12: None})
    return recipe


def test_it_learns_another_way_and_leaves_a_model_as_any(annealed: Recipe, whole: Recipe) -> None:
    found, usual = weights(annealed.out), weights(whole.out)
    assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in usual.items()}
    assert not same(found, usual)
    configurations = [(Path(x.out) / "model" / "config.json").read_text() for x in (annealed, whole)]
    assert configurations[0] == configurations[1]


@pytest.mark.parametrize("update", [5, 8])  # in the midst of it, and after it; there are checkpoints of 3 and 6
def test_a_run_that_broke_off_ends_the_same(
    annealed: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    recipe = replace(annealed, out=str(tmp_path / "run"))
    original = TranslationTrainer.compute_loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == update - 1:
            raise InterruptedError
        return original(self, *args, **kwargs)

    monkeypatch.setattr(TranslationTrainer, "compute_loss", compute_loss)
    with pytest.raises(InterruptedError):
        train(recipe)
    monkeypatch.undo()
    train(recipe)
    assert same(weights(recipe.out), weights(annealed.out))
    assert curve(recipe.out) == curve(annealed.out)


def test_what_is_still_softmax_is_never_the_best(whole: Recipe) -> None:
    recipe = replace(whole, stages=whole.stages[:1], anneal=4, checkpoints=Checkpoints(every=1, patience=2))
    log = [{"eval_loss": loss, "step": step} for step, loss in enumerate([1.0, 1.1, 1.2, 2.0, 1.9], 1)]
    assert evaluations_of(recipe, TrainerState(log_history=log)).steps == [4, 5]
