"""Long documents: ReLUFormer, Transformer and sparsemax as the input grows."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot
from reluformer.study.experiments._memories import attention, reluformer
from reluformer.study.scales import Scale


def arms(scale: Scale) -> list[Arm]:
    """Three models, every length."""
    models = models_of(scale)
    return [
        Arm(f"{name}, {length}", {"model": model, "length": length}, length, name)
        for length in scale.lengths
        for name, model in models.items()
    ]


def models_of(scale: Scale) -> dict[str, dict[str, Any]]:
    """Those that are compared on documents."""
    return {
        "ReLUFormer": reluformer(scale),
        "Transformer": {},
        "sparsemax": attention(activation="sparsemax"),
    }


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences, then on documents of the length; translate in windows of that length."""
    return bench.train_and_score(arm.settings["model"], seed, arm.settings["length"])


EXPERIMENT = Experiment(
    name="documents",
    title="Length of the documents",
    question="Does ReLUFormer beat the Transformer on long documents?",
    arms=arms,
    run=run,
    columns=(
        Column("s-BLEU", "bleu", 2, "higher"),
        Column("± 95 %", "bleu_ci", 2),
        Column("d-BLEU", "d_bleu", 2, "higher"),
        Column("± 95 %", "d_bleu_ci", 2),
        Column("NLL", "nll", 3, "lower"),
        Column("tokens/s", "tokens_per_second", 0, "higher"),
        Column("GPU memory, GiB", "peak_gib", 1, "lower"),
    ),
    claims=(
        Claim("level at 128", "d_bleu", "ReLUFormer, 128", "Transformer, 128", "=", 0.5, "level"),
        Claim("level at 256", "d_bleu", "ReLUFormer, 256", "Transformer, 256", "=", 0.5, "level"),
        Claim("ReLUFormer ahead at 512", "d_bleu", "ReLUFormer, 512", "Transformer, 512", paper="better"),
        Claim("ReLUFormer ahead at 1024", "d_bleu", "ReLUFormer, 1024", "Transformer, 1024", paper="+1.15"),
        Claim("ReLUFormer ahead at 2048", "d_bleu", "ReLUFormer, 2048", "Transformer, 2048", paper="better"),
        Claim(
            "sparsemax does not converge on long inputs", "nll", "sparsemax, 1024", "Transformer, 1024", ">", 0.5,
            "fails to converge",
        ),
    ),
    plots=(
        Plot("d-BLEU and length", "d_bleu", "tokens", "d-BLEU", log_x=True),
        Plot("Speed and length", "tokens_per_second", "tokens", "tokens/s", log_x=True),
    ),
)  # fmt: skip
