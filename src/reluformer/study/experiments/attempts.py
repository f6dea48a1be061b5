"""What might close a gap between ReLU attention and softmax: one change at a time, for a third of the updates."""

from typing import Any

from reluformer.study.bench import Bench
from reluformer.study.experiment import Arm, Column, Experiment
from reluformer.study.experiments._memories import ATTENTIONS, OVER_ITS_MASS, RELA, RELU, attention, reluformer
from reluformer.study.scales import Scale

SHARE = 1 / 3  # of the updates: enough to see who learns faster


def arms(scale: Scale) -> list[Arm]:
    """The twins, each with other learning rates, and changes of the ReLUFormer; the twins alone at small scales."""
    full = reluformer(scale)
    found = [Arm("softmax", {"model": {}}), Arm("full", {"model": full})]
    if scale.extras:
        memories = _memories(scale)
        found += [Arm(f"full, {name}", {"model": model}) for name, model in memories.items()]
        found += [Arm(f"full, {name}", {"model": full, "recipe": recipe}) for name, recipe in _recipes(scale).items()]
        found += [Arm(name, {"model": model}) for name, model in _unregularised().items()]
        rated = {"softmax": {}, "full": full, "full, gated norm": memories["gated norm"]}
        found += [
            Arm(f"{name}, {rate}", {"model": model, "recipe": recipe})
            for name, model in rated.items()
            for rate, recipe in _rates(scale).items()
        ]
    return found


def _memories(scale: Scale) -> dict[str, dict[str, Any]]:
    """Other attention: what the scores and their sums go through, and where softmax stays."""
    changes: dict[str, dict[str, Any]] = {
        "alpha 0.75": {"alpha": 0.75},
        "gamma fixed": {"gamma": "fixed"},
        "gamma per site": {"gamma": "shared"},
        "bias 1": {"bias": 1.0},
        "bias 1, alpha 1": {"bias": 1.0, "alpha": 1.0},
        "bias -0.5": {"bias": -0.5},
        "power 2": {"activation": "relu_squared"},
        "power 2, bias 2, alpha 1": {"activation": "relu_squared", "bias": 2.0, "alpha": 1.0},
        "query-key norm": {"query_key_norm": True},
        "query-key norm, bias 1, alpha 1": {"query_key_norm": True, "bias": 1.0, "alpha": 1.0},
        "layer norm": {"norm": "layer"},
        "gated norm": {"norm": "gated"},
        "gated norm, query-key norm": {"norm": "gated", "query_key_norm": True},
        "gated norm, bias 1": {"norm": "gated", "bias": 1.0},
        "4 slots": {"slots": 4},
    }
    found = {name: reluformer(scale, **settings) for name, settings in changes.items()}
    for site, name in (("encoder_self", "encoder"), ("decoder_self", "decoder"), ("cross", "cross-attention")):
        found[f"softmax in the {name}"] = reluformer(scale) | {site: ATTENTIONS["softmax"]}
    weight = 4 * scale.regulariser
    found["regulariser x 4"] = reluformer(scale) | {"regulariser": {"mass": weight, "entropy": weight}}
    return found


def _unregularised() -> dict[str, dict[str, Any]]:
    """ReLU attention without the regulariser; over their mass the weights of a row are a distribution anyway."""
    return {
        "scale only": RELU,
        "ReLA": RELA,
        "ReLU over its mass": OVER_ITS_MASS,
        "ReLU squared over its mass": RELU | attention(activation="relu_squared", norm="mass", bias=2.0),
        "scale only, power 2, bias 2, alpha 1": RELU | attention(activation="relu_squared", bias=2.0, alpha=1.0),
        "scale only, query-key norm, bias 1, alpha 1": RELU | attention(query_key_norm=True, bias=1.0, alpha=1.0),
        "scale only, gated norm": RELU | attention(norm="gated"),
        "scale only, softmax in the cross-attention": RELU | {"cross": ATTENTIONS["softmax"]},
    }


def _recipes(scale: Scale) -> dict[str, dict[str, Any]]:
    """Other training."""
    return {
        "gamma at the common learning rate": {"optimiser": {"gamma_lr": 1.0}},
        "warm-up x 2": {"optimiser": {"warmup": 2 * scale.warmup}},
        "regulariser from the first step": {"regulariser_warmup": 0},
        "annealed from softmax": {"anneal": 0.25},
    }


def _rates(scale: Scale) -> dict[str, dict[str, Any]]:
    return {
        "learning rate x 2": {"optimiser": {"lr": 2 * scale.lr}},
        "learning rate / 2": {"optimiser": {"lr": scale.lr / 2}},
    }


def run(arm: Arm, seed: int, bench: Bench) -> dict[str, Any]:
    """Train on sentences, for a part of the updates."""
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
