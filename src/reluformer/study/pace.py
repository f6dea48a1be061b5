"""Speed of a model in training and translation, relative to another's.

Cells of a study run at different times, beside few or many others, so their clocks cannot be compared. Here both models
take turns, in one process, on the same batches: whatever slows the machine slows both.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reluformer.data.batching import CostBatches
from reluformer.data.collate import Collator
from reluformer.data.dataset import PackedDataset, read_manifest
from reluformer.data.shapes import MULTIPLE
from reluformer.models import ReLUFormerForConditionalGeneration
from reluformer.training.arguments import uses_bf16, uses_gpu
from reluformer.training.loading import longer_sides
from reluformer.training.recipe import Recipe
from reluformer.training.run import compile_layers, model_config

Call = Callable[[], object]
BATCHES = 3  # per turn, spread over an epoch
TURNS = 3  # timed turns, after one that compiles and allocates
SENTENCES, TOKENS = 32, 16  # per turn of translation: most sentences, and new tokens of each


def paces(recipe: Recipe, other: Recipe, beam: int) -> dict[str, float]:
    """Return the speed of ``recipe``'s model relative to ``other``'s, in ``training`` and in ``translation``."""
    device = torch.device("cuda" if uses_gpu() else "cpu")
    batches, both = _batches(recipe, device), (recipe, other)
    return {
        "training": _ratio([_training(each, batches) for each in both]),
        "translation": _ratio([_translation(each, batches[0], beam) for each in both]),
    }


def _batches(recipe: Recipe, device: torch.device) -> list[dict[str, Tensor]]:
    """Return batches from the first stage, as a run would see them."""
    examples = PackedDataset(recipe.data, "train", recipe.stages[0].length)
    found = list(CostBatches(longer_sides(examples), recipe.batches.cost, recipe.batches.quadratic, recipe.seed))
    collate = Collator(MULTIPLE if device.type == "cuda" else 1)
    chosen = found[:: max(1, len(found) // BATCHES)][:BATCHES]
    return [{name: x.to(device) for name, x in collate([examples[i] for i in batch]).items()} for batch in chosen]


def _training(recipe: Recipe, batches: Sequence[dict[str, Tensor]]) -> Call:
    """Return a call that makes one update for every batch."""
    model, bf16 = _model(recipe, batches[0])
    cuda = model.device.type == "cuda"
    if recipe.compile and cuda:
        compile_layers(model)
    optimiser = torch.optim.AdamW(model.train().parameters(), recipe.optimiser.lr, fused=cuda)

    def turn() -> None:
        for batch in batches:
            with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimiser.clip or float("inf"))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return turn


def _translation(recipe: Recipe, batch: dict[str, Tensor], beam: int) -> Call:
    """Return a call that runs a beam search over the same number of tokens for every model."""
    model, bf16 = _model(recipe, batch)
    model = model.eval().bfloat16() if bf16 else model.eval()
    inputs = {name: batch[name][:SENTENCES] for name in ("input_ids", "attention_mask")}
    return partial(model.generate, **inputs, num_beams=beam, min_new_tokens=TOKENS, max_new_tokens=TOKENS)


def _model(recipe: Recipe, batch: dict[str, Tensor]) -> tuple[Any, bool]:
    """Return an untrained model, as weights do not affect its speed, and whether it computes in bfloat16."""
    model: Any = ReLUFormerForConditionalGeneration(model_config(recipe, read_manifest(recipe.data)["vocabulary"]))
    device = batch["input_ids"].device
    return model.to(device), uses_bf16(recipe.precision, device)


def _ratio(calls: Sequence[Call]) -> float:
    """Return the time of the second call over that of the first, the median over turns."""
    times = [[_seconds(call) for call in calls] for _ in range(1 + TURNS)]
    return statistics.median(other / own for own, other in times[1:])


def _seconds(call: Call) -> float:
    began = time.perf_counter()
    call()
    if uses_gpu():
        torch.cuda.synchronize()
    return time.perf_counter() - began
