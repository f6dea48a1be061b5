"""Where the mass goes in trained models of ``slots`` and ``ffn``: softmax puts most of it on very few slots."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.cells import Cell
from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot
from reluformer.study.experiments import ffn, slots
from reluformer.study.scales import Scale

MEASURES = ("top", "effective", "entropy", "zeros", "anisotropy", "variance_ratio")


def arms(scale: Scale) -> list[Arm]:
    """Return the arms of ``slots``, so that none is trained twice, and the temperatures of ``ffn`` at the same size."""
    cooled = [arm for arm in ffn.arms(scale) if "temperature" in arm.name]
    return slots.arms(scale) + [
        Arm(f"{arm.name}, FFN", slots.settings_of(scale, arm.settings["model"]), seeds=arm.seeds) for arm in cooled
    ]


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Return the measures of the memory that has the slots: the FFN or slots apart, else self-attention.

    They are read from the cell of ``slots`` if it is done, which does not need its model.
    """
    kept = Cell("slots", "", arm, seed, bench.scale, bench.corpus, str(bench.work.parent)).record()
    result = kept["result"] if kept and kept["status"] == "done" else slots.run(arm, seed, bench)
    prefix = "ffn_" if "ffn_top" in result else "self_"
    return {name: result.get(f"{prefix}{name}") for name in MEASURES} | {"bleu": result["bleu"]}


EXPERIMENT = Experiment(
    name="centralisation",
    title="Centralisation of the weights",
    question="Do a few slots hold nearly all of the mass with softmax, and not with ReLU?",
    arms=arms,
    run=run,
    columns=(
        Column("top 0.2 %", "top", 3),
        Column("effective slots", "effective", 1),
        Column("entropy", "entropy", 2),
        Column("zeros", "zeros", 2),
        Column("anisotropy", "anisotropy", 3),
    ),
    claims=tuple(
        Claim(f"softmax {text} ({place}, 4096)", metric, f"softmax, {place}, 4096", f"ReLU, {place}, 4096", ">",
              paper=paper if place == "FFN" else "")
        for place in slots.PLACES
        for text, metric, paper in (
            ("puts more into the top 0.2 % than ReLU", "top", "above 85 % with softmax"),
            ("is more anisotropic than ReLU", "anisotropy", "higher with softmax"),
        )
        if metric == "top" or place != slots.APART  # whose output is in one with that of the sequence
    ),
    plots=(
        Plot("Share of the top 0.2 % of slots", "top", "slots", "share of the mass", log_x=True),
        Plot("Effective slots", "effective", "slots", "effective slots", log_x=True),
        Plot("Anisotropy", "anisotropy", "slots", "mean cosine", log_x=True),
    ),
)  # fmt: skip
