"""Indicator functions of disjoint classes: the L1 error of a softmax over one memory, by the memory's width.

The theorem is that of Asadi and Jiang, arXiv 2002.04060, for hidden layers of ReLU units. A cell has one width; the
rate of a memory is fitted to all its widths in a cell of its own, which reuses the errors that the others kept.
"""

from dataclasses import dataclass
from typing import Any

import torch

from reluformer.data.files import hash_of, read_json, write_json
from reluformer.study.approximation.boxes import cut_cube
from reluformer.study.approximation.error import l1_error
from reluformer.study.approximation.network import Network, train_network
from reluformer.study.approximation.rate import fit_rate
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot
from reluformer.study.experiments._memories import FFNS
from reluformer.study.locks import locked
from reluformer.study.scales import Scale

DIMENSIONS = (1, 2, 3, 4)
NARROW, MEDIUM, WIDE = 4, 64, 1024  # widths at every scale, which the claims are about
LONGER = 4  # times the updates, to see whether an error is due to width or to training


@dataclass(frozen=True)
class Plan:
    """Size of the experiment at a scale: slots of the memories, updates, points of the estimate."""

    widths: tuple[int, ...]
    steps: int
    points: int


PLANS = {
    "smoke": Plan((NARROW, MEDIUM, WIDE), steps=10, points=2**11),
    "laptop": Plan((NARROW, 16, MEDIUM, 256, WIDE), steps=800, points=2**16),
    "gpu": Plan((NARROW, 8, 16, 32, MEDIUM, 128, 256, 512, WIDE), steps=5000, points=2**18),
}


def arms(scale: Scale) -> list[Arm]:
    """Return every memory in every dimension: each width, the rate over all widths, and the widest trained longer."""
    plan, found = PLANS[scale.name], []
    for dimension in DIMENSIONS:
        for series, memory in FFNS.items():
            common = {
                "data": "boxes in the unit cube", "dimension": dimension, "memory": memory, "steps": plan.steps,
                "points": plan.points,
            }  # fmt: skip
            found += [
                Arm(named(series, dimension, width), common | {"widths": [width]}, x=width, series=series)
                for width in plan.widths
            ]
            rate = common | {"widths": list(plan.widths)}
            found.append(Arm(f"{series}, {dimension}-D, rate", rate, x=dimension, series=series))
            longer = common | {"widths": [WIDE], "steps": LONGER * plan.steps}
            found.append(Arm(f"{named(series, dimension, WIDE)}, {LONGER} times the updates", longer, seeds=1))
    return found


def named(series: str, dimension: int, width: int) -> str:
    """Return the name of the arm of one width."""
    return f"{series}, {dimension}-D, width {width}"


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Measure the error of one width, or the rate over several; the bench's corpus is not used."""
    widths = arm.settings["widths"]
    results = [_measured(arm.settings, width, seed, bench) for width in widths]
    if len(results) > 1:
        rate = fit_rate(widths, [result["error"] for result in results])
        return {"slope": rate.slope, "slope_ci": rate.interval}
    return results[0] | {f"error_{arm.settings['dimension']}d": results[0]["error"]}  # one plot per dimension


def _measured(settings: dict[str, Any], width: int, seed: int, bench: Bench) -> dict[str, float]:
    """Return the error of one network, which the first cell to ask for it trains."""
    key = hash_of([{name: x for name, x in settings.items() if name != "widths"}, width, seed])
    file = bench.work / "approximation" / f"{key}.json"
    with locked(file.with_suffix(".lock")):
        found: dict[str, float] | None = read_json(file)
        if found is None:
            found = measure(settings, width, seed)
            write_json(file, found)
    return found


def measure(settings: dict[str, Any], width: int, seed: int) -> dict[str, float]:
    """Train a network of that width and estimate its error."""
    torch.manual_seed(seed)
    target = cut_cube(settings["dimension"])
    network = Network(settings["dimension"], settings["memory"], width)
    train_network(network, target, settings["steps"], seed)
    error, standard_error = l1_error(network.predict, target, settings["points"])
    return {"error": error, "standard_error": standard_error}


def _claims() -> list[Claim]:
    falls = [
        Claim(
            f"{series}'s error falls with width in {d}-D", "error", named(series, d, WIDE), named(series, d, NARROW),
            "<", paper="to any error, given the width" if series == "ReLU" else "",
        )
        for series in ("ReLU", "softmax")
        for d in DIMENSIONS
    ]  # fmt: skip
    lower = [
        Claim(
            f"{width} slots: ReLU's error is lower than softmax's in {d}-D", "error", named("ReLU", d, width),
            named("softmax", d, width), "<",
        )
        for width in (NARROW, MEDIUM, WIDE)
        for d in DIMENSIONS
    ]  # fmt: skip
    return falls + lower


EXPERIMENT = Experiment(
    name="approximation",
    title="Approximation of indicator functions",
    question="How does the L1 error of a softmax over one memory fall with the width of the memory, ReLU or softmax?",
    arms=arms,
    run=run,
    columns=(
        Column("L1 error", "error", 3),
        Column("standard error", "standard_error", 4),
        Column("slope of log error over log width", "slope", 2),
        Column("its 95 % interval, ±", "slope_ci", 2),
    ),
    claims=tuple(_claims()),
    plots=(
        *(
            Plot(f"L1 error and width, {d}-D", f"error_{d}d", "slots", "L1 error", log_x=True)
            for d in DIMENSIONS
        ),
        Plot("Rate and dimension", "slope", "dimension", "slope of log error over log width"),
    ),
)  # fmt: skip
