"""The activation of the FFN: softmax loses to ReLU, and a layer norm on the value sum makes up for it."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment
from reluformer.study.experiments._memories import FFNS
from reluformer.study.scales import Scale


def arms(scale: Scale) -> list[Arm]:
    """Return the paper's three arms, and softmax with other temperatures."""
    found = [Arm(name, {"model": {"ffn": ffn}}) for name, ffn in FFNS.items()]
    for temperature in scale.temperatures:
        ffn = FFNS["softmax"] | {"temperature": temperature}
        found.append(Arm(f"softmax, temperature {temperature:g}", {"model": {"ffn": ffn}}, seeds=1))
    return found


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences."""
    return bench.train_and_score(arm.settings["model"], seed)


EXPERIMENT = Experiment(
    name="ffn",
    title="Activation of the FFN",
    question="Is an FFN with softmax worse than one with ReLU, and does a layer norm make them equal?",
    arms=arms,
    run=run,
    columns=(
        Column("BLEU", "bleu", 2, "higher"),
        Column("NLL", "nll", 3, "lower"),
        Column("variance / residual", "ffn_variance_ratio", 4),
        Column("top 0.2 %", "ffn_top", 3),
        Column("effective slots", "ffn_effective", 1),
    ),
    claims=(
        Claim("ReLU beats softmax in the FFN", "bleu", "ReLU", "softmax", ">", paper="34.22 against 33.08"),
        Claim("softmax with a layer norm equals ReLU", "bleu", "softmax + LN", "ReLU", "=", 0.5, "34.21 against 34.22"),
        Claim("a layer norm mends softmax", "bleu", "softmax + LN", "softmax", ">", paper="34.21 against 33.08"),
    ),
    paper={"ReLU": {"bleu": "34.22"}, "softmax": {"bleu": "33.08"}, "softmax + LN": {"bleu": "34.21"}},
)
