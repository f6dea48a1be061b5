"""Beyond the length of training: ReLU scaled by the number of keys, at a fixed scale, or over its mass; and softmax."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot, Profile
from reluformer.study.experiments._memories import PLAIN_EIGHTH, RELU, attention, reluformer
from reluformer.study.experiments.documents import settings_of
from reluformer.study.run_on import score_run_on
from reluformer.study.scales import Scale

PLAIN = ("ReLU, scaled by n", "ReLU, fixed scale", "softmax")
WHOLE = "ReLU, divided by n"  # by n itself, where the paper's factor is the root of n / 2
EIGHTH_NAME = "power 8"


def arms(scale: Scale) -> list[Arm]:
    """Return every model at every length; it is trained once, on the first of them."""
    trained = scale.reach[0]
    return [
        Arm(
            f"{name}, {tested}", settings | {"length": trained, "tested": tested}, tested, name,
            seeds=None if name in (*PLAIN, WHOLE, EIGHTH_NAME) else 1,
        )
        for name, settings in trainings(scale).items()
        for tested in scale.reach
    ]  # fmt: skip


def trainings(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return models and recipes: three of ``documents``, and ReLU with other powers of n, or none, as a divisor.

    Without any, gamma is calibrated again when the run comes to its documents.
    """
    scaled, fixed, softmax = (
        settings_of(scale, model) for model in (reluformer(scale), reluformer(scale, alpha=0.0), {})
    )
    fixed["recipe"] = fixed.get("recipe", {}) | {"recalibrate": True}
    plain = dict(zip(PLAIN, (scaled, fixed, softmax), strict=True))
    positions = {  # no learned ones, whose table has an end
        "sinusoidal": {"positions": "sinusoidal"},
        "shifted": {"positions": "sinusoidal", "position_shift": scale.reach[-1]},
    }
    others = {
        f"{name}, {kind}": settings | {"model": settings["model"] | changes}
        for kind, changes in positions.items()
        for name, settings in plain.items()
    }
    ours = {
        WHOLE: settings_of(scale, reluformer(scale, alpha=1.0)),
        EIGHTH_NAME: settings_of(scale, RELU | attention(**PLAIN_EIGHTH)),
    }
    return plain | ours | (others if scale.extras else {})


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train as in ``documents``, or reuse the trained model, and test in windows of the arm's length."""
    length, tested = arm.settings["length"], arm.settings["tested"]
    trained = bench.train(arm.settings["model"], seed, length, **arm.settings.get("recipe", {}))
    result = score_run_on(trained.folder, bench.corpus, bench.scale, tested, length)
    return result | ({"curve": trained.result["curve"]} if tested == length else {})


def claims(scale: Scale) -> tuple[Claim, ...]:
    """Return the claims about the first length, which is that of training, and the last."""
    scaled, fixed, softmax = PLAIN
    first, *_, last = scale.reach
    return (
        Claim(
            f"scaling by n is as good as a fixed scale at the length of training, {first}", "nll",
            f"{scaled}, {first}", f"{fixed}, {first}", "=", 0.05,
        ),
        Claim(f"scaling by n beats a fixed scale at {last}", "nll", f"{scaled}, {last}", f"{fixed}, {last}", "<"),
        Claim(
            f"dividing by n itself beats the paper's factor at {last}", "nll",
            f"{WHOLE}, {last}", f"{scaled}, {last}", "<",
        ),
        Claim(f"ReLU divided by n beats softmax at {last}", "nll", f"{WHOLE}, {last}", f"{softmax}, {last}", "<"),
        Claim(f"ReLU scaled by n beats softmax at {last}", "nll", f"{scaled}, {last}", f"{softmax}, {last}", "<"),
        Claim(
            f"ReLU to the eighth over its mass beats softmax at {last}", "nll",
            f"{EIGHTH_NAME}, {last}", f"{softmax}, {last}", "<",
        ),
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="extrapolation",
    title="Beyond the length of training",
    question="Does ReLU scaled by the number of keys carry beyond the length of training, and a fixed scale not?",
    arms=arms,
    run=run,
    columns=(
        Column("NLL", "nll", 3, "lower"),
        Column("NLL past the trained length", "beyond", 3, "lower"),
        Column("s-BLEU", "bleu", 2, "higher"),
        Column("d-BLEU", "d_bleu", 2, "higher"),
        Column("± 95 %", "d_bleu_ci", 2),
        Column("window used, tokens", "window", 0),
        Column("mass", "mass", 2),
        Column("entropy", "entropy", 2),
        Column("dead rows", "dead", 3),
    ),
    claims=claims,
    plots=(
        Plot("NLL and the length of the window", "nll", "tokens", "NLL", log_x=True),
        Plot("d-BLEU and the length of the window", "d_bleu", "tokens", "d-BLEU", log_x=True),
        Plot("Mass and the length of the window", "mass", "tokens", "mass of a row", log_x=True),
    ),
    profiles=(Profile("NLL by position in the window", "by_position", "position, tokens", "NLL", "tokens"),),
)
