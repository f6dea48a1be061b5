"""Loading of a trained model and its tokeniser from a folder."""

import os
from pathlib import Path
from typing import Any

import torch

from reluformer.data.files import DataError
from reluformer.data.tokenizer import load_encoder
from reluformer.models.quantising import can_multiply_integers, multiplies_bf16

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "int8", "bf16", "fp32")


def load_model(folder: Path, device: str = "auto", precision: str = "auto") -> tuple[Any, Any]:
    """Load a model, ready to translate on a device, and its bare tokeniser; any failure is a :class:`DataError`.

    With precision ``int8`` the model itself is float32: the engine that multiplies integers derives them from it.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForSeq2SeqLM
    from transformers.utils import logging

    import reluformer.models  # noqa: F401  # so that the Auto classes know ours

    chosen = choose_device(device)
    dtype = choose_dtype(precision, chosen)
    if not folder.is_dir():
        raise DataError(f"{folder} is {'a file' if folder.exists() else 'no folder'}: takes the folder of a model")
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(f"{folder} is no model: no {name}")
    logging.disable_progress_bar()  # an error is reported as one line, and alone
    logging.set_verbosity_error()
    try:
        tokenizer = load_encoder(folder)
        model, report = AutoModelForSeq2SeqLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise DataError(f"{folder} is no model that can be read: {_first_line(error)}") from None
    except Exception as error:  # tokenizers raises nothing more precise
        raise DataError(f"{folder} has no tokeniser that can be read: {_first_line(error)}") from None
    missing = sorted(report["missing_keys"])
    if missing:
        raise DataError(f"{folder} lacks weights of its model: {missing[0]} and {len(missing) - 1} more")
    for name, shape, takes in sorted(report["mismatched_keys"]):
        shapes = f"{name} is {list(shape)}, takes {list(takes)}"
        raise DataError(f"{folder} has weights of other shapes than its config.json: {shapes}")
    known, taken = tokenizer.get_vocab_size(), model.config.vocab_size
    if known > taken:
        raise DataError(f"{folder} has {known} tokens in its tokeniser and {taken} in its model")
    return model.to(chosen).eval(), tokenizer


def choose_device(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the GPU if there is one."""
    if name not in DEVICES:
        raise DataError(f"device takes {', '.join(DEVICES)}, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise DataError("there is no CUDA device here: takes cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def wants_integers(precision: str, device: torch.device, folder: Path) -> bool:
    """Return whether to multiply in int8: ``auto`` does on a CPU if the weights in the folder are int8."""
    from safetensors import SafetensorError

    from reluformer.models.compressing import is_compressed

    able = device.type == "cpu" and can_multiply_integers()
    if precision == "int8" and not able:
        raise DataError(f"precision int8 takes a CPU for which PyTorch has int8 matrices, got {device}")
    try:
        return precision == "int8" or (precision == "auto" and able and is_compressed(folder))
    except (OSError, SafetensorError):  # loading will say what is wrong
        return False


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a model; ``auto`` is bfloat16 where the device, GPU or CPU, multiplies it natively."""
    if precision not in PRECISIONS:
        raise DataError(f"precision takes {', '.join(PRECISIONS)}, got {precision!r}")
    gpu = device.type == "cuda"
    native = torch.cuda.is_bf16_supported(including_emulation=False) if gpu else multiplies_bf16()
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and native) else torch.float32


def trained_length(config: Any) -> int:
    """Return the length of the documents that a model was trained on, in tokens.

    Training records it in the configuration as ``trained_length``; without it, ``max_position_embeddings`` is used.
    """
    length = getattr(config, "trained_length", None)
    return int(getattr(config, "max_position_embeddings", 1024) if length is None else length)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition(os.linesep)[0]
