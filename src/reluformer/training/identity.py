"""Which run a folder belongs to, so that no run is continued with another recipe or other data."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reluformer.data.files import read_json, write_json, written_file
from reluformer.training.errors import TrainingError
from reluformer.training.recipe import Recipe, Stage, to_yaml

IDENTITY = "run.json"
RECIPE = "recipe.yaml"
# Settings that may change when a run resumes: where things are and how fast they go, not what comes out.
FREE = ("data", "out", "checkpoints", "compile", "workers", "log_every", "batches.accumulate")


def claim(recipe: Recipe, data: str, processes: int, write: bool = True) -> None:
    """Claim the recipe's folder for this run; refuse if it belongs to another.

    Args:
        recipe: Recipe of the run.
        data: Key of the data, which changes whenever the data does.
        processes: Number of processes that train together. It may change if ``batches.accumulate`` makes up for it.
        write: False for all processes but the first; the others check after it.
    """
    out = Path(recipe.out)
    if out.exists() and not out.is_dir():
        raise TrainingError(f"out: {out} is a file, takes a folder")
    identity = _identity(recipe) | {"data": data, "batches per update": recipe.batches.accumulate * processes}
    known = read_json(out / IDENTITY)
    if known is None and out.exists() and any(path.suffix != ".tmp" for path in out.iterdir()):
        raise TrainingError(f"out: {out} holds other files: takes a new or empty folder, or that of an earlier run")
    if known is not None:  # a setting that did not exist when the run began was as it is by default now
        known = _identity(Recipe("", "", (Stage(0, 1),), {})) | known
    for name in sorted({*identity, *(known or {})}):
        if known is not None and known.get(name) != identity.get(name):
            was, now = (repr(x.get(name, "not set")) for x in (known, identity))
            raise TrainingError(f"{out} holds another run: {name} was {was}, is {now}; take another out, or remove it")
    if write:
        write_json(out / IDENTITY, identity)
        with written_file(out / RECIPE) as file:
            file.write(to_yaml(recipe).encode())


def _identity(recipe: Recipe) -> dict[str, Any]:
    return {
        name: value
        for name, value in _flat(dataclasses.asdict(recipe), "")
        if not any(name == free or name.startswith(f"{free}.") for free in FREE)
    }


def _flat(x: Any, name: str) -> Iterator[tuple[str, Any]]:
    items = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list | tuple) else None
    if items is None:
        yield name, x
        return
    for key, value in items:
        yield from _flat(value, f"{name}.{key}" if name else str(key))
