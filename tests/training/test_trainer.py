"""The loss: what an update minimises does not depend on how its batches are split."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import TrainerCallback

from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.models import ReLUFormerForConditionalGeneration
from reluformer.models.loss import IGNORED
from reluformer.training.arguments import training_arguments
from reluformer.training.checkpoints import CheckpointFolder
from reluformer.training.recipe import Optimiser, Stage
from reluformer.training.recording import RecordedStep
from reluformer.training.run import model_config
from reluformer.training.trainer import TranslationTrainer
from tests.training.runs import MODEL, Repeats, small_recipe


def make(data: Path, out: Path, **changes: Any) -> TranslationTrainer:
    recipe = small_recipe(data, out, model={**MODEL, "dropout": 0.0}, **changes)
    torch.manual_seed(0)
    return TranslationTrainer(
        recipe,
        ReLUFormerForConditionalGeneration(model_config(recipe, 300)),
        training_arguments(recipe),
        [PackedDataset(data, "train", stage.length) for stage in recipe.stages],
        CheckpointFolder(out / "checkpoints"),
        data_collator=Collator(),
    )


def batch_of(trainer: TranslationTrainer, *numbers: int) -> Any:
    assert trainer.train_dataset is not None
    return trainer.data_collator([trainer.train_dataset[i] for i in numbers])


def test_the_loss_is_smoothed_and_regularised(data: Path, tmp_path: Path) -> None:
    trainer = make(data, tmp_path, regulariser_warmup=10, optimiser=Optimiser(label_smoothing=0.2))
    trainer.current_gradient_accumulation_steps = 1
    batch = batch_of(trainer, 0, 1, 2)
    labels = batch["labels"]
    tokens = (labels != IGNORED).sum()
    model: Any = trainer.model
    model.train()
    out = model(**{k: x for k, x in batch.items() if k != "labels"}, decoder_attention_mask=labels != IGNORED)
    smoothed = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    assert out.regularisation > 1e-3
    for step, share in ((0, 0.0), (5, 0.5), (10, 1.0), (50, 1.0)):
        trainer.state.global_step = step
        loss = trainer.compute_loss(model, dict(batch), num_items_in_batch=tokens)
        torch.testing.assert_close(loss, smoothed + share * out.regularisation)


def test_padding_changes_nothing(data: Path, tmp_path: Path) -> None:
    trainer = make(data, tmp_path)
    trainer.current_gradient_accumulation_steps = 1
    trainer.state.global_step = 100
    trainer.model.train()  # type: ignore[union-attr]
    batch = batch_of(trainer, 0, 1, 2)
    tokens = (batch["labels"] != IGNORED).sum()
    losses = []
    for multiple in (1, 32):
        trainer.data_collator = Collator(multiple)
        loss = trainer.compute_loss(trainer.model, batch_of(trainer, 0, 1, 2), num_items_in_batch=tokens)
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_an_update_in_parts_is_the_update(data: Path, tmp_path: Path) -> None:
    trainer = make(data, tmp_path, regulariser_warmup=0)
    model: Any = trainer.model
    model.train()
    model.config.regulariser = {"mass": 0.0, "entropy": 0.0, "ceiling": 0.7}  # a mean over batches, not over tokens
    gradients = []
    for parts in ([(0, 1, 2, 3)], [(0,), (1, 2, 3)]):
        batches = [batch_of(trainer, *part) for part in parts]
        trainer.current_gradient_accumulation_steps = len(batches)
        tokens = torch.stack([(batch["labels"] != IGNORED).sum() for batch in batches]).sum()
        model.zero_grad()
        for batch in batches:
            trainer.training_step(model, batch, tokens)
        gradients.append({name: x.grad.clone() for name, x in model.named_parameters()})
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_bfloat16_computes_so_and_keeps_the_weights(data: Path, tmp_path: Path) -> None:
    trainer = make(data, tmp_path, precision="bf16")
    trainer.current_gradient_accumulation_steps = 1
    batch = batch_of(trainer, 0, 1)
    tokens = (batch["labels"] != IGNORED).sum()
    with trainer.compute_loss_context_manager():
        loss, out = trainer.compute_loss(trainer.model, batch, return_outputs=True, num_items_in_batch=tokens)
    assert (out.logits.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    assert {x.dtype for x in trainer.model.parameters()} == {torch.float32}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("schedule", "last"), [("inverse_sqrt", (4 / 100) ** 0.5), ("linear", 0.0), ("cosine", 0.0), ("constant", 1.0)]
)
def test_schedules(data: Path, tmp_path: Path, schedule: str, last: float) -> None:
    optimiser = Optimiser(lr=0.5, warmup=4, schedule=schedule, gamma_lr=3.0)
    trainer = make(data, tmp_path, optimiser=optimiser, stages=(Stage(0, 100),))
    trainer.create_optimizer_and_scheduler(100)
    assert trainer.optimizer is not None
    assert trainer.lr_scheduler is not None
    rates = []
    for _ in range(101):
        rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert rates[2][0] == pytest.approx(0.25)
    assert rates[4][0] == pytest.approx(0.5)
    assert rates[100][0] == pytest.approx(0.5 * last, abs=1e-9)
    assert all(rate[2] == pytest.approx(3 * rate[0]) for rate in rates)


def test_stages_follow_each_other(data: Path, tmp_path: Path) -> None:
    trainer = make(data, tmp_path)  # six updates each, of two batches
    first = len(PackedDataset(data, "train", 0))
    batches = list(trainer.batches)
    assert len(batches) == 24
    assert all(i < first for batch in batches[:12] for i in batch)
    assert all(i >= first for batch in batches[12:] for i in batch)
    found = []
    for step in (1, 6, 7, 12):
        trainer.state.global_step = step
        found.append(trainer.stage.length)
    assert found == [0, 0, 60, 60]


class Evaluates(TrainerCallback):
    """Leaves the model as an evaluation does."""

    def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
        model.eval()


def test_a_recorded_run_is_the_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    freed: list[list[Any]] = []
    for name in ("plain", "recorded"):
        trainer = make(data, tmp_path / name, graphs=True, anneal=5)
        assert trainer.recorded is None  # there is no GPU
        model: Any = trainer.model
        if name == "recorded":
            recorded = trainer.recorded = RecordedStep(trainer._step, model.parameters(), Repeats(model))
            monkeypatch.setattr("torch.cuda.empty_cache", lambda x=recorded: freed.append([*x.known, *x.gradients]))
        trainer.add_callback(Evaluates())
        trainer.train()
        weights.append({name: x.detach().clone() for name, x in model.named_parameters()})
        curve = [point for point in trainer.state.log_history if "nll" in point]
        assert all(point["regularisation"] > 0 for point in curve)
    recorder: Any = recorded.recorder
    assert recorder.recorded >= 2  # with softmax and without, at least
    assert recorder.replayed > recorder.recorded
    assert freed == [[]]  # nothing was kept by then
    torch.testing.assert_close(*weights)


def test_batches_of_graphs_have_few_shapes(data: Path, tmp_path: Path) -> None:
    trainer = make(data, tmp_path, graphs=True)
    shapes = {tuple(batch["input_ids"].shape) for batch in trainer.get_train_dataloader()}
    known = trainer.recipe.shapes
    assert known is not None
    assert shapes == {(known.rows(length), length) for _, length in shapes}
    assert len(shapes) < len(trainer.batches)
