"""The activation of attention: what ReLU needs to converge, and how it compares with softmax and its relatives."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.clock import nll_at
from reluformer.study.experiment import Arm, Claim, Column, Experiment
from reluformer.study.experiments._memories import (
    ALONE,
    ATTENTIONS,
    BARE,
    EIGHTH,
    OVER_ITS_MASS,
    PLAIN_EIGHTH,
    POWER,
    RELA,
    RELU,
    attention,
    reluformer,
)
from reluformer.study.scales import Scale

NORMED = "softmax, query-key norm"
QUARTER = "full, on a quarter of the sequences"
NEAR_ONE = 3  # keys at which unit mass takes a gamma of about 1


def arms(scale: Scale) -> list[Arm]:
    """Return the paper's ablation, its baselines, ReLU over its mass, and the best of ``attempts``."""
    weight = scale.regulariser
    return [
        Arm("softmax", {"model": {}}),
        Arm("scale only", {"model": RELU}),
        Arm("full", {"model": reluformer(scale)}),
        Arm(QUARTER, {"model": RELU | {"regulariser": {"mass": weight, "entropy": weight, "share": 0.25}}}),
        Arm("ReLU bare", {"model": BARE}, seeds=1),
        Arm("+ mass term", {"model": RELU | {"regulariser": {"mass": weight}}}, seeds=1),
        Arm("+ entropy term", {"model": RELU | {"regulariser": {"entropy": weight}}}, seeds=1),
        Arm(
            "full, gamma starts near 1",
            {"model": reluformer(scale) | {"calibration_length": NEAR_ONE}, "recipe": {"calibrate": False}},
            seeds=1,
        ),
        *(
            Arm(
                f"full, learning rate x {x}",
                {"model": reluformer(scale), "recipe": {"optimiser": {"lr": x * scale.lr}}},
                seeds=1,
            )
            for x in (0.5, 2)
        ),
        Arm("full, alpha 0", {"model": reluformer(scale, alpha=0.0)}, seeds=1),
        Arm("full, alpha 1", {"model": reluformer(scale, alpha=1.0)}, seeds=1),
        Arm("sparsemax", {"model": attention(activation="sparsemax")}, seeds=1),
        Arm("1.5-entmax", {"model": attention(activation="entmax15")}, seeds=1),
        Arm("ReLA", {"model": RELA}, seeds=1),
        Arm("sigmoid", {"model": attention(activation="sigmoid")}, seeds=1),
        Arm("ReLU over its mass", {"model": OVER_ITS_MASS}, seeds=1),
        Arm("power 4", {"model": RELU | attention(**POWER)}, seeds=1),
        Arm("power 8", {"model": RELU | attention(**EIGHTH)}),  # with centring and a query-key norm
        Arm("power 8 alone", {"model": RELU | attention(**ALONE)}),  # a drop-in for softmax, with no other change
        Arm("power 8, query-key norm", {"model": RELU | attention(**PLAIN_EIGHTH)}),
        Arm(NORMED, {"model": attention(**ATTENTIONS["softmax"], query_key_norm=True)}),
    ]


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences."""
    result = bench.train_and_score(arm.settings["model"], seed, **arm.settings.get("recipe", {}))
    return result | {"nll_equal_steps": result["curve"][-1]["nll"]}


def alone(arm: Arm, seed: int, bench: Bench, result: dict[str, Any]) -> dict[str, Any]:
    """Measure the pace, and the loss after as many updates as fit in the time in which softmax makes all of its own."""
    paces = bench.paces(arm.settings["model"])
    return {
        "pace": paces["training"],
        "translation_pace": paces["translation"],
        "nll_equal_time": nll_at(result["curve"], result["steps"] * paces["training"]),
    }


EXPERIMENT = Experiment(
    name="attention",
    title="Activation of attention",
    question="What does ReLU attention need to converge, and does it then match softmax?",
    arms=arms,
    run=run,
    alone=alone,
    columns=(
        Column("BLEU", "bleu", 2, "higher"),
        Column("± 95 %", "bleu_ci", 2),
        Column("NLL", "nll", 3, "lower"),
        Column("NLL, equal steps", "nll_equal_steps", 3, "lower"),
        Column("NLL, equal time", "nll_equal_time", 3, "lower"),
        Column("entropy", "entropy", 2),
        Column("zeros", "zeros", 2),
        Column("mass", "mass", 2),
        Column("pace", "pace", 2, "higher"),
        Column("pace of translation", "translation_pace", 2, "higher"),
    ),
    claims=(
        Claim("ReLU swapped in directly does not converge", "nll", "ReLU bare", "softmax", ">", 0.5, "no convergence"),
        Claim("the regulariser mends what the scale alone leaves", "bleu", "full", "scale only", paper="34.56, 33.19"),
        Claim("the regulariser is as good measured on a quarter of the sequences", "nll", QUARTER, "full", "=", 0.05),
        Claim("ReLUFormer beats the Transformer", "bleu", "full", "softmax", paper="34.56 against 34.22"),
        Claim("the mass term is needed", "bleu", "full", "+ entropy term", paper="1.37 less without it"),
        Claim("the mass term raises the entropy", "entropy", "full", "+ entropy term", paper="1.52 less without it"),
        Claim("ReLU over its mass is as good as softmax", "bleu", "ReLU over its mass", "softmax", "=", 0.3),
        *(
            Claim(f"ReLU to the eighth over its mass {text}", "bleu", arm, other, ">", margin)
            for text, arm, other, margin in (
                ("at least matches softmax", "power 8", "softmax", -0.3),
                ("beats softmax", "power 8", "softmax", 0.0),
                ("matches softmax with the same query-key norm", "power 8", NORMED, -0.3),
                ("alone, without centring or norm, matches softmax", "power 8 alone", "softmax", -0.3),
                ("with that norm, not centred, matches softmax with it", "power 8, query-key norm", NORMED, -0.3),
            )
        ),
        Claim("sparsemax is lower", "bleu", "full", "sparsemax", paper="lower"),
        Claim("1.5-entmax is lower", "bleu", "full", "1.5-entmax", paper="lower"),
        Claim("ReLA is lower", "bleu", "full", "ReLA", paper="lower"),
        Claim("ReLU translates faster than sparsemax", "translation_pace", "full", "sparsemax", paper="about 1.7x"),
        Claim("ReLU translates faster than entmax", "translation_pace", "full", "1.5-entmax", paper="about 1.7x"),
    ),
    paper={
        "softmax": {"bleu": "34.22"},
        "ReLU bare": {"bleu": "no convergence"},
        "scale only": {"bleu": "33.19"},
        "full": {"bleu": "34.56"},
    },
)
