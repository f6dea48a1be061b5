"""Hugging Face's trainer with batches by cost, a regularised loss, and checkpoints that are whole or absent.

Nothing here waits for the GPU between two points of the curve: measurements are summed on the device.
"""

import contextlib
import errno
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerState

from reluformer.data.batching import StagedBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset
from reluformer.models.loss import IGNORED
from reluformer.training.annealing import Annealing
from reluformer.training.arguments import uses_bf16
from reluformer.training.averaging import WEIGHTS
from reluformer.training.checkpoints import CheckpointFolder
from reluformer.training.errors import NoNumber, TrainingError
from reluformer.training.history import Evaluations
from reluformer.training.loading import batches_of, longer_sides
from reluformer.training.measuring import Measures
from reluformer.training.optimising import ParameterKinds
from reluformer.training.recipe import Recipe, Stage
from reluformer.training.recording import CudaRecorder, RecordedStep

# Returns the metrics of the current model at the length of a stage.
Validate = Callable[["TranslationTrainer", Stage], dict[str, float]]


class TranslationTrainer(Seq2SeqTrainer):
    """Trains a ReLUFormer by a recipe; the whole run, stage after stage, is one epoch over one sequence of batches.

    Args:
        recipe: Recipe of the run.
        model: Model to train.
        args: Arguments from :func:`~reluformer.training.arguments.training_arguments`.
        stages: Examples of every stage.
        checkpoints: Folder that checkpoints go to.
        validate: Function that evaluates the model; None for no evaluation.
        start: Number of updates done already.
        more: Further arguments of the base class.
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        args: Seq2SeqTrainingArguments,
        stages: Sequence[PackedDataset],
        checkpoints: CheckpointFolder,
        validate: Validate | None = None,
        start: int = 0,
        **more: Any,
    ) -> None:
        self.kinds = ParameterKinds.of(model)
        super().__init__(model=model, args=args, train_dataset=ConcatDataset(stages), **more)
        self.recipe, self.checkpoints, self.validate = recipe, checkpoints, validate
        per_update = args.gradient_accumulation_steps * args.world_size
        self.batches = StagedBatches(
            [(longer_sides(x), stage.steps * per_update) for x, stage in zip(stages, recipe.stages, strict=True)],
            recipe.batches.cost,
            recipe.batches.quadratic,
            recipe.seed,
            start * per_update,
            recipe.graphs,
        )
        self.bf16 = uses_bf16(recipe.precision, args.device)
        self.measures = Measures()
        alone = args.world_size == 1 and not self.is_fsdp_enabled  # sharding replaces the parameters, even for one GPU
        records = recipe.graphs and args.device.type == "cuda" and alone
        self.recorded = RecordedStep(self._step, model.parameters(), CudaRecorder()) if records else None
        if recipe.anneal:
            self.add_callback(Annealing(model, recipe.anneal, start, args.device))

    @property
    def _core(self) -> Any:
        """The model without its wrappers, except that of FSDP, which passes attributes on."""
        return self.model

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the run's remaining batches; process p of n takes batches p, p + n and so on."""
        workers, pin = self.args.dataloader_num_workers, self.args.dataloader_pin_memory
        collator = replace(cast(Collator, self.data_collator), shapes=self.recipe.shapes)
        return self.accelerator.prepare(batches_of(self.train_dataset, self.batches, collator, workers, pin))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **more: Any) -> Any:
        """Train as the base class does, but load weights before sharding: PyTorch fails to load tied ones later."""
        if resume_from_checkpoint is not None and self.is_fsdp_enabled:
            self._core.load_state_dict(load_file(Path(resume_from_checkpoint) / WEIGHTS), strict=False)
        try:
            return super().train(resume_from_checkpoint, *args, **more)
        finally:
            if self.recorded is not None:
                self.recorded.forget()
                torch.cuda.empty_cache()  # until then, nothing else can use the memory that graphs had

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if not self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        if state_dict is not None:  # gathered from shards, which no longer show that tied weights are the same
            tied = self._core.all_tied_weights_keys
            state_dict = {name: x for name, x in state_dict.items() if name not in tied}
        super()._save(output_dir, state_dict)

    def _prepare_for_training(self, *args: Any, **more: Any) -> Any:
        """Prepare as the base class does; measuring begins here, where the state is that of the checkpoint already."""
        self.measures.begin(self.state.global_step)
        return super()._prepare_for_training(*args, **more)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        """Return the batches of an update and their number of tokens, which is measured."""
        samples, tokens = super().get_batch_samples(epoch_iterator, num_batches, device)
        if tokens is not None:
            self.measures.add("tokens", torch.as_tensor(tokens))
        return samples, tokens

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the base class would count all parameters at every batch."""
        return 0

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Compute the gradients of a batch, by a recorded step if the recipe asks for graphs and there is one GPU."""
        if self.recorded is None:
            return super().training_step(model, inputs, num_items_in_batch)
        if not model.training:  # after an evaluation; setting it in all modules at every step takes time
            model.train()
        share = torch.full((), self._regulariser_share(), device=self.args.device)
        tensors = self._prepare_inputs(inputs) | {"items": num_items_in_batch, "share": share}
        annealed = self.state.global_step >= self.recipe.anneal
        parts = self.recorded(tensors, (annealed, self.current_gradient_accumulation_steps))
        self._measure(parts)
        return parts["loss"]

    def _step(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Compute the gradients of a batch, and return its losses: a function of tensors alone, to be recorded."""
        inputs = {name: x for name, x in tensors.items() if name not in ("items", "share")}
        with self.compute_loss_context_manager():
            parts, _ = self._losses(self.model, inputs, tensors["items"], tensors["share"])
        self.accelerator.backward(parts["loss"])
        return {name: x.detach() for name, x in parts.items()}

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the label-smoothed loss per token of the update plus the regularisation, which grows over its warm-up.

        An update consists of several batches, one after another or in several processes, whose gradients are averaged:
        token losses are summed over all of them, the regularisation is averaged.
        """
        parts, out = self._losses(model, inputs, num_items_in_batch, self._regulariser_share())
        self._measure(parts)
        return (parts["loss"], out) if return_outputs else parts["loss"]

    def _losses(
        self, model: Any, inputs: Any, items: Any, share: torch.Tensor | float
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Return the loss and its parts, and the model's output; ``share`` is that of the regularisation."""
        core = self._core
        labels, processes = inputs["labels"], self.accelerator.num_processes
        weights = core.config.regulariser
        regularised = weights["mass"] > 0 or weights["entropy"] > 0
        written = {"decoder_query_mask": labels != IGNORED} if regularised else {}  # padding is not regularised
        out = model(**{name: x for name, x in inputs.items() if name != "labels"}, **written, use_cache=False)
        loss, nll = core.token_losses(out.logits, labels, items, self.recipe.optimiser.label_smoothing)
        parts = {"loss": loss * processes, "nll": nll * processes}
        if out.regularisation is not None:
            parts["regularisation"] = out.regularisation / self.current_gradient_accumulation_steps
            parts["loss"] = parts["loss"] + parts["regularisation"] * share
        return parts, out

    def _measure(self, parts: dict[str, torch.Tensor]) -> None:
        for name, x in parts.items():
            if name != "loss":
                self.measures.add(name, x)

    def _regulariser_share(self) -> float:
        warmup = self.recipe.regulariser_warmup
        return min(self.state.global_step / warmup, 1.0) if warmup else 1.0

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """Compute in bfloat16 where the recipe says so; logits stay in bfloat16, the loss is computed in float32."""
        return torch.autocast(self.args.device.type, torch.bfloat16) if self.bf16 else contextlib.nullcontext()

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create AdamW with weight decay for matrices alone and a separate learning rate for gamma and score biases."""
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args)
            self.optimizer = kind(self.kinds.groups(model or self._core, self.recipe.optimiser), **options)
        return self.optimizer

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the measurements since the last point of the curve to this one."""
        if "loss" in logs:
            sums, updates = self.measures.sums, self.state.global_step - self.measures.step
            logs["tokens_per_second"] = self.measures.per_second("tokens")
            for name in ("nll", "regularisation"):
                if name in sums:
                    logs[name] = float(self.accelerator.reduce(sums[name], "mean")) / updates
            gammas = list(self.kinds.find_gammas(self._core))
            if gammas:
                logs["gamma"] = float(torch.cat(gammas).mean())
            self.measures.begin(self.state.global_step)
        super().log(logs, start_time)

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, grad_norm: Any, *rest: Any, **more: Any) -> None:
        """Log, save and evaluate as the base class does, but stop if the loss or the gradient is not finite."""
        control = self.control
        pauses = control.should_evaluate or control.should_save
        control.should_log |= pauses  # a point of the curve must not span a checkpoint, where runs resume
        if control.should_log:
            self._check_numbers(tr_loss, grad_norm)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *rest, **more)
        if pauses:
            self.measures.begin(self.state.global_step)

    def _check_numbers(self, tr_loss: torch.Tensor, grad_norm: Any) -> None:
        """Stop if any loss since the last point of the curve, or the last gradient, was not finite.

        That is enough: an earlier gradient that was not finite shows in the weights, and so in the next loss.
        """
        wrong = not (math.isfinite(float(tr_loss)) and math.isfinite(float(0.0 if grad_norm is None else grad_norm)))
        told = torch.tensor(float(wrong), device=self.args.device)
        if self.accelerator.reduce(told, "sum") > 0:
            first, last = self._globalstep_last_logged + 1, self.state.global_step
            when = f"at step {last}" if first >= last else f"between steps {first} and {last}"
            raise NoNumber(f"the loss is not a number any more {when}; {self._last_good()}")

    def _last_good(self) -> str:
        last = self.checkpoints.last()
        return f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validate at the length of this stage; one process decides for all, so that all stop at the same step."""
        assert self.validate is not None
        works = self.accelerator.is_main_process or self.is_fsdp_enabled  # with shards, all must take part
        metrics: dict[str, float] = broadcast_object_list([self.validate(self, self.stage) if works else None])[0]
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if is_over(self.recipe, self.state):
            self.control.should_training_stop = True
        return metrics

    @property
    def stage(self) -> Stage:
        """Stage that the last update belongs to."""
        ends = 0
        for stage in self.recipe.stages:
            ends += stage.steps
            if self.state.global_step <= ends:
                return stage
        return self.recipe.stages[-1]

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoints.staging)  # only called for checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write a checkpoint, whole or not at all, and remove those that are not kept."""
        step, every = self.state.global_step, self.recipe.checkpoints
        staging = self.checkpoints.staging
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                self.checkpoints.publish(step, staging / f"checkpoint-{step}")
                self.checkpoints.rotate(every.keep, every.every, evaluations_of(self.recipe, self.state).best_step)
        except (OSError, RuntimeError, SafetensorError) as error:
            reason = _reason(error, staging)
            shutil.rmtree(staging, ignore_errors=True)
            raise TrainingError(f"cannot write the checkpoint of step {step}: {reason}; {self._last_good()}") from error
        self.accelerator.wait_for_everyone()


def evaluations_of(recipe: Recipe, state: TrainerState) -> Evaluations:
    """Return the evaluations in the last stage and after annealing: other lengths, or some softmax, do not compare."""
    before = max(sum(stage.steps for stage in recipe.stages[:-1]), recipe.anneal - 1)
    bleu = recipe.checkpoints.metric == "d-bleu"
    return Evaluations.of(state.log_history, "eval_d_bleu" if bleu else "eval_loss", bleu, before)


def is_over(recipe: Recipe, state: TrainerState) -> bool:
    """Return whether all updates are done, or evaluations have not improved for too long."""
    patience = recipe.checkpoints.patience
    done = state.global_step >= sum(stage.steps for stage in recipe.stages)
    return done or 0 < patience <= evaluations_of(recipe, state).without_gain


def _reason(error: Exception, place: Path) -> str:
    """Return why something could not be written; PyTorch does not say that a disk is full."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    full = os.strerror(errno.ENOSPC)
    with contextlib.suppress(OSError):
        if full in str(error) or shutil.disk_usage(place).free < 1 << 20:
            return full
    return " ".join(str(error).split())
