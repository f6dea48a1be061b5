"""The average of several checkpoints: often better than the best of them, and never slower."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from reluformer.data.files import written_folder

WEIGHTS = "model.safetensors"


def average_checkpoints(folders: Sequence[Path], out: Path) -> None:
    """Write the model whose every weight is the mean over these checkpoints to the folder ``out``.

    Everything but the weights (configuration, tokenizer) is taken from the last checkpoint. Weights are summed in
    float32, one tensor at a time, so this needs the memory of one model; ``out`` appears when it is complete.

    Raises:
        ValueError: If there is nothing to average, or if a folder holds no model or a different one.
    """
    if not folders:
        raise ValueError("folders must name at least one checkpoint, got none")
    for folder in folders:
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"{folder} is no checkpoint: it has no {WEIGHTS}")
    mean = _mean([folder / WEIGHTS for folder in folders])
    with written_folder(out) as making:
        for file in folders[-1].iterdir():
            if file.suffix in (".json", ".txt", ".model") and file.name != "trainer_state.json":
                shutil.copy2(file, making)
        save_file(mean, making / WEIGHTS, metadata={"format": "pt"})


def _mean(files: Sequence[Path]) -> dict[str, torch.Tensor]:
    opened: list[Any] = [safe_open(file, "pt") for file in files]
    names, mean = set(opened[0].keys()), {}
    for file, model in zip(files, opened, strict=True):
        if set(model.keys()) != names:
            raise ValueError(f"{file} holds other weights than {files[0]}")
    for name in sorted(names):
        tensors = [model.get_tensor(name) for model in opened]
        if any(x.shape != tensors[0].shape for x in tensors):
            raise ValueError(f"{name} has another shape in {files[0]} than in one of the other checkpoints")
        if not tensors[0].is_floating_point():
            mean[name] = tensors[-1]
            continue
        total = torch.zeros(tensors[0].shape, dtype=torch.float32)
        for x in tensors:
            total += x
        mean[name] = (total / len(tensors)).to(tensors[0].dtype)
    return mean
