"""Many slots: softmax and ReLU as the memory grows, in the FFN and in persistent key-value memory."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot
from reluformer.study.experiments._memories import ALONE, ATTENTIONS, FFNS
from reluformer.study.scales import Scale

PLACES = ("FFN", "key-value", "key-value apart")
APART = PLACES[-1]  # slots that are a memory of their own, so that attention to the sequence is softmax's in all arms
REPEATED = (512, 2048, 4096)  # numbers of slots that are worth several seeds; the others only show the trend
MANY = 4096  # slots with which key-value memory is also tried apart, and in two ways of ours:
NORMED = "ReLU + LN"  # is it the norm or softmax that helps?
EIGHTH = "power 8"  # does ReLU win where its attention to the sequence is as good as softmax's?
BESIDE = "ReLU beside power 8"  # apart: the rest of attention is that of EIGHTH, so that no softmax is left
# The large scale has 105 of these runs. Its models have half the width and depth, so that each sees all updates, and
# updates are recorded: launching their kernels one by one would take longer than running them.
HALF: dict[str, Any] = {"d_model": 256, "encoder_layers": 3, "decoder_layers": 3}
# The first runs: models of full size for a third of the updates, whose loss was still falling at the end.
CUT_SHORT = ", full size, a third of the updates"

METRICS = (("bleu", "beats", ">"), ("nll", "has a lower loss than", "<"))


def arms(scale: Scale) -> list[Arm]:
    """Return every combination of activation, place and number of slots; and key-value memory in the ways of ours."""
    found = [(name, place, slots) for place in PLACES[:2] for slots in scale.slots for name in FFNS]
    ours = [(name, "key-value", MANY) for name in (NORMED, EIGHTH)]
    swept = [
        Arm(
            f"{name}, {place}, {slots}", settings_of(scale, model_of(name, place, slots)), slots, f"{name}, {place}",
            seeds=None if slots in REPEATED else 1,
        )
        for name, place, slots in found + [arm for arm in ours if arm[2] in scale.slots]
    ]  # fmt: skip
    swept += [
        Arm(f"{name}, {APART}, {MANY}", settings_of(scale, model_of(name, APART, MANY)))  # no point of a curve
        for name in (*FFNS, NORMED, BESIDE)
        if MANY in scale.slots
    ]
    cut_short = [
        Arm(f"{name}, {place}, {MANY}{CUT_SHORT}", {"model": model_of(name, place, MANY), "recipe": {"steps": 1 / 3}})
        for place in PLACES[:2]
        for name in ("ReLU", "softmax")
        if scale.extras
    ]
    return swept + cut_short


def settings_of(scale: Scale, model: dict[str, Any]) -> dict[str, Any]:
    """Return a model of the size that the sweep has at a scale, with the change to its recipe, if any."""
    return {"model": HALF | model, "recipe": {"graphs": True}} if scale.extras else {"model": model}


def model_of(name: str, place: str, slots: int) -> dict[str, Any]:
    """Return a model with the slots in its FFN; or without an FFN, and the slots beside the keys of self-attention.

    Slots apart have an activation of their own. Their sums are added to those of softmax over the sequence, so that the
    arms differ in the slots alone; a norm is of both together.
    """
    if place == "FFN":
        return {"ffn": FFNS[name] | {"slots": slots}}
    if place == APART:
        rest = ALONE if name == BESIDE else ATTENTIONS["softmax + LN" if name.endswith(" + LN") else "softmax"]
        memory = rest | {"slots": slots, "slot_activation": "softmax" if name.startswith("softmax") else "relu"}
    else:
        memory = (ALONE if name == EIGHTH else ATTENTIONS[name]) | {"slots": slots}
    cross = {"cross": ALONE} if name == BESIDE else {}
    return {"ffn": {"slots": 0}, "encoder_self": memory, "decoder_self": memory} | cross


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
        if place != APART or slots == MANY
        for pair in [(f"ReLU, {place}, {slots}", f"{other}, {place}, {slots}")]
        for metric, words, sign in METRICS
    )
    + tuple(
        Claim(f"ReLU to the eighth over its mass {words} softmax with {MANY} slots (key-value)", metric, *pair, sign)
        for pair in [(f"{EIGHTH}, key-value, {MANY}", f"softmax, key-value, {MANY}")]
        for metric, words, sign in METRICS
    )
    + tuple(
        Claim(f"without any softmax ReLU {words} softmax with {MANY} slots ({APART})", metric, *pair, sign)
        for pair in [(f"{BESIDE}, {APART}, {MANY}", f"softmax, {APART}, {MANY}")]
        for metric, words, sign in METRICS
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
    )
    + tuple(
        Claim(f"ReLU {words} softmax with {MANY} slots ({place}{CUT_SHORT})", metric, *pair, sign, paper="ReLU ahead")
        for place in PLACES[:2]
        for pair in [(f"ReLU, {place}, {MANY}{CUT_SHORT}", f"softmax, {place}, {MANY}{CUT_SHORT}")]
        for metric, words, sign in METRICS
    ),
    plots=(
        Plot("BLEU and slots", "bleu", "slots", "BLEU", log_x=True),
        Plot("NLL and slots", "nll", "slots", "NLL", log_x=True),
    ),
)
