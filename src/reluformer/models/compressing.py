"""Weights in a quarter of their bytes: matrices as int8 with a scale per row, the few other tensors unchanged.

A compressed ``model.safetensors`` holds ``NAME.int8`` and ``NAME.scale`` in place of the matrix ``NAME``, and says so
in its header. Models load it like any other file and get the floats that the integers stand for; quantising these
again, to multiply integers, gives the same integers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from reluformer.models.quantising import dequantise_rows, quantise_rows, relative_error

WEIGHTS = "model.safetensors"
MARK = {"compression": "int8 rows"}  # metadata in the header of the file
INTEGERS, SCALE = ".int8", ".scale"


@dataclass(frozen=True)
class Kept:
    """How a tensor is stored: its format, its size in bytes, and its error relative to the norm of the original."""

    name: str
    shape: tuple[int, ...]
    kind: str
    bytes: int
    error: float


def compress(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[Kept]]:
    """Tensors to store for a model's weights, and a report on each; raise ``ValueError`` for one that is not finite."""
    found: dict[str, Tensor] = {}
    report = []
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} must be finite to be compressed, got inf or nan")
        if tensor.dim() != 2 or not tensor.is_floating_point():  # norms, biases, gammas: few, but much depends on them
            found[name] = tensor
            report.append(Kept(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.nbytes, 0.0))
            continue
        integers, scale = quantise_rows(tensor)
        found[name + INTEGERS], found[name + SCALE] = integers, scale
        error = relative_error(tensor, dequantise_rows(integers, scale))
        report.append(Kept(name, tuple(tensor.shape), "int8", integers.nbytes + scale.nbytes, error))
    return found, report


def decompress(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights that :func:`compress` took, its matrices as float32."""
    names = [name.removesuffix(INTEGERS) for name in weights if name.endswith(INTEGERS)]
    rest = {name: x for name, x in weights.items() if not name.endswith((INTEGERS, SCALE))}
    return rest | {name: dequantise_rows(weights[name + INTEGERS], weights[name + SCALE]) for name in names}


def write_compressed(path: Path, weights: dict[str, Tensor]) -> None:
    """Write the tensors that :func:`compress` returned to a file."""
    save_file({name: x.contiguous() for name, x in weights.items()}, path, {"format": "pt"} | MARK)


def is_compressed(folder: Path) -> bool:
    """Whether a folder holds compressed weights."""
    path = folder / WEIGHTS
    if not path.is_file():
        return False
    with safe_open(path, "pt") as file:
        return MARK.items() <= (file.metadata() or {}).items()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors in the weight file of a folder, still compressed if they are."""
    with safe_open(folder / WEIGHTS, "pt") as file:
        names: Iterable[str] = file.keys()
        return {name: file.get_tensor(name) for name in names}


HUB_OPTIONS = ("subfolder", "local_files_only", "cache_dir", "revision", "token", "force_download", "use_safetensors")


class CompressedMixin:
    """Adds folders of compressed weights to what ``from_pretrained`` of a model reads."""

    config_class: Any

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any = None, *args: Any, **options: Any) -> Any:
        """As in the base class; compressed weights are decompressed first."""
        base: Any = super()
        name = pretrained_model_name_or_path
        folder = None if name is None else Path(name, options.get("subfolder", ""))
        if folder is None or not is_compressed(folder):
            return base.from_pretrained(name, *args, **options)
        for unused in HUB_OPTIONS:
            options.pop(unused, None)
        config = options.pop("config", None)
        if config is None:  # the configuration takes the options it knows, but a dtype belongs to the model
            dtypes: dict[str, Any] = {x: options.pop(x) for x in ("dtype", "torch_dtype") if x in options}
            config, options = cls.config_class.from_pretrained(folder, return_unused_kwargs=True, **options)
            options |= dtypes
        weights = decompress(read_weights(folder))
        found = base.from_pretrained(None, *args, config=config, state_dict=weights, **options)
        model = found[0] if isinstance(found, tuple) else found  # output_loading_info=True
        model.name_or_path = str(folder)
        given = options.get("generation_config") is not None
        if model.can_generate() and not given and (folder / "generation_config.json").is_file():
            model.generation_config = type(model.generation_config).from_pretrained(folder)
        return found
