"""Variance of a value sum over n slots: n/2 for ReLU, about e/n for softmax, 1 for ReLU over sqrt(n/2)."""

import math
from typing import Any

import torch

from reluformer.memory.activations import weigh
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Column, Experiment, Plot
from reluformer.study.experiments._memories import FFNS
from reluformer.study.experiments._trained import trained_variance
from reluformer.study.scales import Scale

ROWS = 4096  # queries to simulate
WIDTH = 16  # entries of a value
BLOCK = 1 << 22  # entries of values to hold at a time

SERIES = {
    "ReLU": {"activation": "relu", "alpha": 0.0},
    "softmax": {"activation": "softmax", "alpha": 0.0},
    "scaled ReLU": {"activation": "relu", "alpha": 0.5},
}
TRAINED: dict[str, dict[str, Any]] = {
    "ReLU FFN, trained": {"model": {"ffn": FFNS["ReLU"]}, "site": "encoder.ffn"},
    "softmax FFN, trained": {"model": {"ffn": FFNS["softmax"]}, "site": "encoder.ffn"},
    "softmax attention, trained": {"model": {}, "site": "encoder.self_attention"},
    "scaled ReLU attention, trained": {"model": {"family": "reluformer"}, "site": "encoder.self_attention"},
}


def arms(scale: Scale) -> list[Arm]:
    """Return every memory with every number of slots, as simulated, and trained models of ``ffn`` and ``attention``."""
    start = [
        Arm(f"{series}, n = {n}", {"n": n, **memory}, x=n, series=series)
        for series, memory in SERIES.items()
        for n in scale.counts
    ]
    return start + [Arm(name, settings, series=name) for name, settings in TRAINED.items()]


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Measure the variance in a trained model, or of random scores and values, standard normal."""
    if "model" in arm.settings:
        return trained_variance(bench.train(arm.settings["model"], seed).folder, bench, arm.settings["site"])
    n, activation, alpha = (arm.settings[name] for name in ("n", "activation", "alpha"))
    random = torch.Generator().manual_seed(seed)
    total = squares = 0.0
    count = 0
    rows = max(1, min(ROWS, BLOCK // (n * WIDTH)))
    for _ in range(0, ROWS, rows):
        scores = torch.randn(rows, 1, n, generator=random)
        values = torch.randn(rows, n, WIDTH, generator=random)  # fresh: the lemma's are independent of all else
        out = (weigh(scores, activation, n) @ values / (n / 2) ** alpha).double()
        total, squares, count = total + float(out.sum()), squares + float(out.square().sum()), count + out.numel()
    measured = squares / count - (total / count) ** 2
    expected = expected_variance(activation, alpha, n)
    return {"variance": measured, "expected": expected, "ratio": measured / expected, "n": n}


def expected_variance(activation: str, alpha: float, n: float) -> float:
    """Return the variance that the lemma gives for standard normal scores and values."""
    return math.e / n if activation == "softmax" else n / 2 / (n / 2) ** (2 * alpha)


EXPERIMENT = Experiment(
    name="variance",
    title="Variance of a value sum",
    question="Does the variance grow as n/2 with ReLU and fall as e/n with softmax?",
    arms=arms,
    run=run,
    columns=(
        Column("n", "n", 0),
        Column("variance", "variance", 4),
        Column("n/2, e/n or 1", "expected", 4),
        Column("measured / expected", "ratio", 3),
    ),
    plots=(
        Plot(
            "Variance of the value sum", "variance", "slots n", "variance", log_x=True,
            reference={"n/2": "x / 2", "e/n": "e / x"},
        ),
    ),
)  # fmt: skip
