"""Labelled images: scikit-learn's digits, a folder, or a Hugging Face data set."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from reluformer.data.digits import load_digits
from reluformer.data.files import DataError, hash_of, hash_of_file
from reluformer.data.hub import load
from reluformer.models import ReLUFormerImageConfig, image_processor

DIGITS = "digits"
HELD_OUT = 0.3  # share of every class to test on, where no test images are given
MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's modes by the channels of a model

Pair = tuple[Tensor, Any]  # the pixels of an image (channels, height, width) and the number of its class
Prepare = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Images:
    """Images to train on and others to test on."""

    train: Dataset[Pair]
    test: Dataset[Pair]
    classes: tuple[str, ...]


def in_memory(images: Dataset[Any]) -> bool:
    """Return whether the images are in memory, with nothing left to read or decode."""
    return isinstance(images.dataset if isinstance(images, Subset) else images, TensorDataset)


class _Pictures(Dataset[Pair], Sized):
    """Pictures that are read on access."""

    def __init__(self, read: Callable[[int], Any], labels: Sequence[int], prepare: Prepare) -> None:
        self.read, self.labels, self.prepare = read, labels, prepare

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pair:
        return self.prepare(self.read(index)), self.labels[index]


def open_images(source: str, test: str, config: ReLUFormerImageConfig) -> Images:
    """Open images, in the form that a model of this configuration takes.

    Args:
        source: ``"digits"``; a folder with one folder of images per class; or ``hf:NAME?split=train&config=...``, a
            Hugging Face data set, by its id or folder, with a column of images and one of class labels.
        test: Images to test on, given in the same way; "" to hold out some of every class.
        config: Configuration whose image size and channels the images are converted to.
    """
    if source == DIGITS:
        pixels, labels = load_digits()
        return _hold_out(TensorDataset(2 * pixels[:, None] - 1, labels), labels.tolist(), tuple("0123456789"))
    prepare = partial(_prepare, image_processor(config), MODES.get(config.channels, "RGB"))
    pictures, classes = _open(source, prepare)
    if not test:
        return _hold_out(pictures, pictures.labels, classes)
    others, names = _open(test, prepare)
    if names != classes:
        raise DataError(f"{test} must have the classes of {source}, {_some(classes)}; it has {_some(names)}")
    return Images(pictures, others, classes)


def contents(*sources: str) -> dict[str, str]:
    """Return a hash of all files in these sources as ``content``; an empty dictionary if none is a folder."""
    folders = [Path(source) for source in sources if source and source != DIGITS and not source.startswith("hf:")]
    files = [(folder, path) for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [[path.relative_to(folder).as_posix(), hash_of_file(path)] for folder, path in files]
    return {"content": hash_of(names)} if folders else {}


def _open(source: str, prepare: Prepare) -> tuple[_Pictures, tuple[str, ...]]:
    return _hub(source.removeprefix("hf:"), prepare) if source.startswith("hf:") else _folder(Path(source), prepare)


def _folder(folder: Path, prepare: Prepare) -> tuple[_Pictures, tuple[str, ...]]:
    from PIL import Image

    known = Image.registered_extensions()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder")
    found = {
        place.name: [path for path in sorted(place.rglob("*")) if path.suffix.lower() in known]
        for place in sorted(folder.iterdir())
        if place.is_dir()
    }
    classes = tuple(name for name, paths in found.items() if paths)
    if len(classes) < 2:
        raise DataError(f"{folder} must have a folder of images for each of two classes or more, it has {len(classes)}")
    paths = [path for name in classes for path in found[name]]
    labels = [label for label, name in enumerate(classes) for _ in found[name]]
    return _Pictures(partial(_read_file, paths), labels, prepare), classes


def _hub(item: str, prepare: Prepare) -> tuple[_Pictures, tuple[str, ...]]:
    rows = load(item)
    image, label = (_column(rows, kind, item) for kind in ("Image", "ClassLabel"))
    labels = [int(x) for x in rows[label]]
    return _Pictures(partial(_read_row, rows, image), labels, prepare), tuple(rows.features[label].names)


def _column(rows: Any, kind: str, item: str) -> str:
    """Return the name of the first column of a type."""
    kinds = {str(name): type(feature).__name__ for name, feature in rows.features.items()}
    for name, found in kinds.items():
        if found == kind:
            return name
    told = ", ".join(f"{name} ({found})" for name, found in kinds.items())
    raise DataError(f"hf:{item} must have a column of type {kind}, it has {told}")


# At module level, since data loading processes have to pickle these functions on some systems.
def _read_file(paths: Sequence[Path], index: int) -> Any:
    from PIL import Image

    return Image.open(paths[index])


def _read_row(rows: Any, column: str, index: int) -> Any:
    return rows[index][column]


def _prepare(processor: Any, mode: str, image: Any) -> Tensor:
    pixels: Tensor = processor(images=image.convert(mode), return_tensors="pt")["pixel_values"][0]
    return pixels


def _hold_out(images: Dataset[Any], labels: Sequence[int], classes: tuple[str, ...]) -> Images:
    """Hold out the same images whatever the seed of a run, so that results can be compared."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).tolist()
    by_class: list[list[int]] = [[] for _ in classes]
    for i in order:
        by_class[labels[i]].append(i)
    test = [i for own in by_class for i in own[: max(1, round(HELD_OUT * len(own)))]]
    held = set(test)
    return Images(Subset(images, [i for i in order if i not in held]), Subset(images, test), classes)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
