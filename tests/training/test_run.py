"""Runs: what they leave, and that nothing that happens to one changes how it ends."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.fx.experimental._config
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerCallback

from reluformer.data.dataset import load_tokenizer, read_manifest
from reluformer.data.documents import Languages
from reluformer.data.files import DataError
from reluformer.data.prepare import Plan, prepare
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.pretrained import languages_of
from reluformer.training.errors import NoNumber, TrainingError
from reluformer.training.recipe import Checkpoints, Recipe, Stage, read_recipe
from reluformer.training.recording import RecordedStep
from reluformer.training.run import compile_layers, model_config, train
from reluformer.training.trainer import TranslationTrainer
from tests.data.corpus import write_corpus
from tests.training.runs import MODEL, Repeats, curve, python, same, small_recipe, weights, write_recipe


def steps(out: Path | str) -> set[str]:
    return {path.name for path in (Path(out) / "checkpoints").iterdir()}


def test_what_a_run_leaves(whole: Recipe) -> None:
    out = Path(whole.out)
    assert {path.name for path in out.iterdir()} == {
        "checkpoints", "log.jsonl", "logs", "model", "recipe.yaml", "run.json",
    }  # fmt: skip
    assert read_recipe(out / "recipe.yaml") == whole
    assert steps(out) == {"step-9", "step-12"}
    assert list((out / "logs").iterdir())
    model = AutoModelForSeq2SeqLM.from_pretrained(out / "model")
    assert (model.config.d_model, model.config.trained_length, model.config.use_cache) == (32, 60, True)
    assert languages_of(out / "model") == Languages(*read_manifest(whole.data)["languages"])
    assert AutoTokenizer.from_pretrained(out / "model").get_vocab() == load_tokenizer(whole.data).get_vocab()


def test_the_curve(whole: Recipe) -> None:
    points = curve(whole.out)
    train_points = [point for point in points if "loss" in point]
    assert [point["step"] for point in train_points] == [2, 3, 4, 6, 8, 9, 10, 12]
    assert [point["step"] for point in points if "eval_loss" in point] == [3, 6, 9, 12]
    assert {"loss", "nll", "regularisation", "learning_rate", "grad_norm", "gamma"} <= train_points[0].keys()
    assert train_points[-1]["nll"] < train_points[0]["nll"] - 0.3
    assert train_points[0]["learning_rate"] == pytest.approx(3e-3 / 4)


def test_the_model_is_the_mean_of_the_last_checkpoints(whole: Recipe) -> None:
    parts = [load_file(Path(whole.out) / "checkpoints" / name / "model.safetensors") for name in ("step-9", "step-12")]
    for name, mean in weights(whole.out).items():
        torch.testing.assert_close(mean, (parts[0][name] + parts[1][name]) / 2)


def test_a_finished_run_does_nothing(whole: Recipe) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(whole.out).rglob("model*/*")}
    outcome = train(whole)
    assert (outcome.model, outcome.averaged) == (Path(whole.out) / "model", ())
    assert {path: path.stat().st_mtime_ns for path in Path(whole.out).rglob("model*/*")} == before


def test_the_same_again_is_the_same(whole: Recipe, tmp_path: Path) -> None:
    train(replace(whole, out=str(tmp_path), checkpoints=replace(whole.checkpoints, keep=9)))
    assert same(weights(tmp_path), weights(whole.out))


KILLED = """
import os, pathlib, signal, sys
from reluformer.training import averaging, checkpoints, run, trainer
from reluformer.training.recipe import read_recipe
place, count = sys.argv[2], int(sys.argv[3])
owner, name = {
    "step": (trainer.TranslationTrainer, "compute_loss"),
    "weights": (trainer.TranslationTrainer, "_save_optimizer_and_scheduler"),
    "state": (trainer.TranslationTrainer, "_save_rng_state"),
    "name": (checkpoints.CheckpointFolder, "publish"),
    "removal": (checkpoints.shutil, "rmtree"),
    "mean": (averaging, "save_file"),
}[place]
original, calls = getattr(owner, name), 0
def deadly(*args, **kwargs):
    global calls
    calls += 1
    if calls == count:
        if place == "removal":  # half done
            os.remove(os.path.join(args[0], "model.safetensors"))
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, deadly)
run.train(read_recipe(pathlib.Path(sys.argv[1])))
"""


# Two batches an update, a checkpoint every third; the first to be removed is that of step 3, when there are 6 and 9.
@pytest.mark.parametrize(
    ("place", "count", "left"),
    [
        ("step", 4, set()),
        ("weights", 2, {"step-3", "writing"}),
        ("name", 3, {"step-3", "step-6", "writing"}),
        ("removal", 1, {"removing-step-3", "step-6", "step-9"}),
        ("mean", 1, {"step-9", "step-12"}),
        pytest.param("step", 16, {"step-3", "step-6"}, marks=pytest.mark.slow),
        pytest.param("state", 3, {"step-3", "step-6", "writing"}, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_the_same(whole: Recipe, tmp_path: Path, place: str, count: int, left: set[str]) -> None:
    recipe = replace(whole, out=str(tmp_path / "run"))
    ran = python("-c", KILLED, write_recipe(recipe, tmp_path / "recipe.yaml"), place, count)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    found = steps(recipe.out) if (tmp_path / "run" / "checkpoints").exists() else set()
    assert found == left
    assert not (tmp_path / "run" / "model").exists()
    train(recipe)
    assert same(weights(recipe.out), weights(whole.out))
    assert curve(recipe.out) == curve(whole.out)
    assert steps(recipe.out) == steps(whole.out)
    assert {path.name for path in Path(recipe.out).iterdir()} == {path.name for path in Path(whole.out).iterdir()}


class Dies(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 8:
            raise ChildProcessError


def test_no_run_goes_on_from_a_part_of_a_checkpoint(whole: Recipe, tmp_path: Path) -> None:
    recipe = replace(whole, out=str(tmp_path / "run"))
    shutil.copytree(whole.out, recipe.out)
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-12")
    (tmp_path / "run" / "checkpoints" / "step-9" / "optimizer.pt").unlink()
    with pytest.raises(TrainingError, match=r"checkpoints/step-9 has no optimizer"):
        train(recipe)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_killed_run_of_graphs_ends_the_same(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    changes: dict[str, Any] = {}
    if recorded:
        original = TranslationTrainer.__init__

        def init(self: Any, *args: Any, **more: Any) -> None:
            original(self, *args, **more)
            self.recorded = RecordedStep(self._step, self.model.parameters(), Repeats(self.model))

        monkeypatch.setattr(TranslationTrainer, "__init__", init)
        changes["model"] = {**MODEL, "dropout": 0.0}  # Repeats draws numbers when it records, a GPU does not
    whole = small_recipe(data, tmp_path / "whole", graphs=True, **changes)
    train(whole)
    recipe = replace(whole, out=str(tmp_path / "run"))
    with pytest.raises(ChildProcessError):
        train(recipe, [Dies()])
    assert steps(recipe.out) == {"step-3", "step-6"}
    train(recipe)
    assert same(weights(recipe.out), weights(whole.out))
    assert curve(recipe.out) == curve(whole.out)


def after(monkeypatch: pytest.MonkeyPatch, batches: int, action: Any) -> None:
    """Do something when so many batches have gone through the model."""
    original, seen = TranslationTrainer.compute_loss, []

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        loss = original(self, *args, **kwargs)
        return action(self, loss) if len(seen) == batches else loss

    monkeypatch.setattr(TranslationTrainer, "compute_loss", compute_loss)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_update_and_the_run_goes_on(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    recipe = replace(whole, out=str(tmp_path / "run"))
    before = signal.getsignal(number)

    def interrupt(_: Any, loss: Any) -> Any:
        os.kill(os.getpid(), number)
        return loss

    after(monkeypatch, 15, interrupt)  # the first batch of the eighth update
    outcome = train(recipe)
    assert (outcome.step, outcome.model) == (8, None)
    assert signal.getsignal(number) == before
    assert steps(recipe.out) == {"step-3", "step-6", "step-8"}
    train(recipe)
    assert same(weights(recipe.out), weights(whole.out))
    assert steps(recipe.out) == {"step-9", "step-12"}


def test_a_loss_that_is_no_number_stops_the_run(whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(whole, out=str(tmp_path / "run"), log_every=4)
    after(monkeypatch, 13, lambda _, loss: loss * float("nan"))  # in the seventh update
    with pytest.raises(NoNumber) as error:
        train(recipe)
    last = tmp_path / "run" / "checkpoints" / "step-6"
    assert str(error.value) == (
        f"the loss is not a number any more between steps 7 and 8; the last good checkpoint is {last}"
    )
    monkeypatch.undo()
    train(recipe)
    assert same(weights(recipe.out), weights(whole.out))


def test_a_gradient_that_is_no_number_never_reaches_a_checkpoint(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(whole, out=str(tmp_path / "run"), log_every=100)

    def poison(trainer: Any, loss: Any) -> Any:
        gamma = next(x for name, x in trainer.model.named_parameters() if name.endswith("log_gamma"))
        gamma.register_hook(lambda grad: grad * float("inf"))
        return loss

    after(monkeypatch, 5, poison)  # the third update, after which a checkpoint is due; its loss is a number
    threads = set(threading.enumerate())
    with pytest.raises(TrainingError, match="between steps 1 and 3; there is no checkpoint yet"):
        train(recipe)
    assert set(threading.enumerate()) <= threads  # TensorBoard's too has written all and ended
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (
            RuntimeError("[enforce fail at inline_container.cc:863] . PytorchStreamWriter failed"),
            "No space left on device",
        ),
        (SafetensorError("Error: I/O error: No space left on device (os error 28)"), "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
    ],
)
def test_a_checkpoint_that_cannot_be_written(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    recipe = replace(whole, out=str(tmp_path / "run"))
    original = TranslationTrainer._save_rng_state

    def save(self: Any, folder: str) -> None:
        if self.state.global_step == 6:
            raise error
        original(self, folder)

    monkeypatch.setattr(TranslationTrainer, "_save_rng_state", save)
    if isinstance(error, RuntimeError):
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    last = tmp_path / "run" / "checkpoints" / "step-3"
    with pytest.raises(TrainingError) as raised:
        train(recipe)
    assert str(raised.value) == (f"cannot write the checkpoint of step 6: {reason}; the last good checkpoint is {last}")
    assert steps(recipe.out) == {"step-3"}
    monkeypatch.undo()
    train(recipe)
    assert same(weights(recipe.out), weights(whole.out))


def test_early_stopping_counts_in_the_last_stage(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([1.0, 2.0, 5.0, 6.0, 4.0, 4.5, 4.6, 4.7])
    monkeypatch.setattr("reluformer.training.validation.Validation.__call__", lambda *_: {"eval_loss": next(losses)})
    stages = (whole.stages[0], replace(whole.stages[1], steps=30))
    checkpoints = Checkpoints(every=3, keep=1, average=1, patience=2)
    outcome = train(replace(whole, out=str(tmp_path / "run"), stages=stages, checkpoints=checkpoints))
    assert outcome.step == 21
    assert outcome.best == tmp_path / "run" / "checkpoints" / "step-15"
    assert steps(tmp_path / "run") == {"step-15", "step-21"}


def test_d_bleu_decides_what_is_best(whole: Recipe, tmp_path: Path) -> None:
    checkpoints = Checkpoints(every=6, keep=2, average=1, metric="d-bleu", documents=2)
    outcome = train(replace(whole, out=str(tmp_path / "run"), checkpoints=checkpoints))
    scores = [point["eval_d_bleu"] for point in curve(tmp_path / "run") if "eval_loss" in point]
    assert len(scores) == 2
    assert all(0 <= score <= 100 for score in scores)
    assert outcome.model is not None


def test_calibration_is_part_of_the_model(whole: Recipe, tmp_path: Path) -> None:
    slow = replace(whole.optimiser, lr=1e-9)
    for name, calibrate in (("batch", True), ("formula", False)):
        train(replace(whole, out=str(tmp_path / name), optimiser=slow, calibrate=calibrate))
    batch, formula = weights(tmp_path / "batch"), weights(tmp_path / "formula")
    gammas = [name for name in batch if name.endswith("log_gamma")]
    assert len(gammas) == 3
    for name in gammas:
        assert not torch.allclose(batch[name], formula[name], atol=1e-3)
    assert all(torch.allclose(batch[name], formula[name], atol=1e-6) for name in batch if name not in gammas)


def test_the_twin_has_no_gamma(whole: Recipe, tmp_path: Path) -> None:
    model = {**MODEL, "preset": "transformer-tiny", "regulariser": {}}
    train(replace(whole, out=str(tmp_path / "run"), model=model))
    assert not any("gamma" in point or "regularisation" in point for point in curve(tmp_path / "run"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"presett": "x"}, r"model\.presett is not known; did you mean model\.preset\?"),
        ({"vocab_size": 7}, r"model\.vocab_size must be at least 300, as in .*, got 7"),
        ({"vocab_size": "abc"}, r"model\.vocab_size must be an int >= 1, got 'abc'"),
        ({"preset": 3}, r"model\.preset must be one of .*, got 3"),
        ({"use_cache": "x"}, r"model\.use_cache must be True or False, got 'x'"),
        ({"pad_token_id": 1}, r"model\.pad_token_id must be 0, as in .*, got 1"),
        ({"eos_token_id": 7}, r"model\.eos_token_id must be 2, as in .*, got 7"),
        ({"decoder_start_token_id": None}, r"model\.decoder_start_token_id must be 1, as in .*, got None"),
        ({"preset": "reluformer-huge"}, r"model\.preset must be one of .*, got 'reluformer-huge'"),
        ({"heads": 5}, r"model\.heads must divide d_model = 32, got 5"),
        ({"cross": {"alfa": 1}}, r"model\..*alfa"),
    ],
)
def test_models_that_are_none(data: Path, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        model_config(small_recipe(data, tmp_path, model={**MODEL, **change}), 300)


def test_the_vocabulary_is_a_multiple_of_8(data: Path, tmp_path: Path) -> None:
    assert model_config(small_recipe(data, tmp_path), 297).vocab_size == 304


@pytest.mark.parametrize("family", ["reluformer", "transformer"])
@torch.fx.experimental._config.patch(use_duck_shape=True)  # whatever it is set to, it is set back
def test_lengths_that_vary_are_compiled_once(family: str) -> None:
    """Compiling takes minutes on a GPU: no length, nor two that are the same by chance, may set it off again."""
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounter()
    fields = {name: x for name, x in MODEL.items() if name not in ("preset", "regulariser")}
    if family == "reluformer":
        fields["regulariser"] = MODEL["regulariser"]
    config = ReLUFormerConfig.preset(f"{family}-tiny", vocab_size=50, **fields)
    model = ReLUFormerForConditionalGeneration(config).train()
    compile_layers(model, backend=counter)
    counts = []
    for b, n, t in ((4, 24, 24), (3, 16, 40), (5, 56, 7), (7, 7, 7)):
        source, target = torch.randint(3, 50, (b, n)), torch.randint(3, 50, (b, t))
        mask = torch.arange(n) < torch.arange(n - b, n)[:, None] + 1
        out = model(source, mask, decoder_input_ids=target, decoder_query_mask=target != 3, use_cache=False)
        model.token_losses(out.logits, target, torch.tensor(b * t), 0.1)[0].backward()
        counts.append(counter.frame_count)
    assert counts[0] > 2
    assert counts == [counts[0]] * 4


@torch.fx.experimental._config.patch(use_duck_shape=True)
@torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True)
def test_many_models_are_compiled_in_one_process() -> None:
    """As in a study, whose arms differ: PyTorch would run the ninth kind of model, slowly, as it is."""
    torch.compiler.reset()
    for kind in range(10):
        attention = {"alpha": kind / 10}
        fields: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "encoder_self": attention}
        config = ReLUFormerConfig.preset("reluformer-tiny", vocab_size=8, **fields)
        model = ReLUFormerForConditionalGeneration(config).train()
        counter = torch._dynamo.testing.CompileCounter()
        compile_layers(model, backend=counter)
        model.get_encoder()(torch.arange(2, 8)[None].repeat(2, 1))
        assert counter.frame_count > 0


def test_a_script_must_not_train_in_its_own_worker_processes(
    whole: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(DataError, match='a script that trains must do so below `if __name__ == "__main__":`'):
        train(replace(whole, out=str(tmp_path / "again")))
    assert not (tmp_path / "again").exists()


def test_data_without_examples_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "valid.jsonl").write_text(json.dumps({"en": [], "de": []}))
    inputs = (write_corpus(tmp_path / "train.jsonl", 60),)
    plan = Plan(inputs, Languages("en", "de"), (str(tmp_path / "valid.jsonl"),), vocab=300, lengths=(0, 60))
    prepare(plan, tmp_path / "data", 1)
    with pytest.raises(TrainingError, match="has no example of length 0 in valid"):
        train(small_recipe(tmp_path / "data", tmp_path / "run"))


def test_learned_positions_must_be_enough_for_the_data(data: Path, tmp_path: Path) -> None:
    recipe = small_recipe(data, tmp_path / "run", stages=(Stage(60, 1),), checkpoints=Checkpoints(1, 1, 1))
    few, enough = ({**MODEL, "positions": "learned", "max_position_embeddings": count} for count in (59, 60))
    words = r"model\.max_position_embeddings must be at least 60, .* of length 60 in train has, got 59"
    with pytest.raises(TrainingError, match=words):
        train(replace(recipe, model=few))
    assert not (tmp_path / "run").exists()
    assert train(replace(recipe, model=enough)).step == 1


def test_learned_positions_must_be_enough_for_the_shapes_of_graphs(data: Path, tmp_path: Path) -> None:
    recipe = small_recipe(data, tmp_path / "run", stages=(Stage(60, 1),), checkpoints=Checkpoints(1, 1, 1), graphs=True)
    few, enough = ({**MODEL, "positions": "learned", "max_position_embeddings": count} for count in (63, 64))
    words = r"model\.max_position_embeddings must be at least 64, .* of length 60 in train has, got 63"
    with pytest.raises(TrainingError, match=words):
        train(replace(recipe, model=few))
    assert not (tmp_path / "run").exists()
    assert train(replace(recipe, model=enough)).step == 1
