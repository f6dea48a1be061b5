"""A recipe as arguments of Hugging Face's trainer."""

import os
from typing import Any

import torch
from accelerate.utils.environment import parse_flag_from_env  # type: ignore[import-untyped]
from transformers import Seq2SeqTrainingArguments

from reluformer.training.recipe import Recipe

SCHEDULES = {"constant": "constant_with_warmup"}  # schedules that the trainer calls by another name


def training_arguments(recipe: Recipe, **more: Any) -> Seq2SeqTrainingArguments:
    """Return arguments for the trainer; whatever it should not do or show by default is switched off here."""
    # A sharded model is saved whole too: the final model is the mean of files, so each must hold all of it.
    os.environ["FSDP_STATE_DICT_TYPE"] = "FULL_STATE_DICT"
    optimiser, on_gpu = recipe.optimiser, uses_gpu()
    arguments = Seq2SeqTrainingArguments(
        output_dir=recipe.out,
        use_cpu=not on_gpu,
        max_steps=sum(stage.steps for stage in recipe.stages),
        gradient_accumulation_steps=recipe.batches.accumulate,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        learning_rate=optimiser.lr,
        adam_beta1=optimiser.betas[0],
        adam_beta2=optimiser.betas[1],
        weight_decay=optimiser.weight_decay,
        max_grad_norm=optimiser.clip,
        lr_scheduler_type=SCHEDULES.get(optimiser.schedule, optimiser.schedule),
        warmup_steps=optimiser.warmup,
        seed=recipe.seed,
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,  # the filter hides what must stop a run, and waits for the GPU at every step
        save_strategy="steps",
        save_steps=recipe.checkpoints.every,
        eval_steps=recipe.checkpoints.every,
        dataloader_num_workers=recipe.workers if on_gpu else 0,
        dataloader_pin_memory=on_gpu,
        # Batches differ in size: none is cut or repeated to even them out.
        accelerator_config={"even_batches": False, "split_batches": False, "non_blocking": on_gpu},
        ignore_data_skip=True,  # our batches already begin where the checkpoint ended
        ddp_find_unused_parameters=False,
        use_cache=True,  # the setting that is saved with the model; training itself makes no cache
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        report_to="none",
        **more,
    )
    # Several GPUs take several processes: in one process the trainer would split every batch among them.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def uses_gpu() -> bool:
    """Return whether there is a GPU and ``accelerate launch --cpu`` was not asked for."""
    return torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU")


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Return whether to compute in bfloat16; ``auto`` does on a GPU that supports it."""
    if precision == "auto":
        return device.type == "cuda" and torch.cuda.is_bf16_supported()
    return precision == "bf16"
