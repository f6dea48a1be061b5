"""``reluformer compress``: the folder of a model at a quarter of its size."""

import shutil
from pathlib import Path

from safetensors import SafetensorError

from reluformer.data.files import DataError, read_json, written_folder
from reluformer.models.compressing import WEIGHTS, Kept, compress, is_compressed, read_weights, write_compressed
from reluformer.models.configuration import ReLUFormerConfig

OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


def compress_folder(folder: Path, out: Path) -> list[Kept]:
    """Write compressed weights and copies of the other files to ``out``; any failure is a :class:`DataError`."""
    if not folder.is_dir():
        raise DataError(f"{folder} is {'a file' if folder.exists() else 'no folder'}: takes the folder of a model")
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != ReLUFormerConfig.model_type:
        raise DataError(f"{folder} takes a config.json of model_type {ReLUFormerConfig.model_type}, got {kind}")
    if not (folder / WEIGHTS).is_file():
        raise DataError(f"{folder} is no model in one file: no {WEIGHTS}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is there already: takes the name of a new folder")
    try:
        if is_compressed(folder):
            raise DataError(f"{folder} is compressed already")
        weights, report = compress(read_weights(folder))
    except DataError:
        raise
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{folder / WEIGHTS} cannot be compressed: {error}") from None
    with written_folder(out) as made:
        for path in folder.iterdir():
            if path.is_file() and not path.name.endswith(OTHER_WEIGHTS):
                shutil.copyfile(path, made / path.name)
        write_compressed(made / WEIGHTS, weights)
    return report
