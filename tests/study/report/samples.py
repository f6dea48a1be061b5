"""Experiments and cells to report on."""

from typing import Any

from reluformer.study.experiment import Arm, Claim, Column, Experiment, Plot


def cell(arm: str, seed: int = 0, status: str = "done", study: str = "ffn", **more: Any) -> dict[str, Any]:
    """A cell; numbers among the further arguments are its result."""
    own = ("scale", "corpus", "x", "series", "error", "curve", "seconds")
    return {
        "study": study, "arm": arm, "seed": seed, "scale": "smoke", "settings": {}, "x": None, "series": None,
        "status": status, "error": None, "curve": [], "seconds": 2.0, "versions": {"torch": "2.8"},
        "machine": {"gpu": "H200"}, "corpus": "bible", "command": f"reluformer study --cell cells/{arm}-{seed}.json",
        "result": {key: value for key, value in more.items() if key not in own},
        **{key: value for key, value in more.items() if key in own},
    }  # fmt: skip


def cells(arm: str, *bleu: float, **more: Any) -> list[dict[str, Any]]:
    """One finished cell per value."""
    return [cell(arm, seed, bleu=value, **more) for seed, value in enumerate(bleu)]


def experiment(*claims: Claim, **more: Any) -> Experiment:
    """An experiment with three arms, of which one may lack cells."""
    values: dict[str, Any] = {
        "name": "ffn", "title": "The FFN", "question": "Which is better?",
        "arms": lambda scale: [Arm(name, {}) for name in ("ReLU", "softmax", "late")],
        "run": lambda arm, seed, bench: {},
        "columns": (Column("BLEU", "bleu", 2, "higher"), Column("NLL", "nll", 3, "lower"), Column("plain", "plain")),
        "claims": claims, "paper": {"ReLU": {"bleu": "34.22"}},
    }  # fmt: skip
    return Experiment(**(values | more))


def curve(*nll: float) -> list[dict[str, float]]:
    """A point per value."""
    return [{"step": 10 * i, "nll": value, "seconds": 0.5 * i} for i, value in enumerate(nll, 1)]


def sweep() -> tuple[Experiment, list[dict[str, Any]]]:
    """Two series over x, with curves and a reference."""
    plot = Plot("BLEU by slots", "bleu", "slots", "BLEU", log_x=True, reference={"half": "x / 2"})
    found = [
        cell(f"{series}, {x}", seed, study="slots", x=x, series=series, bleu=rise * x + seed, curve=curve(5, 3, 2))
        for series, rise in (("ReLU", 1.0), ("softmax", 0.5))
        for x in (4, 8, 16)
        for seed in range(2)
    ]
    return experiment(name="slots", title="Slots", arms=lambda scale: [], plots=(plot,), paper={}), found
