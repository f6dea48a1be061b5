"""A training run from recipe to model: begin or resume it, and average its last checkpoints."""

import contextlib
import difflib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PrinterCallback, TrainerCallback, TrainerState, set_seed
from transformers.integrations.integration_utils import TensorBoardCallback
from transformers.utils import logging

from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset, load_tokenizer, read_manifest
from reluformer.data.shapes import MULTIPLE
from reluformer.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from reluformer.data.workers import refuse_in_workers
from reluformer.memory.calibration import calibrate
from reluformer.models import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.models.loss import IGNORED
from reluformer.training.arguments import training_arguments
from reluformer.training.averaging import average_checkpoints
from reluformer.training.callbacks import CurveFile, StopOnSignal
from reluformer.training.checkpoints import CheckpointFolder, check_complete, check_readable
from reluformer.training.errors import TrainingError
from reluformer.training.identity import claim
from reluformer.training.loading import longer_sides
from reluformer.training.progress import ProgressBar
from reluformer.training.recipe import Recipe
from reluformer.training.trainer import TranslationTrainer, evaluations_of, is_over
from reluformer.training.validation import Validation

KINDS = 256  # kinds of models that one process may compile; a study has 160
TOKENS = {  # ids that prepared data give to these tokens
    "pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "decoder_start_token_id": BOS_ID,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: Number of updates done.
        model: Folder of the final model; None if the run was stopped before its end.
        averaged: Checkpoints that the final model is the mean of; empty if it existed before.
        best: Best of the checkpoints evaluated in the last stage.
    """

    step: int
    model: Path | None
    averaged: tuple[Path, ...] = ()
    best: Path | None = None


def train(recipe: Recipe, callbacks: Sequence[TrainerCallback] = ()) -> Outcome:
    """Train by a recipe, from the last checkpoint in its folder if there is one, with callbacks of transformers."""
    refuse_in_workers("trains")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    manifest = read_manifest(recipe.data)
    validates = "valid" in manifest["splits"]
    if not validates and (recipe.checkpoints.patience or recipe.checkpoints.metric != "loss"):
        raise TrainingError(f"checkpoints.patience and checkpoints.metric need validation data: {recipe.data} has none")
    config = model_config(recipe, manifest["vocabulary"])
    config.languages = manifest["languages"]  # lets a translator warn about text that the model cannot read
    out = Path(recipe.out)
    checkpoints = CheckpointFolder(out / "checkpoints")
    arguments = training_arguments(recipe, eval_strategy="steps" if validates else "no")
    collator = Collator(MULTIPLE if arguments.device.type == "cuda" else 1)
    shapes = recipe.shapes
    stages = [PackedDataset(recipe.data, "train", stage.length) for stage in recipe.stages]
    for examples in (*stages, *(PackedDataset(recipe.data, "valid", x.length) for x in recipe.stages if validates)):
        if not len(examples):
            raise TrainingError(f"{recipe.data} has no example of length {examples.length} in {examples.split}")
        longest = int(longer_sides(examples).max())
        longest = shapes.length(longest) if shapes and examples.split == "train" else collator.padded(longest)
        if config.positions == "learned" and longest > config.max_position_embeddings:
            raise TrainingError(
                f"model.max_position_embeddings must be at least {longest}, as many as the longest example of length "
                f"{examples.length} in {examples.split} has, got {config.max_position_embeddings}"
            )
    process = PartialState()
    with process.main_process_first():
        claim(recipe, manifest["key"], arguments.world_size, write=process.is_main_process)
        if process.is_main_process:
            checkpoints.clear()
            for leftover in out.glob("model.*.tmp"):
                shutil.rmtree(leftover, ignore_errors=True)
    last = checkpoints.last()
    if last is not None:
        check_readable(last)
    state = TrainerState.load_from_json(str(last / "trainer_state.json")) if last else TrainerState()
    if (out / "model").exists():
        return Outcome(state.global_step, out / "model")
    if last is not None and not is_over(recipe, state):
        check_complete(last)

    set_seed(recipe.seed)
    tokenizer = load_tokenizer(recipe.data)
    trainer = TranslationTrainer(
        recipe,
        ReLUFormerForConditionalGeneration(config),
        arguments,
        stages,
        checkpoints,
        Validation(recipe, tokenizer) if validates else None,
        state.global_step,
        eval_dataset=PackedDataset(recipe.data, "valid", recipe.stages[-1].length) if validates else None,
        data_collator=collator,
        processing_class=tokenizer,
    )
    if not is_over(recipe, state):
        if last is None and recipe.calibrate:
            _calibrate(trainer)
        if recipe.compile and arguments.device.type == "cuda":
            compile_layers(trainer.model)
        if _watched(trainer, last, callbacks):
            return Outcome(trainer.state.global_step, None)
        state = trainer.state
    if process.is_main_process:
        return _finish(recipe, checkpoints, state)
    return Outcome(state.global_step, out / "model")


def model_config(recipe: Recipe, vocabulary: int) -> ReLUFormerConfig:
    """Return the configuration of a recipe's model."""
    others = {field.name for field in fields(PreTrainedConfig)}
    known = ("preset", *(field.name for field in fields(ReLUFormerConfig) if field.name not in others))
    for name in recipe.model:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1, 0.5)
            hint = f"did you mean model.{near[0]}?" if near else f"there are {', '.join(known)}"
            raise TrainingError(f"model.{name} is not known; {hint}")
    settings = {"vocab_size": -(-vocabulary // MULTIPLE) * MULTIPLE, **recipe.model}
    for name, token in TOKENS.items():
        if settings.get(name, token) != token:
            raise TrainingError(f"model.{name} must be {token}, as in {recipe.data}, got {settings[name]!r}")
    preset = settings.pop("preset", None)
    settings["trained_length"] = recipe.stages[-1].length  # tells a translator how long its windows may be
    try:
        config = ReLUFormerConfig(**settings) if preset is None else ReLUFormerConfig.preset(preset, **settings)
    except (ValueError, TypeError) as error:
        raise TrainingError(f"model.{' '.join(str(error).split())}") from None
    if config.vocab_size < vocabulary:
        raise TrainingError(
            f"model.vocab_size must be at least {vocabulary}, as in {recipe.data}, got {config.vocab_size}"
        )
    return config


def compile_layers(model: Any, **options: Any) -> None:
    """Compile layers for lengths that vary from the start, those of source and target independently.

    In the first batch the two may be equal by chance, and PyTorch would take that for a rule. It also gives up on a
    function after eight kinds of calls, but a process of a study has a different kind of model for every arm.
    """
    import torch._dynamo.config as dynamo
    from torch.fx.experimental import _config as symbolic_shapes

    symbolic_shapes.use_duck_shape = False
    dynamo.recompile_limit = max(dynamo.recompile_limit, KINDS)
    model.compile_layers(dynamic=True, **options)


def _calibrate(trainer: TranslationTrainer) -> None:
    """Set gamma on the first batch of the run, which is the same in all processes."""
    model: Any = trainer.model
    data: Any = trainer.train_dataset
    batch = trainer.data_collator([data[i] for i in next(iter(trainer.batches))])
    batch["decoder_query_mask"] = batch.pop("labels") != IGNORED
    with trainer.compute_loss_context_manager():  # in the precision of training, whose kernels are needed anyway
        calibrate(model, **{name: x.to(model.device) for name, x in batch.items()}, use_cache=False)


def _watched(trainer: TranslationTrainer, last: Path | None, callbacks: Sequence[TrainerCallback]) -> bool:
    """Train with progress on screen and on disk, and return whether a signal ended the run."""
    out = Path(trainer.recipe.out)
    stop, progress = StopOnSignal(trainer.accelerator), ProgressBar()
    trainer.remove_callback(PrinterCallback)
    for callback in (stop, CurveFile(out / "log.jsonl"), progress, *callbacks):
        trainer.add_callback(callback)
    with contextlib.ExitStack() as closing:
        closing.callback(progress.close)
        if trainer.is_world_process_zero():
            from torch.utils.tensorboard import SummaryWriter

            writer = closing.enter_context(SummaryWriter(str(out / "logs")))  # type: ignore[no-untyped-call]
            trainer.add_callback(TensorBoardCallback(writer))
        closing.enter_context(stop.listening())
        try:
            trainer.train(resume_from_checkpoint=str(last) if last else None)
        except torch.OutOfMemoryError:
            raise TrainingError(
                f"the GPU's memory is full after step {trainer.state.global_step}: "
                f"lower batches.cost = {trainer.recipe.batches.cost}, and raise batches.accumulate instead"
            ) from None
    return stop.stopped


def _finish(recipe: Recipe, checkpoints: CheckpointFolder, state: TrainerState) -> Outcome:
    """Average the last checkpoints, without those written at an interruption: an uninterrupted run would have none."""
    every, model = recipe.checkpoints, Path(recipe.out) / "model"
    steps = [step for step in checkpoints.steps() if step % every.every == 0 or step == state.global_step]
    averaged = [checkpoints.path(step) for step in steps[-every.average :]]
    for path in averaged:
        check_readable(path)
    try:
        average_checkpoints(averaged, model)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot write {model}: {error}; all checkpoints are there") from error
    best = evaluations_of(recipe, state).best_step
    return Outcome(state.global_step, model, tuple(averaged), checkpoints.path(best) if best else None)
