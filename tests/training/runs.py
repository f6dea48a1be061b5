"""Small runs on made-up data, and what they leave."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from reluformer.data.documents import Languages
from reluformer.data.prepare import Plan, prepare
from reluformer.training.recipe import Batches, Checkpoints, Optimiser, Recipe, Stage, to_yaml
from reluformer.training.recording import Tensors
from tests.data.corpus import write_corpus

MODEL: dict[str, Any] = {
    "preset": "reluformer-tiny", "d_model": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1,
    "ffn": {"slots": 32}, "dropout": 0.1, "regulariser": {"mass": 0.02, "entropy": 0.02},
}  # fmt: skip


def prepare_data(folder: Path, lengths: tuple[int, ...] = (0, 60)) -> Path:
    inputs = (write_corpus(folder / "train.jsonl", 60),)
    valid = (write_corpus(folder / "valid.jsonl", 4, 9),)
    prepare(Plan(inputs, Languages("en", "de"), valid, vocab=300, lengths=lengths), folder / "data", 1)
    return folder / "data"


def small_recipe(data: Path, out: Path, **changes: Any) -> Recipe:
    recipe = Recipe(
        data=str(data),
        out=str(out),
        stages=(Stage(0, 6), Stage(60, 6)),
        model=MODEL,
        optimiser=Optimiser(lr=3e-3, warmup=4),
        batches=Batches(cost=300, accumulate=2),
        checkpoints=Checkpoints(every=3, keep=2, average=2),
        regulariser_warmup=4,
        precision="fp32",
        log_every=2,
    )
    return replace(recipe, **changes)


class Repeats:
    """A recorder that repeats a step by calling it again, as a CUDA graph does by launching its kernels again."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.recorded, self.replayed = model, 0, 0

    def __call__(self, run: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        self.recorded += 1
        gradients = [(x.grad, x.grad.clone()) for x in self.model.parameters() if x.grad is not None]
        outputs = {name: x.clone() for name, x in run().items()}
        for gradient, before in gradients:  # recording executes nothing
            gradient.copy_(before)

        def replay() -> None:
            self.replayed += 1
            for name, x in run().items():
                outputs[name].copy_(x)

        return replay, outputs


def weights(out: Path | str) -> dict[str, torch.Tensor]:
    return load_file(Path(out) / "model" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


def curve(out: Path | str) -> list[dict[str, Any]]:
    """The points of the curve, but for what a clock says."""
    points = [json.loads(line) for line in (Path(out) / "log.jsonl").read_text().splitlines()]
    return [{name: x for name, x in point.items() if name != "tokens_per_second"} for point in points]


def write_recipe(recipe: Recipe, path: Path) -> Path:
    path.write_text(to_yaml(recipe))
    return path


def python(*arguments: object, before: Sequence[object] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another process, with as many threads as this one: sums depend on them."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "TERM": "dumb", **environment}
    command = [*map(str, before), sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
