"""Many slots: softmax and ReLU as the memory grows, in the FFN and in persistent key-value memory."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot
from reluformer.study.experiments._memories import ATTENTIONS, FFNS
from reluformer.study.scales import Scale

PLACES = ("FFN", "key-value")
REPEATED = (512, 2048, 4096)  # numbers of slots that are worth several seeds; the others show the course of a curve
MANY = 4096  # where ReLU is also tried with a layer norm: is it the norm or softmax that helps in key-value memory?
NORMED = "ReLU + LN"
SHARE = 1 / 3  # of the updates at the large scale, which has 87 of these runs


def arms(scale: Scale) -> list[Arm]:
    """Three activations, two places, every number of slots; and ReLU with the norm that softmax has."""
    found = [(name, place, slots) for place in PLACES for slots in scale.slots for name in FFNS]
    normed = [(NORMED, "key-value", slots) for slots in scale.slots if slots == MANY]
    return [
        Arm(
            f"{name}, {place}, {slots}", {"model": model_of(name, place, slots)} | recipe_of(scale), slots,
            f"{name}, {place}", seeds=None if slots in REPEATED else 1,
        )
        for name, place, slots in found + normed
    ]  # fmt: skip


def model_of(name: str, place: str, slots: int) -> dict[str, Any]:
    """A model with so many slots in its FFN; or without one, the slots beside the keys of self-attention instead."""
    if place == "FFN":
        return {"ffn": FFNS[name] | {"slots": slots}}
    memory = ATTENTIONS[name] | {"slots": slots}
    return {"ffn": {"slots": 0}, "encoder_self": memory, "decoder_self": memory}


def recipe_of(scale: Scale) -> dict[str, Any]:
    """At the large scale, fewer updates."""
    return {"recipe": {"steps": SHARE}} if scale.extras else {}


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences."""
    return bench.train_and_score(arm.settings["model"], seed, **arm.settings.get("recipe", {}))


EXPERIMENT = Experiment(
    name="slots",
    title="Number of value slots",
    question="Does ReLU beat softmax when there are many slots, in the FFN and in key-value memory alike?",
    arms=arms,
    run=run,
    columns=(Column("BLEU", "bleu", 2, "higher"), Column("NLL", "nll", 3, "lower")),
    claims=tuple(
        Claim(f"ReLU {words} {other} with {slots} slots ({place})", metric, *pair, sign, paper=paper)
        for place in PLACES
        for slots, other, paper in (
            (32, "softmax", "ReLU ahead"),
            (512, "softmax", "ReLU ahead"),
            (2048, "softmax", "ReLU ahead"),
            (4096, "softmax", "ReLU ahead"),
            (3072, "softmax + LN", "ReLU ahead"),
            (4096, "softmax + LN", "ReLU ahead"),
            (16384, "softmax + LN", ""),
        )
        for pair in [(f"ReLU, {place}, {slots}", f"{other}, {place}, {slots}")]
        for metric, words, sign in (("bleu", "beats", ">"), ("nll", "has a lower loss than", "<"))
    )
    + tuple(
        Claim(f"a norm lowers the loss of {name} with {MANY} slots (key-value)", "nll", *pair, "<")
        for name in ("ReLU", "softmax")
        for pair in [(f"{name} + LN, key-value, {MANY}", f"{name}, key-value, {MANY}")]
    )
    + (
        Claim(
            f"with a norm ReLU is level with softmax with {MANY} slots (key-value)",
            "nll",
            f"{NORMED}, key-value, {MANY}",
            f"softmax + LN, key-value, {MANY}",
            "=",
            0.05,
        ),
    ),
    plots=(
        Plot("BLEU and slots", "bleu", "slots", "BLEU", log_x=True),
        Plot("NLL and slots", "nll", "slots", "NLL", log_x=True),
    ),
)
