"""Changes that might close the gap between ReLU attention and softmax, one at a time, for a third of the updates."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Column, Experiment
from reluformer.study.experiments._memories import (
    ALONE,
    ATTENTIONS,
    CENTRED,
    EIGHTH,
    OVER_ITS_MASS,
    PLAIN_EIGHTH,
    POWER,
    RELA,
    RELU,
    SQUARED,
    attention,
    reluformer,
)
from reluformer.study.scales import Scale

NORMED_SOFTMAX = attention(**ATTENTIONS["softmax"], query_key_norm=True)
SQUARED_FFN = {"ffn": {"activation": "relu_squared"}}
SHARE = 1 / 3  # of the updates: enough to see which arm learns faster


def arms(scale: Scale) -> list[Arm]:
    """Return softmax and the paper's recipe; with ``extras`` also the steps from that to a better one, and variants."""
    full = reluformer(scale)
    found = [Arm("softmax", {"model": {}}), Arm("full", {"model": full})]
    if scale.extras:
        centred = RELU | attention(**CENTRED)
        models = _models(scale) | {f"centred, {name}": RELU | attention(**x) for name, x in _changes().items()}
        models["softmax, query-key norm"] = NORMED_SOFTMAX
        found += [Arm(name, {"model": model}) for name, model in models.items()]
        found += [Arm(f"centred, {name}", {"model": centred, "recipe": x}) for name, x in _recipes(scale).items()]
        found += [
            Arm(f"{name}, {rate}", {"model": model, "recipe": recipe})
            for name, model in _tuned(full, centred).items()
            for rate, recipe in _rates(scale).items()
        ]
    return found


def _models(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return models from the paper's recipe, and from its scale without regulariser, to centred scores and powers."""
    squared, centred = RELU | attention(**SQUARED), RELU | attention(**CENTRED)
    terms = {"mass": scale.regulariser, "entropy": scale.regulariser}
    return {
        "full, bias 1": reluformer(scale, bias=1.0),
        "full, power 2": reluformer(scale, activation="relu_squared"),
        "full, power 2, bias 2, alpha 1": reluformer(scale, **SQUARED),
        "full, centred": reluformer(scale, centred=True),
        "scale only": RELU,
        "scale only, query-key norm, bias 1, alpha 1": RELU | attention(query_key_norm=True, bias=1.0, alpha=1.0),
        "scale only, gated norm": RELU | attention(norm="gated"),
        "scale only, softmax in the cross-attention": RELU | {"cross": ATTENTIONS["softmax"]},
        "scale only, centred": RELU | attention(centred=True),
        "ReLA": RELA,
        "ReLU over its mass": OVER_ITS_MASS,
        "ReLU squared over its mass": RELU | attention(activation="relu_squared", norm="mass", bias=2.0),
        "scale only, power 2, bias 2, alpha 1": squared,
        "scale only, power 2, bias 2, alpha 1, centred": RELU | attention(**SQUARED, centred=True),
        "centred": centred,
        "centred, regulariser": centred | {"regulariser": terms},
        "centred, mass term": centred | {"regulariser": {"mass": scale.regulariser / 5}},
        "centred, softmax in the cross-attention": centred | {"cross": ATTENTIONS["softmax"]},
        "power 1": RELU | attention(**POWER | {"activation": "relu", "bias": 1.0}),
        "power 2": RELU | attention(**POWER | {"activation": "relu_squared", "bias": 2.0}),
        "power 4": RELU | attention(**POWER),
        "power 8": RELU | attention(**EIGHTH),
        "power 4, no query-key norm": RELU | attention(**POWER | {"query_key_norm": False}),
        "power 4, rotary": RELU | attention(**POWER) | {"positions": "rotary"},
        "softmax, query-key norm, rotary": NORMED_SOFTMAX | {"positions": "rotary"},
        "power 4, not centred": RELU | attention(**POWER | {"centred": False}),
        "power 8, not centred": RELU | attention(**PLAIN_EIGHTH),
        "power 8, not centred, no query-key norm": RELU | attention(**ALONE),
        "power 8, bias 4": RELU | attention(**EIGHTH | {"bias": 4.0}),
        "power 8, output gate": RELU | attention(**EIGHTH | {"output_gate": True}),
        "power 8, squared FFN": RELU | attention(**EIGHTH) | SQUARED_FFN,
        "power 8, output gate, squared FFN": RELU | attention(**EIGHTH | {"output_gate": True}) | SQUARED_FFN,
        "softmax, query-key norm, output gate, squared FFN": (
            attention(**ATTENTIONS["softmax"], query_key_norm=True, output_gate=True) | SQUARED_FFN
        ),
    }


def _changes() -> dict[str, dict[str, Any]]:
    """Return variants of centred attention."""
    changes: dict[str, dict[str, Any]] = {
        "alpha 0.75": {"alpha": 0.75},
        "alpha 0.5": {"alpha": 0.5},
        "bias 0.5": {"bias": 0.5},
        "bias 2": {"bias": 2.0},
        "gamma fixed": {"gamma": "fixed"},
        "gamma per site": {"gamma": "shared"},
        "query-key norm": {"query_key_norm": True},
        "head norm": {"norm": "rms"},
        "gated norm": {"norm": "gated"},
        "over its mass": {"norm": "mass"},
        "4 slots": {"slots": 4},
    }
    return {name: CENTRED | change for name, change in changes.items()}


def _recipes(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return changes to the training recipe."""
    return {
        "gamma at the common learning rate": {"optimiser": {"gamma_lr": 1.0}},
        "warm-up x 2": {"optimiser": {"warmup": 2 * scale.warmup}},
        "weight decay 0.1": {"optimiser": {"weight_decay": 0.1}},
        "annealed from softmax": {"anneal": 0.25},
    }


def _tuned(full: dict[str, Any], centred: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the models whose learning rate is tuned; a query-key norm allows for higher ones."""
    normed = {"softmax": NORMED_SOFTMAX, "centred": RELU | attention(**CENTRED, query_key_norm=True)}
    plain = {"softmax": {}, "full": full, "centred": centred}
    plain |= {"power 4": RELU | attention(**POWER), "power 8": RELU | attention(**EIGHTH)}
    return plain | {f"{name}, query-key norm": model for name, model in normed.items()}


def _rates(scale: Scale) -> dict[str, dict[str, Any]]:
    factors = {"x 4": 4.0, "x 2": 2.0, "/ 2": 0.5}
    return {f"learning rate {name}": {"optimiser": {"lr": factor * scale.lr}} for name, factor in factors.items()}


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences, for a third of the updates."""
    return bench.train_and_score(arm.settings["model"], seed, steps=SHARE, **arm.settings.get("recipe", {}))


EXPERIMENT = Experiment(
    name="attempts",
    title="Attempts to close the gap",
    question="What makes ReLU attention learn as fast as softmax?",
    arms=arms,
    run=run,
    columns=(
        Column("NLL", "nll", 3, "lower"),
        Column("BLEU", "bleu", 2, "higher"),
        Column("± 95 %", "bleu_ci", 2),
        Column("entropy", "entropy", 2),
        Column("zeros", "zeros", 2),
        Column("dead rows", "dead", 3),
        Column("mass", "mass", 2),
    ),
    claims=(),
    paper={},
)
