"""Finding one key among many: what an activation needs to do in long memories what it learned in short ones.

This experiment is ours, not the paper's: it separates in minutes what takes ``documents`` hours to separate.
"""

import math
from typing import Any

import torch

from reluformer.report import memory_report
from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Claim, Column, Diverged, Experiment, Profile
from reluformer.study.experiments._memories import ALONE, ATTENTIONS, CENTRED, EIGHTH, PLAIN_EIGHTH, POWER
from reluformer.study.retrieval import Course, batch_of, make_model, nll_by_length, train_model
from reluformer.study.scales import Scale

COURSES = {
    "smoke": Course(short=8, long=16, steps=(6, 3), tokens=128),
    "laptop": Course(short=32, long=256, steps=(500, 200)),
    "gpu": Course(short=32, long=256, steps=(800, 300)),  # half an hour on two cores, for three seeds
}
LEARNED = 0.5  # nats: a loss that only a model that finds most keys reaches
SHOWN = 4  # sequences on which the memories are inspected

NORMED = {"query_key_norm": True}
MEMORIES: dict[str, dict[str, Any]] = {
    "softmax, query-key norm": ATTENTIONS["softmax"] | NORMED,
    "centred, query-key norm": CENTRED | NORMED,
    "power 1": POWER | {"activation": "relu", "bias": 1.0},
    "power 2": POWER | {"activation": "relu_squared", "bias": 2.0},
    "power 4": POWER,
    "power 8": EIGHTH,
}
EXTRAS: dict[str, dict[str, Any]] = {
    "softmax": ATTENTIONS["softmax"],
    "1.5-entmax, query-key norm": ATTENTIONS["softmax"] | NORMED | {"activation": "entmax15"},
    "scale only": ATTENTIONS["ReLU"],
    "centred": CENTRED,
    "power 8, not centred": PLAIN_EIGHTH,
    "power 8, not centred, no query-key norm": ALONE,
}


def arms(scale: Scale) -> list[Arm]:
    """Return memories that each differ from the next in one thing, and with ``extras`` further ones."""
    long, memories = COURSES[scale.name].long, MEMORIES | (EXTRAS if scale.extras else {})
    return [Arm(name, {"data": "a dictionary", "memory": x}, long, name) for name, x in memories.items()]


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on short sequences, then on long ones; the bench's corpus is not used."""
    course = COURSES[bench.scale.name]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(arm.settings["memory"], course.short, seed)
    losses, between = train_model(model, course, seed, device)
    if not math.isfinite(losses[-1]):
        raise Diverged("the loss is not a number")
    after = nll_by_length(model, course, device)
    shown = batch_of(course.long, SHOWN, torch.Generator().manual_seed(8))
    report = memory_report(model, {name: x.to(device) for name, x in shown.items()})
    cross = [site.mean for site in report.sites if site.site == "decoder.cross_attention"]
    first = losses[: course.steps[0]]
    return {
        "updates": next((step for step, loss in enumerate(first, 1) if loss < LEARNED), len(first)),
        "nll_short": between[course.short],
        "nll_kept": after[course.short],
        "nll_long": after[course.long],
        "nll_beyond": after[2 * course.long],
        "by_length": {str(length): nll for length, nll in after.items()},
        "zeros": sum(x.zeros or 0.0 for x in cross) / len(cross),
        "effective": min(x.effective_keys or 0.0 for x in cross),
        "curve": [{"step": step, "nll": sum(losses[step - 10 : step]) / 10} for step in range(10, len(losses) + 1, 10)],
    }


EXPERIMENT = Experiment(
    name="retrieval",
    title="Finding one key among many",
    question="Which attention finds in a long memory what it has learned to find in a short one?",
    arms=arms,
    run=run,
    columns=(
        Column("updates to learn it", "updates", 0, "lower"),
        Column("NLL, short", "nll_short", 3, "lower"),
        Column("NLL, long", "nll_long", 3, "lower"),
        Column("NLL, short again", "nll_kept", 3, "lower"),
        Column("NLL, twice as long", "nll_beyond", 3, "lower"),
        Column("zeros", "zeros", 2),
        Column("effective keys", "effective", 1),
    ),
    claims=(
        Claim(
            "centred ReLU over the number of keys loses the key in long memories", "nll_long",
            "centred, query-key norm", "softmax, query-key norm", ">", 0.5,
        ),
        Claim("division by the mass helps", "nll_long", "power 1", "centred, query-key norm", "<"),
        Claim("a power of 2 helps", "nll_long", "power 2", "power 1", "<"),
        Claim("a power of 4 helps", "nll_long", "power 4", "power 2", "<"),
        Claim("a power of 4 finds keys as softmax does", "nll_long", "power 4", "softmax, query-key norm", "=", 0.05),
        Claim("a power of 8 finds keys as softmax does", "nll_long", "power 8", "softmax, query-key norm", "=", 0.05),
    ),
    profiles=(Profile("NLL by length, after all", "by_length", "words", "NLL", "words at most in training"),),
)  # fmt: skip
